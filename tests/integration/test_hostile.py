"""Agents, users and rows that do what they should not: nobody else is hurt, and nothing lands past the fence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, computed_field

from consumer import claim, db
from consumer.agents.door import Agent, Context, Transaction
from consumer.errors import GiveUp
from consumer.executor.commit import GroupCommit
from consumer.executor.loop import run_executor
from consumer.records import Event
from tests.agents.harness import Records, records, settings


class Answer(BaseModel):
    """An answer of these agents."""

    n: int


def agent(name: str, write: Any = None, run: Any = None) -> Agent:
    """An agent that answers at once, with a write of its own."""
    made = Agent(name=name, version=1, answer=Answer)

    async def answer(ctx: Context, event: Event) -> Answer:
        return Answer(n=ctx.run_id)

    made.run(run or answer)
    if write is not None:
        made.write(write)
    return made


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database) as opened:
        yield opened


async def play(view: Records, database: str, agents: list[Agent], **changed: Any) -> tuple[asyncio.Event, Any]:
    """Start an executor with these agents."""
    for one in agents:
        await view.execute("INSERT INTO rowcall.agents (name, version) VALUES (%s, 1)", one.name)
    stop = asyncio.Event()
    return stop, asyncio.create_task(run_executor(settings(database, **changed), agents, stop))


async def test_runs_whose_neighbours_roll_back_do_not_fail(database: str, view: Records) -> None:
    async def sometimes(tx: Transaction, event: Event, answer: Answer) -> None:
        await tx.execute("INSERT INTO public.effects (n, text) VALUES (%s, 'x')", answer.n)
        if answer.n % 3 == 0:
            raise GiveUp("rolled back")

    stop, task = await play(view, database, [agent("sometimes", sometimes)])
    ids = [await view.add("sometimes") for _ in range(150)]
    ended = {job_id: (await view.wait(job_id, seconds=30))["error_code"] for job_id in ids}
    stop.set()
    await task
    assert {code for job_id, code in ended.items() if job_id % 3} == {None}
    assert await view.effects() == [job_id for job_id in ids if job_id % 3]


async def test_a_transaction_that_an_agent_keeps_is_closed_before_anything_else_can_be_written(
    database: str, view: Records
) -> None:
    late: list[asyncio.Task[int]] = []

    async def forgets(tx: Transaction, event: Event, answer: Answer) -> None:
        async def later() -> int:
            await asyncio.sleep(0.2)
            return await tx.execute("INSERT INTO public.effects (n, text) VALUES (1, 'past the fence')")

        late.append(asyncio.create_task(later()))
        raise GiveUp("nothing of this run may land")

    stop, task = await play(view, database, [agent("forgets", forgets)])
    job = await view.wait(await view.add("forgets"))
    (outcome,) = await asyncio.gather(*late, return_exceptions=True)
    stop.set()
    await task
    assert "the outcome transaction is over" in str(outcome)
    assert (job["status"], await view.effects()) == ("FAILED", [])


class Half(Answer):
    """An answer that is valid and has no JSON that could be stored."""

    @computed_field
    def text(self) -> str:
        return "half \ud800"


async def test_an_answer_that_cannot_be_written_down_ends_its_attempt_and_no_lease(
    database: str, view: Records
) -> None:
    async def run(ctx: Context, event: Event) -> Half:
        return Half(n=1)

    half = Agent(name="half", version=1, answer=Half)
    half.run(run)
    stop, task = await play(view, database, [half])
    job = await view.wait(await view.add("half", attempts=2), seconds=8)
    stop.set()
    await task
    assert (job["status"], job["error_code"], job["losses"]) == ("FAILED", "agent_exception", 0)
    assert "attempt 2 of 2: PydanticSerializationError" in job["last_error"]


@pytest.mark.parametrize("where", ["in the database", "in python"])
async def test_the_hard_deadline_ends_an_outcome_that_hangs(database: str, view: Records, where: str) -> None:
    async def hangs(tx: Transaction, event: Event, answer: Answer) -> None:
        await tx.execute("INSERT INTO public.effects (n, text) VALUES (1, 'x')")
        if where == "in python":
            await asyncio.sleep(60)
        await tx.execute("SELECT pg_sleep(60)")

    stop, task = await play(
        view, database, [agent("hangs", hangs)], run_deadline_seconds=1.5, lease_seconds=30.0, beat_seconds=10.0
    )
    began = time.monotonic()
    job = await view.wait(await view.add("hangs", attempts=1), seconds=12)
    stop.set()
    await task
    assert (job["status"], await view.effects()) == ("FAILED", [])
    assert time.monotonic() - began < 8


async def test_a_user_transaction_that_holds_a_run_holds_up_no_other_run(database: str, view: Records) -> None:
    async def steps(ctx: Context, event: Event) -> Answer:
        for number in range(5):
            await ctx.step(f"s{number}", asyncio.sleep, 0.05)
        return Answer(n=1)

    stop, task = await play(view, database, [agent("steps", run=steps)], lease_seconds=30.0, beat_seconds=10.0)
    held = await view.add("steps")
    await view.wait(held, "RUNNING")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("SELECT FROM rowcall.agent_jobs WHERE id = %s FOR UPDATE", (held,))
        others = [await view.add("steps") for _ in range(20)]
        await view.wait_all(others, seconds=15)
        assert (await view.job(held))["status"] == "RUNNING"
    assert (await view.wait(held))["status"] == "SUCCEEDED"
    stop.set()
    await task


async def test_coalescing_in_an_open_transaction_does_not_touch_the_run(database: str, view: Records) -> None:
    await view.execute("SELECT rowcall.enqueue('doer', dedupe_key => 'k')")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("SELECT rowcall.enqueue('doer', '2', dedupe_key => 'k')")
        await view.execute("SET lock_timeout = '1s'")
        await view.execute("SELECT FROM rowcall.agent_jobs FOR UPDATE")


@pytest.mark.parametrize(
    "columns",
    [
        "attempt_count) VALUES ('a', 2147483647",
        "lease_epoch) VALUES ('a', 9223372036854775807",
        "approved_answer) VALUES ('a', '{}'",
        "created_at) VALUES ('a', '0044-03-15 BC'",
        "run_after) VALUES ('a', '294276-12-31'",
        "occurred_at) VALUES ('a', '9999-12-31T23:59:59-12:00'",
        "lane_seq) VALUES ('a', 1",
        "status) VALUES ('a', 'FAILED'",
    ],
)
async def test_a_row_that_would_end_every_worker_cannot_be_born(view: Records, columns: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await view.execute(f"INSERT INTO rowcall.agent_jobs (job_type, {columns})")


async def test_a_time_that_python_lacks_loads_as_its_text(database: str) -> None:
    with db.connect(database, name="test") as session:
        row = session.execute("SELECT timestamptz '294276-12-31Z' AS far, date '0044-03-15 BC' AS old").fetchone()
    assert row is not None
    assert (row["far"][:6], row["old"]) == ("294276", "0044-03-15 BC")


@pytest.mark.parametrize(
    "broken",
    [
        "UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = now() WHERE id = %(first)s",
        "DELETE FROM rowcall.agent_jobs WHERE id = %(first)s",
        "DELETE FROM rowcall.lanes WHERE %(first)s > 0",
        "UPDATE rowcall.lanes SET ready_at = 'infinity' WHERE %(first)s > 0",
        "UPDATE rowcall.agent_jobs SET priority = 7 WHERE id = %(first)s",
        "UPDATE rowcall.lanes SET priority = -7 WHERE %(first)s > 0",
    ],
)
async def test_a_lane_that_a_statement_by_hand_has_broken_is_mended(database: str, view: Records, broken: str) -> None:
    first = await view.add("doer", key="k")
    second = await view.add("doer", key="k")
    session = await db.connect_async(database, name="test")
    await claim.promote(session)
    await session.execute(broken.encode(), {"first": first})
    assert await claim.mend_lanes(session) == 1
    assert await claim.mend_lanes(session) == 0
    head = await view.one(
        "SELECT l.head, l.ready_at <= now() AS ready, l.priority = j.priority AS same "
        "FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head"
    )
    passed = "CANCELLED" in broken or "DELETE FROM rowcall.agent_jobs" in broken
    assert (head["head"], head["ready"], head["same"]) == (second if passed else first, True, True)
    await session.close()


async def test_a_group_is_bounded_by_its_bytes(database: str) -> None:
    sizes: list[list[int]] = []

    async def write(_: db.Session, items: Any) -> list[int]:
        sizes.append(list(items))
        return list(items)

    pool = await db.open_pool(database, name="test", size=1, idle_seconds=5)
    megabyte = 1024 * 1024
    group = GroupCommit[int, int](pool, write, name="t", patience=1, weigh=lambda size: size)
    await asyncio.gather(*(group.submit(15 * megabyte) for _ in range(5)), group.submit(1))
    await pool.close()
    assert sum(len(items) for items in sizes) == 6
    assert max(sum(items) for items in sizes) <= 32 * megabyte
