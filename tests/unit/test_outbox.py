"""An emitted record has one ID and one form however often its run emits it, and fits its schema or fails the run."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import fastavro
import orjson
import pytest
from pydantic import BaseModel

import schemas
from consumer.errors import AgentError
from consumer.outbox import RECORD_LIMIT, cause, row
from consumer.records.jobs import ClaimedJob
from consumer.wire.encode import AVRO, JSON, avro_schema

RAW = orjson.loads(schemas.load("orders.triaged") or "")
SCHEMA = avro_schema(RAW, 7)
RECORD: dict[str, Any] = {
    "order_id": 42,
    "customer_id": 3,
    "amount": Decimal("250.00"),
    "currency": "EUR",
    "risk_level": "low",
    "action": "ship",
    "title": "Normal order",
    "summary": "The amount is usual for this customer.",
}
JOB = ClaimedJob(
    id=11, agent="order-triage", epoch=1, attempt=1, max_attempts=5, input_kind="change", payload="{}", steps_done=0,
    event_id="rc1:aa", delivery=1, occurred_at=None, key="42", topic="cdc.public.orders", partition=0, offset=5,
    root_event="rc1:root", depth=2, chain=("first",), tenant="default", traceparent=None, approved_answer=None,
    approved_by=None, created_at=dt.datetime(2026, 11, 30, tzinfo=dt.UTC), stored_steps=None, lane=-1,
)  # fmt: skip


@dataclass(frozen=True)
class Sent:
    record: BaseModel | Mapping[str, Any]
    topic: str = "orders.triaged"
    key: str | None = "42"
    event_type: str = "order_triaged"


class Answer(BaseModel):
    title: str
    amount: Decimal
    at: dt.datetime


def test_another_attempt_of_the_run_emits_the_same_bytes_under_the_same_id() -> None:
    assert row("1:9", 11, 0, Sent(RECORD), SCHEMA) == row("1:9", 11, 0, Sent(dict(RECORD)), SCHEMA)


def test_the_id_recipe_is_fixed() -> None:
    assert row("1:9", 11, 0, Sent(RECORD), SCHEMA).id == uuid.UUID("f67da5a3-7d38-5354-b2e5-2b186ec9e86f")


def test_run_topic_number_and_database_each_make_another_id() -> None:
    rows = [
        row("1:9", 11, 0, Sent(RECORD), None),
        row("1:9", 12, 0, Sent(RECORD), None),
        row("1:9", 11, 1, Sent(RECORD), None),
        row("1:9", 11, 0, Sent(RECORD, topic="orders.other"), None),
        row("2:9", 11, 0, Sent(RECORD), None),
    ]
    assert len({item.id for item in rows}) == len(rows)


def test_avro_comes_back_whole_behind_the_registry_id() -> None:
    sent = row("1:9", 11, 0, Sent(RECORD), SCHEMA)
    assert sent.content_type == AVRO
    assert sent.payload[:5] == b"\x00\x00\x00\x00\x07"
    assert fastavro.schemaless_reader(io.BytesIO(sent.payload[5:]), fastavro.parse_schema(RAW), None) == RECORD


def test_a_topic_without_a_schema_carries_a_plain_json_object() -> None:
    answer = Answer(title="Grüße", amount=Decimal("1.10"), at=dt.datetime(2026, 11, 30, tzinfo=dt.UTC))
    sent = row("1:9", 11, 0, Sent(answer, topic="free"), None)
    assert sent.content_type == JSON
    assert orjson.loads(sent.payload) == {"title": "Grüße", "amount": "1.10", "at": "2026-11-30T00:00:00Z"}


def test_not_a_number_is_not_turned_into_null() -> None:
    sent = row("1:9", 11, 0, Sent({"a": float("nan"), "b": Decimal("NaN"), "c": b"\xff"}, topic="free"), None)
    assert orjson.loads(sent.payload) == {"a": "NaN", "b": "NaN", "c": "_w=="}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount": "250.00"}, "amount"), ({"amount": Decimal("1.234")}, "amount"),
        ({"amount": Decimal("NaN")}, "amount"),
        ({"risk_level": "none"}, "risk_level"), ({"order_id": None}, "order_id"), ({"order_id": 2**63}, "order_id"),
        ({"title": 5}, "title"), ({"nickname": "x"}, "nickname"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_is_refused_and_its_field_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(AgentError, match=rf"orders\.triaged.*{field}"):
        row("1:9", 11, 0, Sent(RECORD | change), SCHEMA)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(AgentError, match="field currency is missing"):
        row("1:9", 11, 0, Sent({name: value for name, value in RECORD.items() if name != "currency"}), SCHEMA)


def test_a_type_named_by_an_earlier_field_is_known_to_a_later_one() -> None:
    risk = {"type": "enum", "name": "Risk", "symbols": ["low"]}
    raw = {
        "type": "record",
        "name": "Two",
        "namespace": "rowcall.examples",
        "fields": [{"name": "first", "type": risk}, {"name": "second", "type": "Risk"}],
    }
    with pytest.raises(AgentError, match="field second"):
        row("1:9", 11, 0, Sent({"first": "low", "second": "high"}), avro_schema(raw, 1))


@pytest.mark.parametrize(
    "sent",
    [
        Sent(RECORD, topic="no spaces"), Sent(RECORD, topic=""), Sent(RECORD, topic="a" * 250),
        Sent(RECORD, topic=".."),
        Sent(RECORD, key="a\x00b"), Sent(RECORD, key="\ud800"), Sent(RECORD, event_type="\x00"),
        Sent({"f": object()}), Sent({"f": "\ud800"}),
    ],
)  # fmt: skip
def test_what_kafka_or_postgres_would_refuse_is_refused_here(sent: Sent) -> None:
    with pytest.raises(AgentError):
        row("1:9", 11, 0, sent, None)


def test_the_cause_names_root_run_depth_and_the_agents_up_to_the_sender() -> None:
    assert orjson.loads(cause(JOB)) == {
        "root": "rc1:root",
        "job": 11,
        "depth": 3,
        "chain": ["first", "order-triage@ffffffffffffffff"],
    }


def test_a_run_without_a_cause_is_its_own_root() -> None:
    first = replace(JOB, root_event=None, depth=0, chain=())
    assert orjson.loads(cause(first))["root"] == "rc1:aa"
    assert orjson.loads(cause(replace(first, event_id=None)))["root"] == "job:11"


def test_a_record_that_brokers_would_refuse_is_refused_before_it_is_written() -> None:
    with pytest.raises(AgentError, match="emit its key") as refused:
        row("1:9", 11, 0, Sent({"text": "x" * RECORD_LIMIT}, topic="plain"), None)
    assert refused.value.code == "record_too_large"
    assert (
        len(row("1:9", 11, 0, Sent({"text": "x" * (RECORD_LIMIT - 100)}, topic="plain"), None).payload) < RECORD_LIMIT
    )
