"""Events of producers: one identity, one trace, one form."""

from __future__ import annotations

import uuid
from concurrent.futures import Future

from consumer.errors import Outage
from consumer.kafka.records import Place
from consumer.telemetry import REGISTRY
from producers.emit import counted, identity


def test_the_same_event_has_the_same_id_wherever_it_is_made() -> None:
    assert identity("drift", "amount", "eu", 3, "warning") == uuid.UUID("773ff5a0-464a-5e2c-948b-f286f0e62ee8")


def test_parts_are_kept_apart() -> None:
    assert identity("drift", "a", "bc") != identity("drift", "ab", "c")
    assert identity("drift", "a") != identity("watchdog", "a")


def emitted(topic: str) -> float:
    return REGISTRY.get_sample_value("rowcall_emitted_total", {"topic": topic}) or 0


def test_event_counts_as_emitted_when_the_brokers_have_it_and_not_before() -> None:
    topic = f"t-{uuid.uuid4().hex}"
    confirmed, refused, dropped = (counted(topic, Future[Place]()) for _ in range(3))
    assert emitted(topic) == 0
    refused.set_exception(Outage("away", dependency="broker"))
    dropped.cancel()
    assert emitted(topic) == 0
    confirmed.set_result(Place(topic, 0))
    assert emitted(topic) == 1
