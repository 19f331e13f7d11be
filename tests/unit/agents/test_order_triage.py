"""order-triage wakes for larger orders that become paid, refuses answers against its rules, and never lowers a tier."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from consumer.agents.door import Tier
from consumer.agents.order_triage import POLICY, TRIAGED_TOPIC, Triage, agent, brief, fetch_customer
from consumer.errors import GiveUp
from consumer.records import Change, Operation, Origin

ORIGIN = Origin("cdc", "shop", "public", "orders", txid=7, lsn=9, committed_ms=1_790_000_000_000)
ORDER: dict[str, Any] = {
    "id": 42,
    "customer_id": 3,
    "amount": Decimal("250.00"),
    "currency": "EUR",
    "discount_percent": None,
    "status": "paid",
    "details": {},
    "placed_at": dt.datetime(2026, 11, 30, 9, tzinfo=dt.UTC),
    "paid_at": dt.datetime(2026, 11, 30, 9, 5, tzinfo=dt.UTC),
    "triage": None,
    "triage_risk": None,
    "triage_action": None,
}


def change(after: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None) -> Change:
    operation = Operation.DELETE if after is None else Operation.UPDATE if before is not None else Operation.CREATE
    return Change("rc1:1", operation, before, after, {"id": 42}, ORIGIN)


def triage(**fields: Any) -> Triage:
    values = {
        "risk_level": "low",
        "action": "ship",
        "title": "Normal order",
        "summary": "The amount is usual for this customer.",
    }
    return Triage.model_validate(values | fields, strict=True)


PAID = change(ORDER)


class Rows:
    def __init__(self, *rows: dict[str, Any]) -> None:
        self.answer = list(rows)
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        self.asked.append((query, parameters))
        return self.answer


class Written:
    def __init__(self) -> None:
        self.updates: list[Mapping[str, Any]] = []
        self.emitted: list[tuple[str, object, Any]] = []

    async def execute(self, statement: str, *parameters: Any) -> int:
        raise AssertionError(f"unexpected statement {statement} {parameters}")

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        raise AssertionError(f"unexpected query {query} {parameters}")

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        self.updates.append(columns)

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        self.emitted.append((topic, key, record))


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (ORDER, None),
        (ORDER, ORDER | {"status": "open"}),
        (ORDER | {"amount": Decimal("100.01")}, ORDER | {"status": "open", "amount": Decimal("5.00")}),
    ],
)
def test_wakes_when_a_larger_order_becomes_paid(after: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    assert agent.wants(change(after, before))


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (ORDER | {"status": "open"}, None),
        (ORDER | {"amount": Decimal("100.00")}, None),
        (ORDER | {"amount": Decimal("NaN")}, None),
        (ORDER, ORDER | {"discount_percent": 5}),  # paid before already
        (ORDER | {"status": "shipped"}, ORDER),
        (None, ORDER),
    ],
)
def test_sleeps_through_every_other_change(after: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> None:
    assert not agent.wants(change(after, before))


def test_its_own_write_would_not_wake_it() -> None:
    assert not agent.wants(change(ORDER | {"triage": "Normal order"}, ORDER))


@pytest.mark.parametrize(
    ("risk", "action"),
    [
        ("low", "ship"), ("low", "watch"), ("medium", "watch"),
        ("medium", "contact_customer"), ("high", "contact_customer"), ("high", "hold_shipment"),
    ],
)  # fmt: skip
def test_a_fitting_action_breaks_no_rule(risk: str, action: str) -> None:
    assert agent.broken_rules(PAID, triage(risk_level=risk, action=action)) == []


@pytest.mark.parametrize(
    ("risk", "action"),
    [("low", "hold_shipment"), ("low", "contact_customer"), ("medium", "ship"), ("high", "ship"), ("high", "watch")],
)
def test_an_action_that_does_not_fit_the_risk_is_named(risk: str, action: str) -> None:
    (sentence,) = agent.broken_rules(PAID, triage(risk_level=risk, action=action))
    assert action in sentence and risk in sentence


def test_a_very_large_order_is_not_waved_through() -> None:
    large = change(ORDER | {"amount": Decimal("10000.00")})
    assert agent.broken_rules(large, triage(action="ship"))
    assert not agent.broken_rules(large, triage(action="watch"))


def test_a_summary_must_add_to_the_title() -> None:
    assert agent.broken_rules(PAID, triage(title="The amount is usual here", summary="The amount is usual here."))


@pytest.mark.parametrize(
    "fields",
    [
        {"risk_level": "none"}, {"action": "refund"}, {"title": "Short"}, {"title": "x" * 61}, {"summary": "Too short"},
        {"title": "<b>Normal order</b>"}, {"title": "Two lines\nof title"}, {"extra": 1},
    ],
)  # fmt: skip
def test_an_answer_outside_the_schema_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        triage(**fields)


def test_the_policy_covers_each_action_the_model_may_name() -> None:
    assert set(POLICY) == set(Triage.model_json_schema()["properties"]["action"]["enum"])


@pytest.mark.parametrize(
    ("risk", "action", "tier"),
    [
        ("low", "ship", Tier.LOW), ("low", "watch", Tier.LOW), ("medium", "watch", Tier.MEDIUM),
        ("medium", "contact_customer", Tier.MEDIUM), ("low", "hold_shipment", Tier.HIGH),
        ("high", "contact_customer", Tier.HIGH),
    ],
)  # fmt: skip
def test_the_model_may_raise_the_tier_and_never_lower_it(risk: str, action: str, tier: Tier) -> None:
    assert agent.tier_of(PAID, triage(risk_level=risk, action=action)) is tier


async def test_a_missing_customer_ends_the_run_for_good() -> None:
    with pytest.raises(GiveUp, match="customer 3"):
        await fetch_customer(Rows(), 3)


async def test_the_customer_is_asked_for_by_parameter() -> None:
    rows = Rows({"name": "Ada"})
    assert await fetch_customer(rows, 3) == {"name": "Ada"}
    ((query, parameters),) = rows.asked
    assert parameters == (3,) and query.count("%s") == 1


def test_the_model_sees_null_as_null_and_nothing_of_its_own_answer() -> None:
    shown = brief(ORDER, {"name": "Ada"})
    assert shown["order"]["discount_percent"] is None
    assert "triage" not in shown["order"]


async def test_the_answer_goes_to_the_row_and_to_the_topic() -> None:
    written = Written()
    await agent.put(written, PAID, triage())
    assert written.updates == [{"triage": "Normal order", "triage_risk": "low", "triage_action": "ship"}]
    ((topic, key, record),) = written.emitted
    assert (topic, key, record["order_id"], record["amount"]) == (TRIAGED_TOPIC, 42, 42, Decimal("250.00"))
