"""Agents that are woken by some changes only, for triggers on the real stack; tests/acceptance/test_triggers.py.

`kind` of a row in public.things says whose row it is. Nobody is asked anything; each answers with what it saw.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel

from consumer.agents.door import Agent, Coalesce, Context, Transaction
from consumer.agents.schedule import Schedule
from consumer.records import Change, Event

MARK: Final = os.environ.get("JOURNEY_MARK", "journey")
THINGS: Final = f"{MARK}.public.things"
CALLS: Final = f"{MARK}.calls"
ANSWERS: Final = f"{MARK}.answers"
WINDOW: Final = dt.timedelta(seconds=4)


class Seen(BaseModel):
    """One column of the row before and after the change; how many later changes were taken in."""

    before: str | int | None
    after: str | int | None
    merged: int


class Heard(BaseModel):
    """The number that is handed on from agent to agent."""

    id: int


def _watcher(name: str, column: str, when: Callable[[Change], bool], **options: Any) -> Agent:
    """An agent that is woken by changes of `when` and says what became of the column."""
    agent = Agent(name=name, version=1, answer=Seen, topics=[THINGS], **options)
    agent.when(when)

    @agent.run
    async def see(ctx: Context, change: Change) -> Seen:
        before, after = ((row[column] if row else None) for row in (change.before, change.after))
        return Seen(before=before, after=after, merged=ctx.merged)

    return agent


def _measured(change: Change) -> bool:
    return bool(change.row["kind"] == "measured")


gatherer = _watcher(
    "gatherer", "name", lambda change: change.row["kind"] == "gather" and change.before is not None,
    coalesce=Coalesce(WINDOW),
)  # fmt: skip
noted = _watcher("noted", "name", lambda change: change.row["kind"] == "noted", columns=["name"])
riser = _watcher("riser", "whole", lambda change: _measured(change) and change.rose("whole"))
changer = _watcher("changer", "name", lambda change: _measured(change) and change.changed("name"))


def _has_left_open(change: Change) -> bool:
    before, after = change.before, change.after
    return bool(_measured(change) and before and after and before["text"] == "open" and after["text"] != "open")


leaver = _watcher("leaver", "text", _has_left_open)


def _link(name: str, *topics: str) -> Agent:
    """An agent of the chain that a schedule begins."""
    agent = Agent(name=name, version=1, answer=Heard, topics=topics)

    @agent.run
    async def hear(ctx: Context, message: Change | Event) -> Heard:
        row: Any = message.row if isinstance(message, Change) else message.data
        # A tick carries its schedule's payload within.
        return Heard(id=int(row["payload"]["id"] if "payload" in row else row["id"]))

    return agent


ticker, hearer, rower, last = _link("ticker"), _link("hearer", CALLS), _link("rower", THINGS), _link("last", ANSWERS)


@ticker.write
async def call(tx: Transaction, event: Event, answer: Heard) -> None:
    """Wakes the hearer by an event."""
    tx.emit(CALLS, key=answer.id, record=answer)


@hearer.write
async def put_row(tx: Transaction, event: Event, answer: Heard) -> None:
    """Wakes the rower by a row."""
    await tx.execute("INSERT INTO public.things (id, kind) VALUES (%s, 'heard')", answer.id)


@rower.when
def was_heard(change: Change) -> bool:
    """Not the rows of the others."""
    return bool(change.row["kind"] == "heard")


@rower.write
async def say_on(tx: Transaction, change: Change, answer: Heard) -> None:
    """Wakes the last one by an event."""
    tx.emit(ANSWERS, key=answer.id, record=answer)


AGENTS: Final[list[Agent]] = [gatherer, noted, riser, changer, leaver, ticker, hearer, rower, last]
SCHEDULES: Final[list[Schedule]] = [
    Schedule(name="runs", cron="* * * * * *", agent="ticker", payload={"id": "1{slot:%H%M%S}"}),
    Schedule(name="ticks", cron="* * * * * *", topic=CALLS, payload={"id": "2{slot:%H%M%S}"}),
]
