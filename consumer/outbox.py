"""Stage: outbox. Before it, an agent's write emitted records; after it, Debezium's Event Router carries the rows away.

Writes rowcall.outbox inside the outcome transaction. Promises: an event has the same ID and bytes in whichever attempt
of its run it is emitted, and a record that does not fit its topic's schema fails the run before anything is committed.
"""

from __future__ import annotations

import asyncio
import io
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import fastavro
import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

import schemas
from consumer import db
from consumer.errors import AgentError
from consumer.records.jobs import ClaimedJob

AVRO: Final = "application/avro"
JSON: Final = "application/json"
# The name space of the IDs of all events Rowcall produces; a constant of the recipe, never to change.
NAMESPACE: Final = uuid.UUID("6f1d3c8e-52a7-5b0e-9d43-7c1f0b8a2e65")
# Kafka's rule for topic names.
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAGIC: Final = b"\x00"
_SQL: Final = db.queries("outbox")
# What fastavro raises for a value that does not fit; it names a field in few of them.
_UNFIT: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


class Emission(Protocol):
    """A record an agent sends, as `consumer.outcome` collects it."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def key(self) -> str | None:
        """The message key; None lets Kafka choose the partition."""

    @property
    def record(self) -> BaseModel | Mapping[str, Any]:
        """What is sent."""

    @property
    def event_type(self) -> str:
        """Goes into the header `event_type`."""


class Registrar(Protocol):
    """The part of `consumer.schema_registry.SchemaRegistry` that is used."""

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The ID of `schema` under `subject`; raises ConfigurationError or Outage."""


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A topic's schema with its registry ID. `fields` holds each field of the record as a record of its own."""

    id: int
    parsed: Any
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One row of rowcall.outbox, without what is the same for all rows of a run."""

    id: uuid.UUID
    topic: str
    key: str | None
    payload: bytes
    event_type: str
    content_type: str


class Outbox:
    """Puts the records of runs into the outbox; one object a process.

    Args:
        registry: where schemas get their IDs.
        namespace: tells this database's runs from another's and from those before a restore; part of each event ID.
    """

    def __init__(self, registry: Registrar, *, namespace: str) -> None:
        self._registry = registry
        self._namespace = namespace
        self._schemas: dict[str, AvroSchema | None] = {}

    async def prepare(self) -> None:
        """Register every schema that ships, so that no outcome has to wait for the registry.

        Raises:
            ConfigurationError, Outage: as `send`.
        """
        for topic in schemas.topics():
            await self._schema(topic)

    async def send(self, session: db.Session, job: ClaimedJob, emissions: Sequence[Emission]) -> None:
        """Write the rows on a session that is inside the outcome transaction of `job`.

        Raises:
            AgentError: a record does not fit its topic's schema; names the field.
            ConfigurationError: the registry refuses the schema of a topic.
            Outage: the registry, asked once a topic and process, does not answer.
        """
        if not emissions:
            return
        rows = [
            row(self._namespace, job.id, number, emission, await self._schema(emission.topic))
            for number, emission in enumerate(emissions)
        ]
        parameters = {
            "ids": [item.id for item in rows],
            "topics": [item.topic for item in rows],
            "keys": [item.key for item in rows],
            "payloads": [item.payload for item in rows],
            "event_types": [item.event_type for item in rows],
            "content_types": [item.content_type for item in rows],
            "traceparent": job.traceparent,
            "cause": cause(job),
            "job": job.id,
        }
        with db.translated():
            await session.execute(_SQL["add"], parameters)

    async def _schema(self, topic: str) -> AvroSchema | None:
        if topic not in self._schemas:
            text = schemas.load(topic)
            if text is None:
                self._schemas[topic] = None
            else:
                raw = orjson.loads(text)
                schema_id = await asyncio.to_thread(self._registry.register, f"{topic}-value", raw)
                self._schemas[topic] = avro_schema(raw, schema_id)
        return self._schemas[topic]


def row(namespace: str, run: int, number: int, emission: Emission, schema: AvroSchema | None) -> OutboxRow:
    """The outbox row of the `number`-th record that `run` emits, counted from 0.

    The ID is uuid5 of (namespace, run, topic, number). The payload is Avro in Confluent's framing where the topic has a
    schema, a JSON object otherwise.

    Raises:
        AgentError: topic, key or record cannot be sent; says which field and why.
    """
    topic = emission.topic
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise AgentError(f"{topic!r} is no name of a Kafka topic")
    for what, text in (("key", emission.key), ("event_type", emission.event_type)):
        if text is not None and not _storable(text):
            raise AgentError(f"the {what} of a record for {topic} holds NUL or half a character")
    identity = uuid.uuid5(NAMESPACE, f"{namespace}:{run}:{topic}:{number}")
    payload = _json(topic, emission.record) if schema is None else _avro(topic, emission.record, schema)
    content_type = JSON if schema is None else AVRO
    return OutboxRow(identity, topic, emission.key, payload, emission.event_type, content_type)


def cause(job: ClaimedJob) -> str:
    """The header `cause` as intake reads it: the event all this began with, the sending run, how many runs deep whoever
    is woken stands, and the agents up to the sender.
    """
    root = job.root_event or job.event_id or f"job:{job.id}"
    chain = [*job.chain, job.agent]
    return orjson.dumps({"root": root, "job": job.id, "depth": job.depth + 1, "chain": chain}).decode()


def avro_schema(raw: Mapping[str, Any], schema_id: int) -> AvroSchema:
    """Parse a record schema for writing."""
    parsed = fastavro.parse_schema(dict(raw))
    named: dict[str, Any] = {}
    space = raw.get("namespace", "")
    fields = {
        # In the schema's order and with one table of names: a later field may refer to a type an earlier one defines.
        field["name"]: fastavro.parse_schema(
            {"type": "record", "name": f"Field{number}", "namespace": space, "fields": [field]}, named_schemas=named
        )
        for number, field in enumerate(raw["fields"])
    }
    return AvroSchema(schema_id, parsed, fields)


def _avro(topic: str, record: BaseModel | Mapping[str, Any], schema: AvroSchema) -> bytes:
    values = record.model_dump() if isinstance(record, BaseModel) else dict(record)
    stream = io.BytesIO()
    stream.write(_MAGIC + schema.id.to_bytes(4, "big"))
    try:
        fastavro.schemaless_writer(stream, schema.parsed, values, strict_allow_default=True)
    except _UNFIT as error:
        raise AgentError(
            f"a record for {topic} does not fit schemas/{topic}.avsc: {_fault(values, schema, error)}"
        ) from (error)
    return stream.getvalue()


def _fault(values: Mapping[str, Any], schema: AvroSchema, error: BaseException) -> str:
    unknown = sorted(set(values) - set(schema.fields))
    if unknown:
        return f"the schema has no field {', '.join(unknown)}"
    for name, alone in schema.fields.items():
        given = {name: values[name]} if name in values else {}
        try:
            fastavro.schemaless_writer(io.BytesIO(), alone, given, strict_allow_default=True)
        except _UNFIT as fault:
            return f"field {name}: {fault}" if name in values else f"field {name} is missing"
    return str(error)


def _json(topic: str, record: BaseModel | Mapping[str, Any]) -> bytes:
    try:
        # Decimals and times as text, bytes in URL-safe base64; NaN as text too, where JSON's null would lose it.
        return to_json(record, bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError) as error:
        raise AgentError(f"a record for {topic} cannot be written as JSON: {error}") from error


def _storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
