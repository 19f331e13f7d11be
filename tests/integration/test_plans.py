"""What each statement of the hot path touches with one million finished and 100,000 waiting jobs.

Not EXPLAIN: it cannot see into functions. The server counts, for the transaction under way, how often each index and
table was scanned, how many entries that gave and how many blocks were fetched; the product's own code runs, and the
counters tell whether it kept to the intended indexes. Once with statistics taken while the tables were empty, as stale
as a queue's can be, and once with fresh ones; with plans made for the parameters at hand, and with generic ones, as a
worker's prepared statements get them. Times are never looked at.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from consumer import claim, db, moves, steps
from tests.fixtures.postgres import create, drop

SQL = {stage: db.queries(stage) for stage in ("claim", "dedup", "enqueue", "intake", "operate", "outcome", "steps")}
FINISHED = 1_000_000
RUNNING = 512
EXPIRED = 256
LANES = 50_000
DEEP = 20_000
INBOX = 29_488
STEPS = 200_000
SEEN = 200_000
LEASE = claim.Lease(uuid.uuid4(), seconds=30, deadline_seconds=900)
GROUP = 256

# Triggers off and no commit waits for the disk: a fill of seconds. Statistics stay as they were before it.
FILL = f"""
SET session_replication_role = replica;
SET synchronous_commit = off;
INSERT INTO rowcall.agents (name, version) VALUES ('a', 1), ('b', 1), ('deep', 1);
ANALYZE rowcall.agent_jobs, rowcall.lanes, rowcall.job_steps, rowcall.external_calls, rowcall.processed_events;
ALTER TABLE rowcall.agent_jobs SET (autovacuum_enabled = false);
ALTER TABLE rowcall.lanes SET (autovacuum_enabled = false);
ALTER TABLE rowcall.job_steps SET (autovacuum_enabled = false);
INSERT INTO rowcall.agent_jobs (job_type, status, key_hash, lane_seq, lease_epoch, attempt_count, finished_at, event_id)
SELECT 'a', CASE WHEN n % 1000 = 0 THEN 'CANCELLED' ELSE 'SUCCEEDED' END, n % 100000, n, 1, 1, now(), 'rc1:' || n
FROM generate_series(1, {FINISHED}) n;
INSERT INTO rowcall.agent_jobs (job_type, status, key_hash, lane_seq, lease_epoch, attempt_count, owner, deadline,
    locked_until, event_id)
SELECT 'a', 'RUNNING', 1000000 + n, n, 1, 1, gen_random_uuid(), now() + interval '1 hour',
    now() + CASE WHEN n <= {EXPIRED} THEN -interval '1 minute' ELSE interval '1 hour' END, 'run:' || n
FROM generate_series(1, {RUNNING}) n;
INSERT INTO rowcall.agent_jobs (job_type, key_hash, lane_seq)
SELECT 'a', 2000000 + n, n FROM generate_series(1, {LANES}) n;
INSERT INTO rowcall.agent_jobs (job_type, key_hash, lane_seq) SELECT 'deep', 7, n FROM generate_series(1, {DEEP}) n;
INSERT INTO rowcall.agent_jobs (job_type, key_hash, dedupe_key)
SELECT 'a', 3000000 + n, 'key ' || n FROM generate_series(1, {INBOX}) n;
INSERT INTO rowcall.lanes (agent, key_hash, head, ready_at)
SELECT job_type, key_hash, min(id), CASE WHEN min(status) = 'PENDING' THEN min(run_after) END
FROM rowcall.agent_jobs WHERE lane_seq IS NOT NULL AND status IN ('PENDING', 'RUNNING') GROUP BY 1, 2;
INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch)
SELECT n, 'one', 'AGENT_STEP', 1, '1', 1, 1 FROM generate_series(1, {STEPS}) n;
CREATE TABLE rowcall.processed_events_20261130 PARTITION OF rowcall.processed_events
    FOR VALUES FROM ('2026-11-30') TO ('2026-12-01');
