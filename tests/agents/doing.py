"""Agents whose payload says what they do: `asker` asks the model, `doer` behaves in every way an agent can."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from consumer.agents.door import Agent, Context, StepKind, Tier
from consumer.errors import GiveUp, ModelUnavailable, RetryLater
from consumer.records import Event

NASTY: Final = "nul \x00, half a character \ud800, " + "x" * 1_000_000
# What agents in this process have done, in order; tests clear it.
DONE: list[tuple[str, int]] = []


# Lets attempts go on that wait for it; tests clear it.
GO = asyncio.Event()


class Note(BaseModel):
    """The answer of all agents here."""

    model_config = ConfigDict(extra="forbid")

    title: str
    score: int


asker = Agent(name="asker", version=3, answer=Note, max_attempts=5)
doer = Agent(name="doer", version=1, answer=Note)


@asker.run
async def ask(ctx: Context, event: Event) -> Note:
    """One step that fetches, one question."""
    fetched = await ctx.step("fetch", fetch, event.data, kind=StepKind.FETCH_INPUT)
    DONE.append(("asker", ctx.run_id))
    answer: Note = await ctx.ask("ask", prompt="Say something.", input=fetched)
    return answer


@asker.rule
def score_has_a_limit(event: Event, answer: Note) -> None:
    """The rule that answers break in tests."""
    if answer.score > 10:
        raise ValueError(f"score {answer.score} is above 10")


@asker.tier
def tier(event: Event, answer: Note) -> Tier:
    """Scores from 5 on wait for a person."""
    return Tier.MEDIUM if answer.score >= 5 else Tier.LOW


async def fetch(data: Any) -> Any:
    """What the model is shown."""
    DONE.append(("fetch", 0))
    return {"seen": data}


@doer.run
async def do(ctx: Context, event: Event) -> Any:
    """Behave as `event.data["do"]` says."""
    DONE.append((event.data["do"], ctx.run_id))
    return await BEHAVIOURS[event.data["do"]](ctx, event.data)


async def succeed(ctx: Context, data: Any) -> Note:
    """A short answer after a while."""
    await asyncio.sleep(data.get("seconds", 0.0))
    return Note(title="done", score=ctx.attempt)


async def boom(ctx: Context, data: Any) -> Note:
    """Fails in its first attempts."""
    if ctx.attempt <= data.get("times", 1_000):
        raise RuntimeError(data.get("text", "boom"))
    return Note(title="done", score=ctx.attempt)


async def nasty(ctx: Context, data: Any) -> Note:
    """Fails with a text that Postgres refuses, wherever the text can stand."""
    kinds: dict[str, Callable[[], Exception]] = {
        "exception": lambda: RuntimeError(NASTY),
        "give_up": lambda: GiveUp(NASTY),
        "code": lambda: GiveUp("its code is the trouble", code="a\x00b\ud800" + "c" * 10_000),
        "retry_later": lambda: RetryLater(NASTY, delay_seconds=3600),
        "for_ever": lambda: RetryLater("for ever", delay_seconds=float("inf")),
        "not_a_number": lambda: RetryLater("whenever", delay_seconds=float("nan")),
        "unavailable": lambda: ModelUnavailable(NASTY, code="model_config"),
    }
    raise kinds[data["where"]]()


async def later(ctx: Context, data: Any) -> Note:
    """Asks for another time, until that time has come."""
    if len([1 for what, run in DONE if (what, run) == ("later", ctx.run_id)]) <= data["times"]:
        raise RetryLater("not yet", delay_seconds=data["seconds"])
    return Note(title="done", score=ctx.attempt)


async def give_up(ctx: Context, data: Any) -> Note:
    """Has no hope."""
    raise GiveUp("it cannot be done")


async def duplicate(ctx: Context, data: Any) -> Note:
    """Uses one name twice."""
    await ctx.step("same", fetch, 1)
    await ctx.step("same", fetch, 2)
    return Note(title="done", score=1)


async def named(ctx: Context, data: Any) -> Note:
    """A step of a name that cannot be one."""
    await ctx.step(data["name"], fetch, 1)
    return Note(title="done", score=1)


async def unkeepable(ctx: Context, data: Any) -> Note:
    """A step that returns what cannot be kept."""
    values: dict[str, Callable[[], Any]] = {
        "object": object,
        "cycle": cycle,
        "tuple_key": lambda: {(1, 2): 3},
        "function": lambda: fetch,
        "large": lambda: "x" * (16 * 1024 * 1024),
    }
    await ctx.step("odd", values[data["value"]])
    return Note(title="done", score=1)


def cycle() -> list[Any]:
    """A list that holds itself."""
    items: list[Any] = []
    items.append(items)
    return items


def slow_square(number: int) -> int:
    """A synchronous step."""
    DONE.append(("square", number))
    time.sleep(0.05)
    return number * number


async def gather(ctx: Context, data: Any) -> Note:
    """Steps side by side, synchronous and asynchronous."""
    squares = await asyncio.gather(
        *(ctx.step(f"square {n}", slow_square, n) for n in range(5)), ctx.step("f", fetch, 1)
    )
    assert squares == [0, 1, 4, 9, 16, {"seen": 1}], squares
    if ctx.attempt == 1:
        raise RuntimeError("once more")
    return Note(title="done", score=len(squares))


LOCAL: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("local")


async def context(ctx: Context, data: Any) -> Note:
    """What a synchronous step sees of the run's context, and what it can do there with a loop of its own."""
    LOCAL.set("of the run")
    seen = await ctx.step("look", LOCAL.get)
    await ctx.step("astray", lambda: asyncio.run(ctx.http("call", "GET", data["url"])))
    return Note(title=seen, score=1)


