"""Agents for whole journeys, from a committed row to a record on a topic; tests/fixtures/world.py runs them.

Their topics begin with JOURNEY_MARK, so that no two worlds meet. `kind` of a row in public.things says who is woken.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from consumer.agents.door import Agent, Context, Transaction
from consumer.agents.order_triage import TRIAGED_TOPIC
from consumer.records import Change, Event

MARK: Final = os.environ.get("JOURNEY_MARK", "journey")
THINGS: Final = f"{MARK}.public.things"
ECHOES: Final = f"{MARK}.public.echoes"
FOOD: Final = f"{MARK}.food"


class Note(BaseModel):
    """What the model answers."""

    model_config = ConfigDict(extra="forbid")

    title: str
    score: int


class Seen(BaseModel):
    """What an agent that asks nobody saw."""

    id: int
    nulls: list[str] = []


def _reader(name: str, *topics: str) -> Agent:
    agent = Agent(name=name, version=1, answer=Seen, topics=topics)

    @agent.run
    async def see(ctx: Context, message: Change | Event) -> Seen:
        row: Any = message.row if isinstance(message, Change) else message.data
        number = row["id"] if "id" in row else row["order_id"]
        return Seen(id=number, nulls=sorted(name for name in row if row[name] is None))

    return agent


writer = Agent(name="writer", version=1, answer=Note, topics=[THINGS, ECHOES])
loader = Agent(name="loader", version=1, answer=Note, topics=[THINGS])
every = _reader("every", THINGS)
sampler = _reader("sampler", THINGS)
nuller = _reader("nuller", THINGS)
sulky = _reader("sulky", THINGS)
observer = _reader("observer", THINGS, ECHOES)
chained = _reader("chained", TRIAGED_TOPIC)
eater = _reader("eater", FOOD)

AGENTS: Final[list[Agent]] = [writer, loader, every, sampler, nuller, sulky, observer, chained, eater]


@writer.when
def is_to_be_written(change: Change) -> bool:
    """Holds for what the agent writes itself, too."""
    return bool(change.row.get("kind", "write") == "write")


@writer.run
async def think(ctx: Context, change: Change) -> Note:
    """One question."""
    answer: Note = await ctx.ask("ask", prompt="Say something.", input={"id": change.row["id"]})
    return answer


@writer.write
async def write(tx: Transaction, change: Change, answer: Note) -> None:
    """Writes the row, writes it again inside a savepoint, and a trigger writes another table; then a record."""
    await tx.update(change, {"note": answer.title})
    await tx.execute("SELECT public.touch(%s)", change.row["id"])
    triaged = {
        "order_id": change.row["id"],
        "customer_id": 1,
        "amount": Decimal("1.50"),
        "currency": MARK,
        "risk_level": "low",
        "action": "ship",
        "title": answer.title,
        "summary": "",
    }
    tx.emit(TRIAGED_TOPIC, key=change.row["id"], record=triaged, event_type="order.triaged")


@loader.when
def is_load(change: Change) -> bool:
    """One question a row."""
    return bool(change.row["kind"] == "load")


@loader.run
async def ask(ctx: Context, change: Change) -> Note:
    """A step, then one question."""
    fetched = await ctx.step("fetch", int, change.row["id"])
    answer: Note = await ctx.ask("ask", prompt="Say something.", input={"id": fetched})
    return answer


@loader.write
async def keep(tx: Transaction, change: Change, answer: Note) -> None:
    """An effect that cannot happen twice unseen: the table has no unique key."""
    await tx.execute("INSERT INTO public.effects (thing) VALUES (%s)", change.row["id"])
    tx.emit(f"{MARK}.loaded", key=change.row["id"], record={"id": change.row["id"]})


@every.when
def is_bulk(change: Change) -> bool:
    """All of a stream."""
    return bool(change.row["kind"] == "bulk")


@sampler.when
def is_sample(change: Change) -> bool:
    """One in a hundred."""
    return bool(change.row["kind"] == "bulk" and change.row["id"] % 100 == 0)


@sampler.write
async def count(tx: Transaction, change: Change, answer: Seen) -> None:
    """An effect."""
    await tx.execute("INSERT INTO public.effects (thing) VALUES (%s)", answer.id)


@nuller.when
def is_null(change: Change) -> bool:
    """Rows full of NULL."""
    return bool(change.row["kind"] == "null")


@sulky.when
def is_bearable(change: Change) -> bool:
    """Raises until the file is gone."""
    if change.row["kind"] == "sulk" and Path(os.environ["JOURNEY_SULK"]).exists():
        raise LookupError("no such mood")
    return bool(change.row["kind"] == "sulk")


@observer.when
def is_written(change: Change) -> bool:
    """What the writer has written."""
    return bool(change.row.get("kind", "write") == "write" and (change.before is not None or "kind" not in change.row))


@chained.when
def is_ours(event: Event) -> bool:
    """The topic is everybody's."""
    return bool(event.data["currency"] == MARK)
