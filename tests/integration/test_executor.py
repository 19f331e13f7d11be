"""The executor as a whole: groups, drain, several workers, its own database going away and coming back."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from consumer import claim, db, migrate, moves, steps
from consumer.errors import DataRefused, Outage
from consumer.executor.commit import GroupCommit
from consumer.records.jobs import ClaimedJob
from debezium import stack as local_stack
from debezium.paths import cache_directory
from tests.agents.doing import DONE
from tests.agents.harness import Records, records, running, settings
from tests.agents.shared import database, view
from tests.scripted_model import Reply, serve

__all__ = ["database", "view"]

LEASE = claim.Lease(uuid.uuid4(), seconds=30, deadline_seconds=900)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[db.AsyncPool]:
    opened = await db.open_pool(database, name="test", size=4, idle_seconds=30.0)
    yield opened
    await opened.close()


async def claimed(view: Records, pool: db.AsyncPool, count: int) -> list[ClaimedJob]:
    for number in range(count):
        await view.add("doer", {"n": number})
    async with pool.connection() as session:
        await claim.promote(session)
        return await claim.claim(session, LEASE, ["doer"], count)


def checkpoint(job: ClaimedJob, output: str = "1", *, epoch: int | None = None, name: str = "s") -> steps.Checkpoint:
    started = job.created_at
    return steps.Checkpoint(job.id, job.epoch if epoch is None else epoch, name, "AGENT_STEP", 1, output, 1, started)


async def test_one_refused_item_of_a_group_fails_alone(view: Records, pool: db.AsyncPool) -> None:
    jobs = await claimed(view, pool, 40)
    groups: list[int] = []

    async def keep(session: db.Session, items: Any) -> Any:
        groups.append(len(items))
        return await steps.checkpoint(session, items, 30.0)

    group = GroupCommit(pool, keep, name="checkpoints", patience=5.0)
    outputs = {jobs[7].id: "{not json", jobs[23].id: '"nul \x00"', jobs[31].id: '"half \ud800"'}
    ended = await asyncio.gather(
        *(group.submit(checkpoint(job, outputs.get(job.id, "1"))) for job in jobs), return_exceptions=True
    )
    refused = {job.id for job, end in zip(jobs, ended, strict=True) if isinstance(end, DataRefused)}
    assert refused == set(outputs)
    assert [end for end in ended if not isinstance(end, DataRefused)] == [True] * 37
    assert groups[0] == 40 and len(groups) < 60
    assert {row["job_id"] for row in await view.all("SELECT job_id FROM rowcall.job_steps")} == {
        job.id for job in jobs
    } - refused


async def test_a_fault_of_the_writer_itself_reaches_every_caller_and_the_next_group_is_written(
    view: Records, pool: db.AsyncPool
) -> None:
    faults = [TypeError("a bug")]

    async def write(session: db.Session, items: Any) -> Any:
        if faults:
            raise faults.pop()
        return items

    group: GroupCommit[int, int] = GroupCommit(pool, write, name="test", patience=1.0)
    ended = await asyncio.wait_for(asyncio.gather(group.submit(1), group.submit(2), return_exceptions=True), 2)
    assert [type(end) for end in ended] == [TypeError, TypeError]
    assert await asyncio.wait_for(group.submit(3), 2) == 3


async def test_an_outage_is_waited_for_and_then_told(pool: db.AsyncPool) -> None:
    tries: list[int] = []

    async def write(session: db.Session, items: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise Outage("away", dependency="database")
        return items

    assert await GroupCommit[int, int](pool, write, name="test", patience=5.0).submit(1) == 1
    tries[:] = [-100]

    async def never(session: db.Session, items: Any) -> Any:
        raise Outage("away", dependency="database")

    with pytest.raises(Outage):
        await asyncio.wait_for(GroupCommit[int, int](pool, never, name="test", patience=0.3).submit(1), 3)


async def test_two_epochs_of_one_run_in_one_group_are_told_apart(view: Records, pool: db.AsyncPool) -> None:
    # A worker that takes its own expired run over may have both attempts' writes in one group.
    (job,) = await claimed(view, pool, 1)
    await view.execute("UPDATE rowcall.agent_jobs SET lease_epoch = 2")
    stale, own = checkpoint(job, "1", name="old"), checkpoint(job, "2", epoch=2, name="new")
    async with pool.connection() as session:
        assert await steps.checkpoint(session, [stale, own], 30.0) == [False, True]
        calls = [
            steps.CallSent(job.id, epoch, "s", 1, "model", "e", "m", f"k{epoch}", bytes(32)) for epoch in (1, 2)
        ]  # fmt: skip
        assert [sent is not None for sent in await steps.call_sent(session, calls)] == [False, True]
        ends = [
            moves.Settlement(job.id, 1, "FAILED", code="stale", error="stale"),
            moves.Settlement(job.id, 2, "SUCCEEDED", result="{}", step_number=1),
        ]
        assert await moves.settle_group(session, ends) == [False, True]
    assert {row["name"] for row in await view.all("SELECT name FROM rowcall.job_steps")} == {"new", "write_result"}
    assert [row["lease_epoch"] for row in await view.all("SELECT lease_epoch FROM rowcall.external_calls")] == [2]
    ended = await view.job(job.id)
    assert (ended["status"], ended["error_code"]) == ("SUCCEEDED", None)


async def test_a_drain_finishes_what_ends_in_time_and_gives_the_rest_back_unharmed(
    database: str, view: Records
) -> None:
    quick = [await view.add("doer", {"do": "succeed", "seconds": 0.6}) for _ in range(3)]
    slow = [await view.add("doer", {"do": "succeed", "seconds": 60}) for _ in range(3)]
    writing = await view.add("writer", {"n": 1, "statements": ["SELECT pg_sleep(60)"]})
    async with running(settings(database, drain_seconds=4.0)) as stop:
        for job_id in [*quick, *slow, writing]:
            await view.wait(job_id, "RUNNING")
        await asyncio.sleep(0.2)
        stop.set()
        late = await view.add("doer", {"do": "succeed"})
    for job_id in quick:
        assert (await view.job(job_id))["status"] == "SUCCEEDED"
    for job_id in [*slow, writing]:
        job = await view.job(job_id)
        assert (job["status"], job["attempt_count"], job["reason"]) == ("PENDING", 0, "the worker was stopped")
    assert (await view.job(late))["lease_epoch"] == 0
    assert await view.effects() == []
    async with running(settings(database, drain_seconds=0.0)):
        await view.wait(slow[0], "RUNNING")


async def test_runs_go_on_while_the_end_of_others_is_written_up_to_as_many_again(database: str, view: Records) -> None:
    first = await view.add("writer", {"n": 1, "statements": ["SELECT pg_sleep(60)"]})
    async with running(settings(database, drain_seconds=0.0, runs_in_flight=1)):
        await view.wait_for("SELECT FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'")
        beside = await view.add("doer", {"do": "succeed"})
        await view.wait(beside, "SUCCEEDED")
        second = await view.add("writer", {"n": 2, "statements": ["SELECT pg_sleep(60)"]})
        await view.wait(second, "RUNNING")
        third = await view.add("doer", {"do": "succeed"})
        await asyncio.sleep(1.0)
        assert (await view.job(third))["lease_epoch"] == 0
    assert (await view.job(first))["status"] == "PENDING"


async def test_a_cancelled_run_stops_and_writes_nothing(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "step_then", "seconds": 60})
    async with running(settings(database, drain_seconds=30.0)):
        await view.wait_for("SELECT FROM rowcall.job_steps WHERE job_id = %s", job_id)
        await view.execute(
            "SELECT rowcall.settle(ARRAY[%s::bigint], ARRAY[NULL::bigint], ARRAY['CANCELLED'], ARRAY[NULL], "
            "ARRAY['cancelled'], ARRAY['by hand'], ARRAY[NULL], ARRAY[NULL::float8], ARRAY[0])",
            job_id,
        )
        await asyncio.sleep(1.2)  # two beats; then the drain has nothing to wait for
    assert (await view.job(job_id))["status"] == "CANCELLED"
    assert {row["name"] for row in await view.all("SELECT name FROM rowcall.job_steps")} == {"first"}


async def test_two_executors_share_the_work_and_run_nothing_twice(database: str, view: Records) -> None:
    with serve(Reply({"title": "x", "score": 1}, delay_seconds=0.01)) as model:
        ids = [await view.add("writer", {"n": n, "ask": True}, key=f"k{n % 40}") for n in range(200)]
        async with running(settings(database, model.url, runs_in_flight=16), count=2):
            await view.wait_all(ids)
    assert await view.effects() == list(range(200))
    jobs = await view.one("SELECT max(attempt_count) AS attempts, max(lease_epoch) AS epoch FROM rowcall.agent_jobs")
    assert (jobs["attempts"], jobs["epoch"]) == (1, 1)
    keys = Counter(call.headers["idempotency-key"] for call in model.calls)
    assert (len(keys), max(keys.values())) == (200, 1)
    # In order inside each key.
    rows = await view.all("SELECT n FROM public.effects ORDER BY at")
    for key in range(40):
        mine = [row["n"] for row in rows if row["n"] % 40 == key]
        assert mine == sorted(mine)


@pytest.fixture
def own_server() -> Any:
    """A server that a test may kill."""
    directory: Path = cache_directory() / "tests" / f"own-{uuid.uuid4().hex[:8]}"
    url = local_stack.start(directory, services=("postgres",), attached=True).database_url
    session = db.connect(url, name="own")
    migrate.migrate(session)
    session.close()
    yield url, directory
    local_stack.stop(directory, remove=True)


async def test_a_database_that_dies_under_load_loses_and_doubles_nothing(own_server: tuple[str, Path]) -> None:
    url, directory = own_server
    DONE.clear()
    with serve(Reply({"title": "x", "score": 1}, delay_seconds=0.02)) as model:
        async with records(url) as before:
            ids = [await before.add("writer", {"n": n, "ask": True}) for n in range(300)]
            async with running(settings(url, model.url, runs_in_flight=32, lease_seconds=3.0, beat_seconds=1.0)):
                await before.wait_for("SELECT FROM public.effects OFFSET 60", seconds=20)
                await asyncio.to_thread(local_stack.kill, directory, "postgres", signal.SIGKILL)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(local_stack.restart, directory, "postgres")
                async with records(url) as after:
                    await after.wait_all(ids, seconds=40)
                    assert await after.effects() == list(range(300))
                    assert len(await after.all("SELECT FROM rowcall.outbox")) == 300


async def test_a_killed_connection_is_replaced(database: str, view: Records) -> None:
    ids = [await view.add("writer", {"n": n}) for n in range(20)]
    async with running(settings(database)):
        # A worker that is still opening its connections ends with the error.
        await view.wait_for("SELECT FROM rowcall.agent_jobs WHERE status <> 'PENDING'")
        for _ in range(5):
            await view.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'rowcall %'"
            )
            await asyncio.sleep(0.1)
        ids += [await view.add("writer", {"n": n}) for n in range(20, 40)]
        await view.wait_all(ids)
    assert await view.effects() == list(range(40))


def test_a_frozen_transaction_does_not_hold_its_rows_for_ever(database: str) -> None:
    async def frozen() -> str:
        pool = await db.open_pool(database, name="frozen", size=1, idle_seconds=0.3)
        async with pool.connection() as session:
            row = await (await session.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
        await pool.close()
        assert row is not None
        return str(row["idle_in_transaction_session_timeout"])

    assert asyncio.run(frozen()) == "300ms"
    with psycopg.connect(database) as other:
        assert other.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)


async def test_a_worker_runs_one_suspect_at_a_time_and_all_others_beside_it(database: str, view: Records) -> None:
    suspects = [await view.add("doer", {"do": "succeed", "seconds": 0.3}) for _ in range(4)]
    await view.execute("UPDATE rowcall.agent_jobs SET losses = 2")
    others = [await view.add("doer", {"do": "succeed", "seconds": 0.3}) for _ in range(4)]
    # Placed while they had been lost already, as reclaim() leaves them.
    await view.execute("SELECT rowcall.promote(100)")
    await view.execute("SELECT rowcall.mend_lanes(100)")
    seen = Counter[bool]()
    async with running(settings(database)):
        while await view.all("SELECT FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED'"):
            rows = await view.all("SELECT id FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
            now = Counter(row["id"] in suspects for row in rows)
            seen |= now
            await asyncio.sleep(0.02)
    assert (seen[True], seen[False]) == (1, len(others))
