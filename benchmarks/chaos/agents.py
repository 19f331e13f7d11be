"""The agent under chaos: a step, a model call, an effect on another system, its own SQL, and an event.

Loaded by the workers with ROWCALL_AGENTS=benchmarks.chaos.agents. Its effect goes to the receiver that CHAOS_RECEIVER
names, with a key that is stable over all attempts. The ledger it writes has no unique key: a second row for one order
would stay, and the log would show it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

import httpx
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
    """Fetch, ask, tell the receiver."""
    order = await context.step("fetch", int, change.row["id"])
    answer: Answer = await context.ask("judge", prompt="Title this order.", input={"id": order})
    await context.step("tell", tell, order, context.idempotency_key)
    return answer


@agent.write
async def write(transaction: Transaction, change: Change, answer: Answer) -> None:
    """One row of its own and one event."""
    order = change.row["id"]
    await transaction.execute("INSERT INTO public.chaos_ledger (order_id) VALUES (%s)", order)
    transaction.emit(RESULT_TOPIC, key=order, record={"order": order})


@cache
def _client() -> httpx.AsyncClient:
    """One client a worker process; there is one event loop in it."""
    return httpx.AsyncClient(timeout=30, trust_env=False)


async def tell(order: int, key: str) -> int:
    """The effect: one POST about the order; the status."""
    request = {"order": order}
    answer = await _client().post(os.environ["CHAOS_RECEIVER"], json=request, headers={"Idempotency-Key": key})
    return answer.raise_for_status().status_code
