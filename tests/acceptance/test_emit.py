"""The one way out, on the real brokers and registry: what is emitted arrives as an event that intake can read."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from consumer.errors import ConfigurationError, Outage, Poison
from consumer.kafka import Brokers, Record, read_topic
from consumer.records import Coordinates, Event
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings, load
from consumer.telemetry import REGISTRY
from consumer.wire import Decoder
from debezium import ports
from debezium.stack import StackInfo
from producers.emit import Emitter, Produced, identity

AT = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
RECORD: dict[str, Any] = {
    "queue": "agent:x", "measure": "jobs", "turn": "raised", "episode": "e1", "value": 12.0, "threshold": 10.0,
    "detected_at": AT, "message": "12 jobs wait",
}  # fmt: skip


@pytest.fixture
def settings(stack: StackInfo) -> Settings:
    return load(
        {"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers, "SCHEMA_REGISTRY_URL": stack.schema_registry_url}
    )


@pytest.fixture
def emitter(settings: Settings) -> Iterator[Emitter]:
    made = Emitter(settings, delivery_seconds=10)
    yield made
    made.close()


def backlog(topic: str, **fields: Any) -> Produced:
    event = identity("backlog", topic, 1)
    return Produced(topic, "x", RECORD | fields, event, AT, event_type="raised", schema="backlog.threshold")


def records(settings: Settings, topic: str) -> list[Record]:
    return read_topic(settings, topic)


def test_emitted_event_arrives_as_intake_reads_it(emitter: Emitter, settings: Settings) -> None:
    topic = f"emit-{uuid.uuid4().hex}"
    emitter.prepare([(topic, "backlog.threshold")])
    assert len(Brokers(settings).topics([topic])[topic].partitions) == 6
    emitter.emit([backlog(topic)])
    (record,) = records(settings, topic)
    with SchemaRegistry(settings.schema_registry_url) as registry:
        where = Coordinates(record.topic, record.partition, record.offset)
        event = Decoder(registry.schema, epoch="1").decode(record.key, record.value, record.headers, where)
    assert isinstance(event, Event)
    assert event.data | {"detected_at": AT} == RECORD | {"oldest_seconds": None, "level": "warning"}
    assert event.id.endswith(str(identity("backlog", topic, 1)))
    assert event.occurred_at == AT
    assert event.headers["event_type"] == "raised"
    assert event.headers["traceparent"].startswith("00-" + identity("backlog", topic, 1).hex)


def test_sending_again_repeats_id_and_time(emitter: Emitter, settings: Settings) -> None:
    topic = f"emit-{uuid.uuid4().hex}"
    emitter.emit([backlog(topic)])
    emitter.emit([backlog(topic)])
    first, second = records(settings, topic)
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)


def test_record_that_does_not_fit_is_refused_and_nothing_is_sent(emitter: Emitter, settings: Settings) -> None:
    topic = f"emit-{uuid.uuid4().hex}"
    with pytest.raises(ConfigurationError, match="field value"):
        emitter.emit([backlog(topic), backlog(topic, value="many")])
    assert records(settings, topic) == []


def test_too_large_message_is_told_apart_from_an_outage(emitter: Emitter) -> None:
    with pytest.raises(Poison) as error:
        emitter.emit([backlog(f"emit-{uuid.uuid4().hex}", message="x" * 9_000_000)])
    assert error.value.code == "message_too_large"


def test_incompatible_schema_is_refused_by_the_registry(settings: Settings) -> None:
    topic = f"emit-{uuid.uuid4().hex}"
    with SchemaRegistry(settings.schema_registry_url) as registry:
        registry.register(
            f"{topic}-value", {"type": "record", "name": "Other", "fields": [{"name": "a", "type": "int"}]}
        )
    emitter = Emitter(settings)
    try:
        with pytest.raises(ConfigurationError, match="refuses the schema"):
            emitter.prepare([(topic, "backlog.threshold")])
    finally:
        emitter.close()


def test_events_that_are_handed_over_without_waiting_are_counted_when_they_are_confirmed(emitter: Emitter) -> None:
    topic = f"emit-{uuid.uuid4().hex}"
    emitter.prepare([(topic, "backlog.threshold")])
    for future in emitter.start([backlog(topic) for _ in range(3)]):
        future.result(20)
    emitter.close()
    assert REGISTRY.get_sample_value("rowcall_emitted_total", {"topic": topic}) == 3


def test_brokers_that_are_away_are_an_outage_and_nothing_counts_as_sent(settings: Settings) -> None:
    away = settings.model_copy(update={"kafka_bootstrap_servers": f"127.0.0.1:{ports.choose()}"})
    emitter = Emitter(away, delivery_seconds=2)
    try:
        with pytest.raises(Outage) as error:
            emitter.emit([backlog("emit-away")])
        assert error.value.dependency == "broker"
    finally:
        emitter.close()
