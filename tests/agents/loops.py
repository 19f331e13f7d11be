"""Agents that set each other off, for the rules of causation on the real stack; tests/acceptance/test_causation.py.

`kind` of a row in public.things says who is woken first. Nobody is asked anything.
"""

from __future__ import annotations

import os
from typing import Any, Final

from pydantic import BaseModel

from consumer.agents.door import Agent, Context, Transaction
from consumer.records import Change, Event

MARK: Final = os.environ.get("JOURNEY_MARK", "journey")
THINGS: Final = f"{MARK}.public.things"
ECHOES: Final = f"{MARK}.public.echoes"
CALLS: Final = f"{MARK}.calls"
ANSWERS: Final = f"{MARK}.answers"
GRAINS: Final = 40


class Seen(BaseModel):
    """The row or event that was handled."""

    id: int


def _agent(name: str, *topics: str) -> Agent:
    agent = Agent(name=name, version=1, answer=Seen, topics=topics)

    @agent.run
    async def see(ctx: Context, message: Change | Event) -> Seen:
        row: Any = message.row if isinstance(message, Change) else message.data
        return Seen(id=row["id"])

    return agent


def _kind(agent: Agent, kind: str) -> None:
    @agent.when
    def when(message: Any) -> bool:
        return not isinstance(message, Change) or bool(message.row["kind"] == kind)


ping, pong = _agent("ping", THINGS), _agent("pong", ECHOES)
selfish = _agent("selfish", THINGS)
starter, caller, answerer = _agent("starter", THINGS), _agent("caller", CALLS), _agent("answerer", ANSWERS)
spreader, grain = _agent("spreader", THINGS), _agent("grain", THINGS)
asker = _agent("asker", THINGS)

AGENTS: Final[list[Agent]] = [ping, pong, selfish, starter, caller, answerer, spreader, grain, asker]

_kind(ping, "ping")
_kind(selfish, "self")
_kind(starter, "call")
_kind(spreader, "storm")
_kind(grain, "grain")
_kind(asker, "ask")


@pong.when
def is_ping(change: Change) -> bool:
    """Not what a trigger of the table writes."""
    return bool(change.row["said"] == "ping")


@ping.write
async def write_echo(tx: Transaction, change: Change, answer: Seen) -> None:
    """Writes the table that wakes pong."""
    await tx.execute(
        "INSERT INTO public.echoes VALUES (%s, 'ping') ON CONFLICT (id) DO UPDATE SET said = excluded.said", answer.id
    )


@pong.write
async def write_thing(tx: Transaction, change: Change, answer: Seen) -> None:
    """Writes the row that woke ping."""
    await tx.execute("UPDATE public.things SET touched = touched + 1 WHERE id = %s", answer.id)


@selfish.write
async def write_own(tx: Transaction, change: Change, answer: Seen) -> None:
    """Writes the very row it was woken by."""
    await tx.execute("UPDATE public.things SET touched = touched + 1 WHERE id = %s", answer.id)


@starter.write
async def call_first(tx: Transaction, change: Change, answer: Seen) -> None:
    """Begins a talk of two agents."""
    tx.emit(CALLS, key=answer.id, record=answer)


@caller.write
async def call(tx: Transaction, event: Event, answer: Seen) -> None:
    """Wakes the answerer."""
    tx.emit(ANSWERS, key=answer.id, record=answer)


@answerer.write
async def answer_back(tx: Transaction, event: Event, answer: Seen) -> None:
    """Wakes the caller."""
    tx.emit(CALLS, key=answer.id, record=answer)


@spreader.write
async def spread(tx: Transaction, change: Change, answer: Seen) -> None:
    """One run, many rows."""
    await tx.execute(
        "INSERT INTO public.things (id, kind) SELECT %s + n, 'grain' FROM generate_series(1, %s) AS n",
        answer.id, GRAINS,
    )  # fmt: skip


@asker.write
async def ask_again(tx: Transaction, message: Change | Event, answer: Seen) -> None:
    """Queues itself, without any topic in between."""
    await tx.execute(
        "SELECT rowcall.enqueue('asker', json_build_object('id', %s::bigint), key => %s::text)",
        answer.id, str(answer.id),
    )  # fmt: skip
