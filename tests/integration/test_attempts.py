"""Attempts that overlap, come again or hang: two of one run in one worker, reclaimed runs, an endless outcome."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import uuid
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from consumer import claim, db, operate, outcome
from consumer.agents.door import Agent, Transaction
from consumer.errors import Outage
from consumer.records import Change, Event
from tests.agents.doing import DONE, GO
from tests.agents.harness import Records, records, running, settings
from tests.fixtures.postgres import Clock


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    DONE.clear()
    GO.clear()
    async with records(database) as found:
        yield found


async def seen(what: str, run_id: int, times: int = 1) -> None:
    """Wait until an agent has noted this so often."""
    until = time.monotonic() + 15
    while DONE.count((what, run_id)) < times:
        assert time.monotonic() < until, f"{what}: {DONE}"
        await asyncio.sleep(0.02)


async def test_two_attempts_of_one_run_in_one_worker_do_not_clash(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "linger", "stubborn": 0.5})
    async with running(settings(database, drain_seconds=15.0)) as stop:
        await seen("linger", job_id)
        with db.connect(database, name="test") as session:
            operate.cancel(session, job_id, operate.Act("ada"))
            operate.retry(session, job_id, operate.Act("ada"))
        await seen("linger", job_id, times=2)
        await seen("lingered", job_id)
        await asyncio.sleep(0.3)  # the old attempt is refused by the fence and forgotten
        stop.set()
        await asyncio.sleep(0.5)
        GO.set()
    job = await view.job(job_id)
    assert (job["status"], job["result"]["title"]) == ("SUCCEEDED", "done"), "the drain waited for the newer attempt"


async def test_runs_that_are_reclaimed_again_come_back_spread_out(view: Records, database: str, clock: Clock) -> None:
    runs = [await view.add("doer", {"n": number}) for number in range(40)]
    lease = claim.Lease(uuid.uuid4(), seconds=30, deadline_seconds=900)
    delays: list[list[float]] = []
    async with await db.connect_async(database, name="test") as session:
        for _ in range(2):
            clock.advance(60)
            await claim.promote(session)
            assert len(await claim.claim(session, lease, ["doer"], 100)) == len(runs)
            clock.advance(31)
            assert await claim.reclaim(session) == len(runs)
            rows = await view.all(
                "SELECT extract(epoch FROM greatest(run_after - rowcall.now(), interval '0'))::float AS delay"
                " FROM rowcall.agent_jobs"
            )
            delays.append([row["delay"] for row in rows])
    assert set(delays[0]) == {0.0}, "after one lost attempt a run goes on at once"
    assert len(set(delays[1])) > 30 and max(delays[1]) > 1, "later they must not all meet again in one claim"


class Answer(BaseModel):
    """What the agent would answer."""

    n: int


async def test_the_server_ends_an_outcome_that_hangs_at_the_runs_deadline(view: Records, database: str) -> None:
    agent = Agent(name="doer", version=1, answer=Answer)

    @agent.write
    async def write(tx: Transaction, message: Change | Event, answer: Answer) -> None:
        await tx.execute("INSERT INTO public.effects (n) VALUES (7)")
        await tx.execute("SELECT pg_sleep(8)")

    job_id = await view.add("doer")
    async with await db.connect_async(database, name="test") as session:
        await claim.promote(session)
        (job,) = await claim.claim(session, claim.Lease(uuid.uuid4(), 30, deadline_seconds=0.5), ["doer"], 1)
    result = outcome.Outcome(job, agent, Event("e", "t", None, {}), Answer(n=1), 1, dt.datetime.now(dt.UTC))

    async def send(*_: object) -> None:
        return

    async with await db.connect_async(database, name="test") as session:
        with pytest.raises(Outage) as raised, db.translated():
            await outcome.write(session, result, send, system=1)
    assert raised.value.code == "db_25P04"
    assert (await view.job(job_id))["status"] == "RUNNING"
    assert await view.effects() == []
