"""The schema registry client against the real registry."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from consumer.errors import ConfigurationError, Outage, Poison
from consumer.schema_registry import SchemaRegistry
from debezium import ports
from debezium.stack import StackInfo


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Answer", "namespace": "test", "fields": [{"name": "a", "type": "int"}, *fields]}


@pytest.fixture
def subject() -> str:
    return f"test/{uuid.uuid4().hex} ü"


def test_registered_schema_is_read_by_its_id_and_keeps_it(stack: StackInfo, subject: str) -> None:
    registry = SchemaRegistry(stack.schema_registry_url)
    schema_id = registry.register(subject, record())
    other = SchemaRegistry(stack.schema_registry_url)
    assert registry.register(subject, record()) == other.register(subject, record()) == schema_id
    assert other.schema(schema_id) == record()


def test_compatible_version_gets_its_own_id_and_an_incompatible_one_is_refused(stack: StackInfo, subject: str) -> None:
    registry = SchemaRegistry(stack.schema_registry_url)
    first = registry.register(subject, record())
    assert registry.register(subject, record({"name": "b", "type": ["null", "string"], "default": None})) != first
    with pytest.raises(ConfigurationError) as error:
        registry.register(subject, record({"name": "c", "type": "string"}))
    assert subject in str(error.value)
    assert "ncompatible" in str(error.value)


def test_text_that_is_no_schema_is_refused_in_the_registrys_words(stack: StackInfo, subject: str) -> None:
    with pytest.raises(ConfigurationError, match="refuses"):
        SchemaRegistry(stack.schema_registry_url).register(subject, {"type": "nonsense"})


def test_unknown_id_is_poison_after_several_tries_and_then_at_once(stack: StackInfo) -> None:
    registry = SchemaRegistry(stack.schema_registry_url, unknown_pause_seconds=0.1)
    took = []
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Poison) as error:
            registry.schema(2**31 - 1)
        assert error.value.code == "unknown_schema"
        took.append(time.monotonic() - began)
    assert took[0] >= 0.4
    assert took[1] < 0.1


def test_registry_that_is_away_is_an_outage_and_what_was_read_stays_readable(stack: StackInfo, subject: str) -> None:
    away = SchemaRegistry(f"http://127.0.0.1:{ports.choose()}")
    for attempt in (lambda: away.schema(1), lambda: away.register(subject, record()), away.check):
        with pytest.raises(Outage) as error:
            attempt()
        assert error.value.dependency == "registry"


def test_something_else_in_the_registrys_place_is_an_outage_for_schemas(stack: StackInfo) -> None:
    registry = SchemaRegistry(stack.connect_url, unknown_pause_seconds=0.01)
    with pytest.raises(Outage):
        registry.schema(1)


def test_threads_share_one_registry(stack: StackInfo, subject: str) -> None:
    registry = SchemaRegistry(stack.schema_registry_url)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(registry.register(subject, record()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