INSERT INTO rowcall.processed_events (day, agent, event_id)
SELECT '2026-11-30', 'a', 'rc1:' || n FROM generate_series(1, {SEEN}) n;
INSERT INTO rowcall.processed_events_undated (agent, event_id)
SELECT 'a', 'ob1:' || n FROM generate_series(1, {SEEN}) n;
"""
ANALYZE = (
    "ANALYZE rowcall.agent_jobs, rowcall.lanes, rowcall.job_steps, rowcall.external_calls, rowcall.processed_events"
)
TOUCHED = """
SELECT regexp_replace(c.relname, '_20[0-9]{6}', '') AS name, c.relkind::text AS kind,
    pg_stat_get_xact_numscans(c.oid) AS scans, pg_stat_get_xact_tuples_returned(c.oid) AS entries,
    pg_stat_get_xact_blocks_fetched(c.oid) AS blocks
FROM pg_class c WHERE c.relnamespace = 'rowcall'::regnamespace AND c.relkind IN ('r', 'i')
"""
BIG = {"agent_jobs", "lanes", "job_steps", "processed_events", "processed_events_undated"}


@dataclass(frozen=True)
class Touched:
    """What a transaction has touched: sequential scans of big tables, index scans and entries by index, all blocks."""

    whole: dict[str, int]
    entries: dict[str, int]
    blocks: int


@pytest.fixture(scope="module")
def filled(server: str) -> Iterator[str]:
    url = create(server)
    with psycopg.connect(url, autocommit=True) as session:
        for statement in FILL.split(";\n"):
            session.execute(statement.encode())
    yield url
    drop(url)


# The order matters: fresh statistics cannot be made stale again.
@pytest.fixture(scope="module", params=["stale", "fresh"])
def analyzed(filled: str, request: pytest.FixtureRequest) -> str:
    if request.param == "fresh":
        with psycopg.connect(filled, autocommit=True) as session:
            session.execute(ANALYZE)
    return filled


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
async def session(analyzed: str, request: pytest.FixtureRequest) -> AsyncIterator[db.Session]:
    opened = await db.connect_async(analyzed, name="test", by_key=True)
    opened.prepare_threshold = 0
    await opened.execute(f"SET plan_cache_mode = {request.param}".encode())
    yield opened
    await opened.close()


async def counters(session: db.Session) -> dict[str, dict[str, Any]]:
    """The transaction's counters by table and index."""
    return {row["name"]: row for row in await (await session.execute(TOUCHED.encode())).fetchall()}


async def touched(session: db.Session, work: Callable[[], Awaitable[Any]]) -> Touched:
    """Run `work` in a transaction, count, and roll it back."""
    async with session.transaction(force_rollback=True):
        before = await counters(session)
        await work()
        after = await counters(session)
    found = {
        name: {key: row[key] - before[name][key] for key in ("scans", "entries", "blocks")}
        for name, row in after.items()
    }
    tables = {name for name in found if after[name]["kind"] == "r"}
    return Touched(
        whole={name: found[name]["scans"] for name in tables & BIG if found[name]["scans"]},
        entries={name: row["entries"] for name, row in found.items() if name not in tables and row["scans"]},
        blocks=sum(row["blocks"] for row in found.values()),
    )


async def sent(session: db.Session, stage: str, query: str, parameters: Any = None) -> list[dict[str, Any]]:
    """A named query with all its rows."""
    return await (await session.execute(SQL[stage][query], parameters)).fetchall()


async def running(session: db.Session) -> list[tuple[int, int]]:
    """(id, epoch) of a group of runs that are leased."""
    rows = await session.execute(
        "SELECT id, lease_epoch FROM rowcall.agent_jobs WHERE status = 'RUNNING' ORDER BY id DESC LIMIT %s", (GROUP,)
    )
    return [(row["id"], row["lease_epoch"]) for row in await rows.fetchall()]


def kept_to(found: Touched, indexes: set[str], *, entries: int, blocks: int) -> None:
    """Nothing was scanned whole, no other index was used, and no more was read than the work is worth."""
    assert found.whole == {}
    assert set(found.entries) <= indexes, found
    assert sum(found.entries.values()) <= entries, found
    assert found.blocks <= blocks, found


KEYS = {"agents_pkey", "agent_jobs_pkey", "lanes_pkey", "job_steps_pkey"}
CLAIM = {*KEYS, "limits_pkey", "lanes_ready", "lanes_suspect", "lanes_parked"}


