"""claim_p99_backlog_ratio: p99 of a claim before a large backlog over p99 of one before 1,000 waiting jobs.

Three backlogs: 1,000,000 jobs over 100,000 keys; 100,000 jobs of one key; and the first again while a session holds an
old snapshot, so that nothing that was claimed can be cleaned away. The figure is the worst of them. Claims before the
small backlog alternate with claims before the large one on the same server, so that a busy machine slows both alike;
both go the whole way (claim, outcome, new jobs, promotion), and only the claim is timed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg

from benchmarks.figures import Measured, percentile, significant, summary
from benchmarks.services import Services
from consumer import claim, db, moves

AGENT: Final = "bench"
SMALL: Final = 1000
GROUP: Final = 32
"""Runs a claim takes: what a busy worker has room for now and then."""
LEASE: Final = claim.Lease(uuid.uuid4(), seconds=600, deadline_seconds=900)
# In lanes already, as a worker's promotions leave them; triggers off, for only promotions may do this.
FILL: Final = """
SET session_replication_role = replica;
INSERT INTO rowcall.agents (name, version) VALUES ('bench', 1);
INSERT INTO rowcall.agent_jobs (job_type, key_hash, lane_seq) SELECT 'bench', n % {keys}, n
FROM generate_series(1, {jobs}) n;
INSERT INTO rowcall.lanes (agent, key_hash, head, ready_at)
SELECT job_type, key_hash, min(id), min(run_after) FROM rowcall.agent_jobs GROUP BY 1, 2;
SELECT setval('rowcall.lane_order', {jobs});
SET session_replication_role = origin;
"""


class Queue:
    """One database with its backlog, a session as the executor's, and the times of its claims in milliseconds."""

    def __init__(self, session: db.Session, keys: int) -> None:
        self._session = session
        self._keys = keys
        self._next = 0
        self.times: list[float] = []

    async def turn(self) -> None:
        """Claim, end what was claimed, and queue as much again."""
        began = time.perf_counter()
        jobs = await claim.claim(self._session, LEASE, [AGENT], GROUP)
        self.times.append((time.perf_counter() - began) * 1000)
        ends = [moves.Settlement(job.id, job.epoch, "SUCCEEDED", "1") for job in jobs]
        await moves.settle(self._session, ends)
        keys = [(self._next + number) % self._keys for number in range(len(jobs))]
        self._next += len(jobs)
        await self._session.execute(
            "INSERT INTO rowcall.agent_jobs (job_type, key_hash) SELECT %s, unnest(%s::bigint[])", (AGENT, keys)
        )
        await claim.promote(self._session)


def measure(services: Services) -> Measured:
    """Each backlog against the small one."""
    large, turns = (100_000, 60) if services.quick else (1_000_000, 300)
    return asyncio.run(_measure(services, large, turns))


async def _measure(services: Services, large: int, turns: int) -> Measured:
    cases = {
        "many_keys": (large, large // 10, False),
        "one_lane": (large // 10, 1, False),
        "old_snapshot": (large, large // 10, True),
    }
    ratios: dict[str, float] = {}
    raw: dict[str, Any] = {"turns": turns, "runs_a_claim": GROUP}
    for name, (jobs, keys, snapshot) in cases.items():
        async with _queue(services, SMALL, SMALL, False) as small, _queue(services, jobs, keys, snapshot) as backlog:
            for _ in range(turns):
                await small.turn()
                await backlog.turn()
        # The first claims pay for plans and caches on both sides.
        before, after = (queue.times[turns // 10 :] for queue in (small, backlog))
        ratios[name] = percentile(after, 0.99) / percentile(before, 0.99)
        raw[name] = {"small_ms": summary(before), "backlog_ms": summary(after), "ratio": significant(ratios[name])}
    return Measured({"claim_p99_backlog_ratio": max(ratios.values())}, raw)


@asynccontextmanager
async def _queue(services: Services, jobs: int, keys: int, snapshot: bool) -> AsyncIterator[Queue]:
    with services.database() as url:
        with psycopg.connect(url, autocommit=True) as session:
            for statement in FILL.format(jobs=jobs, keys=keys).split(";\n"):
                session.execute(statement.encode())
            session.execute("VACUUM (ANALYZE) rowcall.agent_jobs, rowcall.lanes")
        with psycopg.connect(url) as holder:
            if snapshot:
                holder.execute("SET default_transaction_isolation = 'repeatable read'")
                holder.commit()
                holder.execute("SELECT 1")
            opened = await db.connect_async(url, name="bench", by_key=True)
            try:
                yield Queue(opened, keys)
            finally:
                await opened.close()
