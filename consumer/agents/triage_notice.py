"""Example: one agent wakes another. Turns each record on orders.triaged into a row of public.notices.

Woken by events that `order_triage` emits through the outbox. Asks no model: an agent is a run with steps, whatever the
steps do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from consumer.agents.door import Agent, Context, Transaction
from consumer.agents.order_triage import TRIAGED_TOPIC
from consumer.records import Event


class Notice(BaseModel):
    """One line for the people who watch orders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order_id: int
    text: str = Field(min_length=1, max_length=200)


agent = Agent(
    name="triage-notice",
    version=1,
    topics=[TRIAGED_TOPIC],
    answer=Notice,
    description="Writes a notice for each triaged order.",
)


@agent.run
async def announce(ctx: Context, event: Event) -> Notice:
    """One step, kept like any other."""
    return Notice.model_validate(await ctx.step("compose", compose, event.data))


def compose(triaged: Mapping[str, Any]) -> dict[str, Any]:
    """The notice of one record on orders.triaged."""
    line = f"order {triaged['order_id']}: {triaged['action']}, risk {triaged['risk_level']} ({triaged['title']})"
    return {"order_id": triaged["order_id"], "text": line[:200]}


@agent.write
async def write(tx: Transaction, event: Event, answer: Notice) -> None:
    """One row an event, however often the event comes."""
    await tx.execute(
        "INSERT INTO public.notices (event_id, order_id, text) VALUES (%s, %s, %s) ON CONFLICT (event_id) DO NOTHING",
        event.id,
        answer.order_id,
        answer.text,
    )
