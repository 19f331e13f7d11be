"""Stage: outbox. Before it, an agent's write emitted records; after it, Debezium's Event Router carries the rows away.

Writes rowcall.outbox inside the outcome transaction. Promises: an event has the same ID and bytes in whichever attempt
of its run it is emitted, and a record that does not fit its topic's schema fails the run before anything is committed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
from pydantic import BaseModel

import schemas
from consumer import db
from consumer.errors import AgentError
from consumer.records.chain import entry
from consumer.records.jobs import ClaimedJob
from consumer.wire.encode import AvroSchema, Unfit, avro_schema, check_message, encode
from consumer.wire.identity import PRODUCED

_SQL: Final = db.queries("outbox")
# Bytes of one record. Brokers and producers take 1 MiB with everything around it unless told otherwise, and one record
# that they refuse stops the connector for all that come after it.
RECORD_LIMIT: Final = 900 * 1024


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
    try:
        check_message(topic, key=emission.key, event_type=emission.event_type)
        payload, content_type = encode(topic, emission.record, schema)
    except Unfit as error:
        raise AgentError(str(error)) from error
    if len(payload) > RECORD_LIMIT:
        raise AgentError(
            f"a record for {topic} is {len(payload)} bytes long, of at most {RECORD_LIMIT}; write it to a table and "
            "emit its key",
            code="record_too_large",
        )
    identity = uuid.uuid5(PRODUCED, f"{namespace}:{run}:{topic}:{number}")
    return OutboxRow(identity, topic, emission.key, payload, emission.event_type, content_type)


def cause(job: ClaimedJob) -> str:
    """The header `cause` as intake reads it: the event all this began with, the sending run, how many runs deep whoever
    is woken stands, and the chain of agents and rows up to the sender.
    """
    root = job.root_event or job.event_id or f"job:{job.id}"
    chain = [*job.chain, entry(job.agent, job.lane)]
    return orjson.dumps({"root": root, "job": job.id, "depth": job.depth + 1, "chain": chain}).decode()