async def test_a_claim_reads_the_heads_it_takes(session: db.Session) -> None:
    found = await touched(session, lambda: claim.claim(session, LEASE, ["a", "b", "deep"], GROUP))
    kept_to(found, CLAIM, entries=5 * GROUP, blocks=60 * GROUP)


async def test_a_claim_from_one_lane_of_many_jobs_reads_its_head(session: db.Session) -> None:
    found = await touched(session, lambda: claim.claim(session, LEASE, ["deep"], GROUP))
    kept_to(found, CLAIM, entries=10, blocks=200)


async def test_the_end_of_a_run_in_a_lane_of_many_jobs_reads_the_next_head(session: db.Session) -> None:
    async with session.transaction(force_rollback=True):
        (job,) = await claim.claim(session, LEASE, ["deep"], 1)
        end = [moves.Settlement(job.id, job.epoch, "SUCCEEDED", "1", step_number=4, version=1)]
        found = await touched(session, lambda: moves.settle_group(session, end))
    kept_to(found, {*KEYS, "jobs_lane", "jobs_running", "jobs_one_holder"}, entries=20, blocks=200)


async def test_a_promotion_reads_what_it_places(session: db.Session) -> None:
    found = await touched(session, lambda: claim.promote(session))
    # Twice: probes and the unique indexes that the moved rows enter.
    kept_to(found, {*KEYS, "jobs_inbox"}, entries=4 * claim.PROMOTE_LIMIT, blocks=60 * claim.PROMOTE_LIMIT)


async def test_a_reclaim_reads_the_runs_under_way(session: db.Session) -> None:
    found = await touched(session, lambda: claim.reclaim(session))
    # The claims that other tests have rolled back are still in the index.
    kept_to(found, {*KEYS, "jobs_running", "jobs_lane"}, entries=10 * RUNNING + 10_000, blocks=100 * RUNNING + 10_000)


async def test_outcomes_read_their_runs_and_the_next_heads(session: db.Session) -> None:
    held = await running(session)
    ends = [moves.Settlement(job_id, epoch, "SUCCEEDED", "1", step_number=4, version=1) for job_id, epoch in held]
    found = await touched(session, lambda: moves.settle_group(session, ends))
    kept_to(found, {*KEYS, "jobs_lane", "jobs_running"}, entries=10 * GROUP, blocks=100 * GROUP)


async def test_beats_look_up_their_runs(session: db.Session) -> None:
    held = await running(session)
    values = {"ids": [run[0] for run in held], "epochs": [run[1] for run in held], "lease": 30.0}
    mine = await touched(session, lambda: sent(session, "claim", "still_mine", values))
    kept_to(mine, {*KEYS, "jobs_running"}, entries=3 * GROUP, blocks=20 * GROUP)
    beat = await touched(session, lambda: session.execute(SQL["claim"]["beat"], values))
    kept_to(beat, {*KEYS, "jobs_running"}, entries=6 * GROUP, blocks=60 * GROUP)


async def test_checkpoints_and_call_records_look_up_their_runs(session: db.Session) -> None:
    held = await running(session)
    now = dt.datetime.now(dt.UTC)
    kept = [steps.Checkpoint(job, epoch, "two", "AGENT_STEP", 2, "1", 1, now) for job, epoch in held]
    found = await touched(session, lambda: steps.checkpoint(session, kept, 30.0))
    kept_to(found, {*KEYS, "jobs_running"}, entries=6 * GROUP, blocks=60 * GROUP)
    calls = [steps.CallSent(job, epoch, "two", 1, "model", "x", None, "key", bytes(32)) for job, epoch in held]
    found = await touched(session, lambda: steps.call_sent(session, calls))
    kept_to(found, {*KEYS, "jobs_running"}, entries=6 * GROUP, blocks=60 * GROUP)


