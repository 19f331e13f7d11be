"""Example: looks at each larger order that has just been paid, asks the model, writes the answer back on the order.

Woken by row changes of public.orders. Its write is itself a row change and does not wake it again; what it emits on
orders.triaged wakes `triage_notice`. An answer with a consequence waits for a person (`POLICY`).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from consumer.agents.door import Agent, Context, Reader, StepKind, Tier, Transaction
from consumer.errors import GiveUp
from consumer.records import Change

TOPIC: Final = "cdc.public.orders"
TRIAGED_TOPIC: Final = "orders.triaged"

# Amounts in the order's own currency. Up to the first nobody needs to look; from the second on somebody must.
SMALL_AMOUNT: Final = Decimal(100)
LARGE_AMOUNT: Final = Decimal(10_000)

Action = Literal["ship", "watch", "contact_customer", "hold_shipment"]
# What an action may do by itself. Shipping a paid order and keeping an eye on it change nothing for the customer.
POLICY: Final[Mapping[Action, Tier]] = {
    "ship": Tier.LOW,
    "watch": Tier.LOW,
    "contact_customer": Tier.MEDIUM,
    "hold_shipment": Tier.HIGH,
}

# One line of plain words, for it is written into a column that pages show. The lengths stand inside the patterns:
# llama.cpp's grammar follows a pattern and then forgets minLength and maxLength.
Title = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9 ,.'-]{7,59}$")]
Summary = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9 ,.'-]{19,119}$")]

PROMPT: Final = """\
You check paid orders of a shop. Most orders are normal: answer risk_level low and action ship.
Answer medium only when the order does not fit the customer, and high only when it looks like fraud.
risk_level low goes with action ship or watch, medium with watch or contact_customer, high with contact_customer or \
hold_shipment.
title: a few words about this order. summary: one or two plain sentences with the reason.
Example: {"risk_level": "low", "action": "ship", "title": "Normal order of a known customer", \
"summary": "The amount is usual for this customer and the order is paid."}"""


class Triage(BaseModel):
    """What the model decides about one order. The fields stand in the order in which it has to decide them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    risk_level: Literal["low", "medium", "high"]
    action: Action
    title: Title
    summary: Summary


agent = Agent(
    name="order-triage",
    version=1,
    topics=[TOPIC],
    answer=Triage,
    description="Rates each larger paid order and writes title, risk and action on it.",
)


@agent.when
def worth_a_look(change: Change) -> bool:
    """An order has just become paid, by insert or update, and is not small."""
    amount = change.row.get("amount")
    return (
        change.became("status", "paid") and isinstance(amount, Decimal) and amount.is_finite() and amount > SMALL_AMOUNT
    )


@agent.run
async def triage(ctx: Context, change: Change) -> Triage:
    """Fetch the customer, then ask the model about order and customer."""
    customer = await ctx.step(
        "fetch_customer", fetch_customer, ctx.sql, change.row["customer_id"], kind=StepKind.FETCH_INPUT
    )
    answer: Triage = await ctx.ask("triage", prompt=PROMPT, input=brief(change.row, customer))
    return answer


async def fetch_customer(sql: Reader, customer_id: int) -> dict[str, Any]:
    """The customer's row as far as the model needs it.

    Raises:
        GiveUp: when the customer is gone; no later attempt would find them.
    """
    rows = await sql.rows(
        "SELECT name, country, segment, credit_limit, customer_since FROM public.customers WHERE id = %s", customer_id
    )
    if not rows:
        raise GiveUp(f"customer {customer_id} of this order does not exist")
    return rows[0]


def brief(order: Mapping[str, Any], customer: Mapping[str, Any]) -> dict[str, Any]:
    """What the model is shown: no more of the order than the question needs."""
    shown = ("id", "amount", "currency", "discount_percent", "placed_at", "paid_at")
    return {"order": {column: order.get(column) for column in shown}, "customer": dict(customer)}


@agent.rule
def action_fits_risk(change: Change, answer: Triage) -> None:
    """Each risk level has its actions."""
    fitting = {
        "low": ("ship", "watch"),
        "medium": ("watch", "contact_customer"),
        "high": ("contact_customer", "hold_shipment"),
    }[answer.risk_level]
    if answer.action not in fitting:
        raise ValueError(
            f"action {answer.action} does not fit risk_level {answer.risk_level}; use {' or '.join(fitting)}"
        )


@agent.rule
def large_orders_are_not_waved_through(change: Change, answer: Triage) -> None:
    """A very large order is at least watched."""
    if change.row["amount"] >= LARGE_AMOUNT and answer.action == "ship":
        raise ValueError(f"an order of {LARGE_AMOUNT} or more cannot have the action ship; use watch at least")


@agent.rule
def summary_adds_something(change: Change, answer: Triage) -> None:
    """A summary that repeats the title gives no reason."""
    if answer.summary.rstrip(".").casefold() == answer.title.rstrip(".").casefold():
        raise ValueError("summary repeats title; give the reason instead")


@agent.tier
def tier(change: Change, answer: Triage) -> Tier:
    """What the action may do by itself, or more where the model sees more risk; it cannot talk itself lower."""
    return max(POLICY[answer.action], Tier(answer.risk_level))


@agent.preview
def columns(change: Change, answer: Triage) -> dict[str, Any]:
    """What the answer sets on the order's row."""
    return {"triage": answer.title, "triage_risk": answer.risk_level, "triage_action": answer.action}


@agent.write
async def write(tx: Transaction, change: Change, answer: Triage) -> None:
    """The answer on the order's row, and the news of it."""
    order = change.row
    await tx.update(change, columns(change, answer))
    record = {
        "order_id": order["id"],
        "customer_id": order["customer_id"],
        "amount": order["amount"],
        "currency": order["currency"],
        **answer.model_dump(),
    }
    tx.emit(TRIAGED_TOPIC, key=order["id"], record=record, event_type="order_triaged")
