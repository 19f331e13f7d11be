"""The agent under chaos: a step, a model call, an effect on another system, its own SQL, and an event.

Loaded by the workers with ROWCALL_AGENTS=benchmarks.chaos.agents. Its effect goes through the effect ledger to the
receiver that CHAOS_RECEIVER names, with a key that is stable over all attempts. The ledger table it writes has no
unique key: a second row for one order would stay, and the log would show it.
"""

from __future__ import annotations

import os
from typing import Final

from pydantic import BaseModel, ConfigDict

from consumer.agents.door import Agent, Context, Transaction
from consumer.records import Change

ORDERS_TOPIC: Final = "cdc.public.chaos_orders"
LEDGER_TOPIC: Final = "cdc.public.chaos_ledger"
RESULT_TOPIC: Final = "chaos.done"


class Answer(BaseModel):
    """What the scripted model answers."""

    model_config = ConfigDict(extra="forbid")

    title: str


ANSWER: Final = {"title": "as scripted"}

agent = Agent(name="chaos", version=1, answer=Answer, topics=[ORDERS_TOPIC])
AGENTS: Final = [agent]


@agent.run
async def run(context: Context, change: Change) -> Answer:
    """Fetch, then ask."""
    order = await context.step("fetch", int, change.row["id"])
    answer: Answer = await context.ask("judge", prompt="Title this order.", input={"id": order})
    return answer


@agent.act
async def tell(context: Context, change: Change, answer: Answer) -> None:
    """The effect: one POST about the order, through the ledger; the receiver takes a repeated key for what it is."""
    order = change.row["id"]
    await context.http("tell", "POST", os.environ["CHAOS_RECEIVER"], key=order, json={"order": order}, idempotent=True)


@agent.write
async def write(transaction: Transaction, change: Change, answer: Answer) -> None:
    """One row of its own and one event."""
    order = change.row["id"]
    await transaction.execute("INSERT INTO public.chaos_ledger (order_id) VALUES (%s)", order)
    transaction.emit(RESULT_TOPIC, key=order, record={"order": order})
