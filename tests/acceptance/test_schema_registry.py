"""The schema registry client against the real registry."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import schemas
from consumer.errors import ConfigurationError, Outage, Poison
from consumer.schema_registry import SchemaRegistry
from debezium import ports
from debezium.stack import StackInfo


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Answer", "namespace": "test", "fields": [{"name": "a", "type": "int"}, *fields]}


@pytest.fixture
def registry(stack: StackInfo) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(stack.schema_registry_url, unknown_pause_seconds=0.1) as client:
        yield client


@pytest.fixture
def subject() -> str:
    return f"test/{uuid.uuid4().hex} ü"


def test_registered_schema_is_read_by_its_id_and_keeps_it(
    registry: SchemaRegistry, stack: StackInfo, subject: str
) -> None:
    schema_id = registry.register(subject, record())
    with SchemaRegistry(stack.schema_registry_url) as other:
        assert registry.register(subject, record()) == other.register(subject, record()) == schema_id
        assert other.schema(schema_id) == record()


def test_compatible_version_gets_its_own_id_and_an_incompatible_one_is_refused(
    registry: SchemaRegistry, subject: str
) -> None:
    first = registry.register(subject, record())
    assert registry.register(subject, record({"name": "b", "type": ["null", "string"], "default": None})) != first
    with pytest.raises(ConfigurationError) as error:
        registry.register(subject, record({"name": "c", "type": "string"}))
    assert subject in str(error.value)
    assert "ncompatible" in str(error.value)


def test_text_that_is_no_schema_is_refused_in_the_registrys_words(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(ConfigurationError, match="refuses"):
        registry.register(subject, {"type": "nonsense"})


def test_unknown_id_is_poison_after_several_tries_and_then_at_once(registry: SchemaRegistry) -> None:
    took = []
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Poison) as error:
            registry.schema(2**31 - 1)
        assert error.value.code == "unknown_schema"
        took.append(time.monotonic() - began)
    assert took[0] >= 0.4
    assert took[1] < 0.1


def test_registry_that_is_away_is_an_outage(subject: str) -> None:
    with SchemaRegistry(f"http://127.0.0.1:{ports.choose()}") as away:
        for attempt in (lambda: away.schema(1), lambda: away.register(subject, record()), away.check):
            with pytest.raises(Outage) as error:
                attempt()
            assert error.value.dependency == "registry"


def test_something_else_in_the_registrys_place_condemns_no_message(stack: StackInfo) -> None:
    """Kafka Connect answers 404 to a schema's path, as any web server does."""
    with SchemaRegistry(stack.connect_url, unknown_pause_seconds=0.01) as registry, pytest.raises(Outage):
        registry.schema(1)


def test_threads_share_one_registry(registry: SchemaRegistry, subject: str) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(registry.register(subject, record()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_every_schema_that_ships_is_taken(registry: SchemaRegistry, subject: str) -> None:
    for topic in schemas.topics():
        assert registry.register(f"{subject}-{topic}", json.loads(schemas.load(topic) or "")) > 0