async def block(ctx: Context, data: Any) -> Note:
    """Holds up the event loop."""
    slow_sum(data["seconds"])
    return Note(title="done", score=ctx.attempt)


def slow_sum(seconds: float) -> None:
    """Holds the thread it is called in."""
    time.sleep(seconds)


async def hang(ctx: Context, data: Any) -> Note:
    """Never ends; `stubborn` ignores the first cancellation too."""
    try:
        await ctx.step("hang", asyncio.sleep, 3600)
    except asyncio.CancelledError:
        if not data.get("stubborn"):
            raise
        await asyncio.sleep(data["stubborn"])
    return Note(title="late", score=1)


async def linger(ctx: Context, data: Any) -> Note:
    """Ignores for a while that it was taken away; its next attempt goes on until GO is set."""
    if DONE.count(("linger", ctx.run_id)) > 1:
        await GO.wait()
        return Note(title="done", score=1)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(data["stubborn"])
    DONE.append(("lingered", ctx.run_id))
    return Note(title="late", score=1)


async def own_timeout(ctx: Context, data: Any) -> Note:
    """Has a timeout of its own."""
    async with asyncio.timeout(0.01):
        await asyncio.sleep(1)
    return Note(title="done", score=1)


async def leave(ctx: Context, data: Any) -> Note:
    """Calls what only a program may call."""
    sys.exit(3)


async def cancel_itself(ctx: Context, data: Any) -> Note:
    """Waits for something that was cancelled."""
    task = asyncio.create_task(asyncio.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return Note(title="done", score=1)


async def read_sql(ctx: Context, data: Any) -> Note:
    """Sends a query through the reader."""
    rows = await ctx.step("rows", ctx.sql.rows, data["query"])
    return Note(title=str(rows), score=len(rows))


async def answer(ctx: Context, data: Any) -> Any:
    """Returns whatever the payload says."""
    return data["answer"]


async def step_then(ctx: Context, data: Any) -> Note:
    """Two steps with time between them, for leases that end in it."""
    first = await ctx.step("first", stamp, ctx.attempt)
    await asyncio.sleep(data["seconds"])
    second = await ctx.step("second", stamp, ctx.attempt)
    return Note(title=f"{first}/{second}", score=ctx.attempt)


async def stamp(attempt: int) -> int:
    """Which attempt ran this."""
    return attempt


BEHAVIOURS: Final[dict[str, Callable[[Context, Any], Awaitable[Any]]]] = {
    function.__name__: function
    for function in (
        succeed, boom, nasty, later, give_up, duplicate, named, unkeepable, gather, block, hang, linger, own_timeout,
        leave, cancel_itself, read_sql, answer, step_then, context,
    )
}  # fmt: skip
