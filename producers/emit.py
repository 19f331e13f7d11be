"""The one way out for producers: events with IDs of their own, confirmed by the brokers before anything counts as done.

Before it, a detector, a webhook or the watchdog decided that something happened; after it, intake reads the topic as
it reads any other. Promises: the record fits its schema in `schemas/`, which is registered with its compatibility
checked; the same event has the same ID however often it is sent; `emit` returns only when all of it is confirmed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import BaseModel

import schemas
from consumer.errors import ConfigurationError, Outage
from consumer.kafka.producer import Message, Producer
from consumer.kafka.records import Place
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.telemetry import EMITTED
from consumer.wire.encode import AvroSchema, Unfit, avro_schema, check_message, encode
from consumer.wire.identity import PRODUCED

# Beyond librdkafka's own delivery time: its report comes a little later.
_GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Produced:
    """An event to send.

    Args:
        topic: where to; its schema is that of `schemas/<schema>.avsc`, by default of the topic's own name.
        id: from `identity`: the same for the same event, whenever and by whomever it is sent.
        occurred_at: when it happened; dedup goes by its day, so it is the same each time the event is sent, or None
            where a sender may send the same event again with another time.
        cause: the run that caused it, in the form of the outbox's header `cause`; None for a cause outside.
        traceparent: W3C trace context; made from the ID where there is none.
    """

    topic: str
    key: str | None
    record: BaseModel | Mapping[str, Any]
    id: uuid.UUID
    occurred_at: dt.datetime | None
    event_type: str = ""
    schema: str = ""
    cause: str | None = None
    traceparent: str | None = None


def identity(kind: str, *parts: object) -> uuid.UUID:
    """The ID of an event: uuid5 over its kind and the parts that make it the event it is."""
    return uuid.uuid5(PRODUCED, orjson.dumps([kind, *map(str, parts)]).decode())


class Emitter:
    """Sends events; one object a process, safe to share between threads."""

    def __init__(self, settings: Settings, *, delivery_seconds: float = 30.0) -> None:
        self._registry = SchemaRegistry(settings.schema_registry_url)
        self._producer = Producer(settings, delivery_seconds=delivery_seconds)
        self._wait = delivery_seconds + _GRACE_SECONDS
        self._schemas: dict[tuple[str, str], AvroSchema | None] = {}

    def prepare(self, topics: Iterable[str | tuple[str, str]]) -> None:
        """Create topics and register their schemas before the first event; a pair names topic and schema.

        Raises:
            ConfigurationError: the registry finds a schema incompatible, or the brokers refuse a topic.
            Outage: registry or brokers do not answer.
        """
        pairs = [(item, item) if isinstance(item, str) else item for item in topics]
        for topic, schema in pairs:
            self._schema(topic, schema)
        self._producer.ensure_topics(topic for topic, _ in pairs)

    def emit(self, events: Sequence[Produced]) -> None:
        """Send events, in order, and wait until each is confirmed.

        Raises:
            ConfigurationError: a record does not fit its schema (names the field), or the brokers refuse us.
            Poison: `message_too_large`.
            Outage: not confirmed in time; send the same events again.
        """
        for future in self.start(events):
            self._confirmed(future)

    def start(self, events: Sequence[Produced]) -> list[Future[Place]]:
        """Hand events over without waiting; see `Producer.send` for what the futures raise."""
        futures = self._producer.send([self._message(event) for event in events])
        return [counted(event.topic, future) for event, future in zip(events, futures, strict=True)]

    def close(self) -> None:
        """Close every connection."""
        self._producer.close()
        self._registry.close()

    def _confirmed(self, future: Future[Place]) -> None:
        try:
            future.result(self._wait)
        except TimeoutError as error:
            raise Outage("the brokers did not confirm an event", dependency="broker") from error

    def _message(self, event: Produced) -> Message:
        try:
            check_message(event.topic, key=event.key, event_type=event.event_type)
            value, content_type = encode(event.topic, event.record, self._schema(event.topic, event.schema))
        except Unfit as error:
            raise ConfigurationError(str(error), code="record_unfit") from error
        headers = {
            "id": str(event.id),
            "event_type": event.event_type,
            "content_type": content_type,
            "traceparent": event.traceparent or _trace(event.id),
        }
        if event.occurred_at is not None:
            headers["occurred_at"] = event.occurred_at.astimezone(dt.UTC).isoformat()
        if event.cause is not None:
            headers["cause"] = event.cause
        return Message(event.topic, event.key, value, headers)

    def _schema(self, topic: str, name: str) -> AvroSchema | None:
        pair = (topic, name or topic)
        if pair not in self._schemas:
            text = schemas.load(pair[1])
            if text is None:
                self._schemas[pair] = None
            else:
                raw = orjson.loads(text)
                self._schemas[pair] = avro_schema(raw, self._registry.register(f"{topic}-value", raw))
        return self._schemas[pair]


def counted(topic: str, future: Future[Place]) -> Future[Place]:
    """The same future; its event counts as emitted when it is confirmed."""

    def done(made: Future[Place]) -> None:
        if not made.cancelled() and made.exception() is None:
            EMITTED.add(topic=topic)

    future.add_done_callback(done)
    return future


def _trace(identifier: uuid.UUID) -> str:
    """A trace that begins with the event: the same each time it is sent."""
    return f"00-{identifier.hex}-{identifier.hex[:16]}-01"
