"""Agents with policies of their own: `patient` tries steps again, `picky` chooses errors, `brief` has a deadline."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from consumer.agents.door import Agent, Context, Retry
from consumer.errors import Cancel, RetryLater, Snooze
from consumer.records import Event
from tests.agents.doing import Note

# How often each function of a run was called in this process.
CALLS: Counter[tuple[int, str]] = Counter()
# What synchronous functions that overran have come to.
LATE: list[tuple[int, str]] = []
QUICK: Final = Retry(base_seconds=0.02, cap_seconds=0.05, attempts=3)

patient = Agent(name="patient", version=1, answer=Note, max_postponements=3)
picky = Agent(
    name="picky", version=1, answer=Note,
    retry=Retry(base_seconds=0.02, attempts=3, only=(LookupError, ArithmeticError), never=KeyError),
)  # fmt: skip
brief = Agent(name="brief", version=1, answer=Note, deadline_seconds=0.4, max_attempts=1)
ALL: Final = [patient, picky, brief]


@patient.run
async def run(ctx: Context, event: Event) -> Note:
    """As the payload says."""
    return await BEHAVIOURS[event.data["do"]](ctx, event.data)


@picky.run
async def pick(ctx: Context, event: Event) -> Note:
    """Raises the error that the payload names, until its last attempt."""
    CALLS[ctx.run_id, "run"] += 1
    errors: dict[str, type[Exception]] = {"index": IndexError, "key": KeyError, "value": ValueError}
    if ctx.attempt < 3:
        raise errors[event.data["error"]]("x")
    return Note(title="done", score=ctx.attempt)


@brief.run
async def hurry(ctx: Context, event: Event) -> Note:
    """Takes longer than it may."""
    await asyncio.sleep(30)
    return Note(title="late", score=1)


async def flaky(ctx: Context, data: Any) -> Note:
    """A step before, and one that fails in its first tries."""

    def before() -> int:
        CALLS[ctx.run_id, "before"] += 1
        return 1

    async def fails() -> int:
        CALLS[ctx.run_id, "fails"] += 1
        if CALLS[ctx.run_id, "fails"] <= data["times"]:
            raise ConnectionError("the other side is away")
        return CALLS[ctx.run_id, "fails"]

    await ctx.step("before", before)
    return Note(title="done", score=await ctx.step("flaky", fails, retry=QUICK))


async def overruns(ctx: Context, data: Any) -> Note:
    """A step that takes too long in its first tries; its thread goes on all the same."""

    def blocks() -> str:
        CALLS[ctx.run_id, "blocks"] += 1
        tried = CALLS[ctx.run_id, "blocks"]
        if tried <= data["times"]:
            time.sleep(0.4)
            LATE.append((ctx.run_id, f"try {tried}"))
        return f"try {tried}"

    async def waits() -> str:
        CALLS[ctx.run_id, "waits"] += 1
        if CALLS[ctx.run_id, "waits"] <= data["times"]:
            await asyncio.sleep(30)
        return f"try {CALLS[ctx.run_id, 'waits']}"

    retry = QUICK if data.get("retry") else None
    function: Callable[[], Any] = blocks if data["thread"] else waits
    title = await ctx.step("slow", function, retry=retry, timeout_seconds=0.1)
    await asyncio.sleep(data.get("then", 0.0))
    return Note(title=title, score=ctx.attempt)


async def no_time(ctx: Context, data: Any) -> Note:
    """A timeout that is none."""
    await ctx.step("s", asyncio.sleep, 0, timeout_seconds=-1)
    return Note(title="done", score=1)


async def cancels(ctx: Context, data: Any) -> Note:
    """Finds, in a step, that there is nothing to do."""

    async def look() -> None:
        raise Cancel("the order was withdrawn")

    await ctx.step("look", look, retry=QUICK)
    return Note(title="done", score=1)


async def snoozes(ctx: Context, data: Any) -> Note:
    """Until a time, once."""
    CALLS[ctx.run_id, "run"] += 1
    if CALLS[ctx.run_id, "run"] == 1:
        raise Snooze("after lunch", until=dt.datetime.fromisoformat(data["until"]))
    return Note(title="done", score=ctx.attempt)


async def for_ever(ctx: Context, data: Any) -> Note:
    """Never has the time."""
    CALLS[ctx.run_id, "run"] += 1
    raise RetryLater("not yet", delay_seconds=0.0)


BEHAVIOURS: Final[dict[str, Callable[[Context, Any], Awaitable[Note]]]] = {
    function.__name__: function for function in (flaky, overruns, no_time, cancels, snoozes, for_ever)
}