async def test_beats_and_checkpoints_do_not_read_what_an_old_snapshot_keeps(session: db.Session) -> None:
    """Entries of runs that ended stay in the index of runs under way as long as anybody may still see them."""
    held = await running(session)
    values = {"ids": [run[0] for run in held], "epochs": [run[1] for run in held], "lease": 30.0}
    now = dt.datetime.now(dt.UTC)
    kept = [steps.Checkpoint(job, epoch, "two", "AGENT_STEP", 2, "1", 1, now) for job, epoch in held]
    async with session.transaction(force_rollback=True):
        # Claimed and ended in one transaction: for every other session the entries are there and nothing else.
        jobs = await claim.claim(session, LEASE, ["a"], 2000)
        await moves.settle(session, [moves.Settlement(job.id, job.epoch, "SUCCEEDED", "1") for job in jobs])
        beat = await touched(session, lambda: session.execute(SQL["claim"]["beat"], values))
        checkpoint = await touched(session, lambda: steps.checkpoint(session, kept, 30.0))
    for found in (beat, checkpoint):
        assert sum(found.entries.values()) <= 6 * GROUP, found


async def test_an_outcome_looks_up_its_run(session: db.Session) -> None:
    ((job, epoch), *_) = await running(session)
    fence = {"id": job, "epoch": epoch, "system": 1}
    found = await touched(session, lambda: sent(session, "outcome", "fence", fence))
    kept_to(found, {*KEYS, "jobs_running"}, entries=10, blocks=50)


async def test_the_dedup_lookup_probes_each_id(session: db.Session) -> None:
    ids = [f"rc1:{number}" for number in range(SEEN - 1000, SEEN + 1000)]
    values = {"agents": ["a"], "firsts": [1], "ids": json.dumps(ids), "days": [dt.date(2026, 11, 30)]}
    found = await touched(session, lambda: sent(session, "dedup", "seen", values))
    kept_to(found, {"processed_events_pkey", "processed_events_undated_pkey"}, entries=2 * len(ids), blocks=20_000)


@pytest.mark.parametrize("key", ["key 5", "a free key"])
async def test_queueing_a_run_probes_its_dedupe_key(session: db.Session, key: str) -> None:
    values = {"agent": "a", "payload": "{}", "dedupe_key": key, "key": None, "run_after": None, "max_attempts": 5}
    values |= {"tenant": "default", "priority": 0, "hold_key": False}
    found = await touched(session, lambda: sent(session, "enqueue", "enqueue", values))
    kept_to(found, {"jobs_dedupe", "agents_pkey"}, entries=10, blocks=100)


async def test_mending_reads_live_jobs_and_lanes(session: db.Session) -> None:
    found = await touched(session, lambda: claim.mend_lanes(session))
    assert found.whole.keys() <= {"lanes"}
    assert set(found.entries) <= {*KEYS, "jobs_lane", "lanes_ready"}
    assert found.blocks < 10 * (LANES + DEEP + RUNNING), found


async def test_the_backlog_is_counted_from_live_jobs(session: db.Session) -> None:
    found = await touched(session, lambda: sent(session, "intake", "backlog", {"limit": 200_000}))
    kept_to(found, {"agents_pkey", "jobs_lane", "jobs_inbox", "jobs_attention"}, entries=300_000, blocks=200_000)


LISTINGS = {
    "newest": ({}, "agent_jobs_pkey"),
    "failed": ({"status": "FAILED"}, "jobs_attention"),
    "running": ({"status": "RUNNING"}, "jobs_running"),
    "pending": ({"status": "PENDING"}, "agent_jobs_pkey"),
    "one agent's": ({"agent": "a"}, "agent_jobs_pkey"),
    "of one event": ({"agent": "a", "event": "rc1:77"}, "jobs_event"),
}


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_list_of_runs_reads_what_it_shows(analyzed: str, name: str) -> None:
    wanted, index = LISTINGS[name]
    values = {"status": None, "agent": None, "event": None, "limit": 50} | wanted
    # As a command does it: a session of its own, each statement once.
    session = await db.connect_async(analyzed, name="test")
    found = await touched(session, lambda: sent(session, "operate", "list_jobs", values))
    kept_to(found, {index}, entries=10 * RUNNING, blocks=30 * RUNNING)
    await session.close()


async def test_one_run_with_all_that_hangs_on_it_is_looked_up(session: db.Session) -> None:
    async def show() -> None:
        for query in ("job", "steps_of", "calls_of", "reviews_of", "coalesced_of", "outbox_of"):
            await sent(session, "operate", query, (STEPS,))

    found = await touched(session, show)
    assert found.whole == {}
    assert found.blocks < 200, found
