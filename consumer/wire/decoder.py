"""From a Kafka message to a record: recognises what it is and runs the plan for its schemas.

Before this stage: intake's poll, which gives bytes. After it: admission, which gets `Change`, `Event` or `Ignored`.
Nothing is written and nothing is fetched: schemas come from the function the decoder is given, whose errors (an
`Outage` of the registry, an unknown schema) pass through untouched. Every other fault of a message is `Poison`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from consumer.errors import Poison
from consumer.records import Change, Coordinates, Event
from consumer.wire import events
from consumer.wire.avro import FAULTS, FRAME_BYTES, Schema, frame, parse
from consumer.wire.changes import ChangePlan, is_envelope
from consumer.wire.events import DatumPlan, Headers

SchemaOf = Callable[[int], Any]
"""Schema ID → Avro schema, JSON read. May raise Poison (`unknown_schema`) or Outage."""

HEARTBEAT_PREFIX: Final = "__debezium-heartbeat"
_HEARTBEAT: Final = "io.debezium.connector.common.Heartbeat"
_TRANSACTION: Final = "io.debezium.connector.common.TransactionMetadataValue"
_TRANSACTION_FIELDS: Final = frozenset({"status", "id", "event_count", "data_collections", "ts_ms"})
_LOGICAL_MESSAGE_FIELDS: Final = frozenset({"op", "source", "message"})


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message with nothing to do: only its offset moves on. `reason` is a word for the metrics."""

    reason: str


TOMBSTONE: Final = Ignored("tombstone")
HEARTBEAT: Final = Ignored("heartbeat")
TRANSACTION: Final = Ignored("transaction_marker")
LOGICAL_MESSAGE: Final = Ignored("logical_message")

Decoded = Change | Event | Ignored
_Plan = ChangePlan | DatumPlan | Ignored


class Decoder:
    """Decodes messages; keeps a plan for each pair of schema IDs, for as long as it lives.

    Args:
        schema_of: gives a schema by its ID; called once for each ID.
        epoch: part of every row change's ID (ROWCALL_EPOCH).
        namespace: part of every application event's ID.
        custom_keys: `schema.table` of tables whose message key is not their primary key (message.key.columns).
    """

    def __init__(
        self, schema_of: SchemaOf, *, epoch: str, namespace: str = "rowcall", custom_keys: Collection[str] = ()
    ) -> None:
        self._schema_of = schema_of
        self._epoch = epoch
        self._namespace = namespace
        self._custom_keys = frozenset(custom_keys)
        self._schemas: dict[int, Schema] = {}
        self._keys: dict[int, DatumPlan] = {}
        # By the framing of key and value: reading the IDs out of it would cost more than looking them up.
        self._plans: dict[tuple[bytes | None, bytes], _Plan] = {}
        self._refused: dict[tuple[bytes | None, bytes], Poison] = {}

    def decode(self, key: bytes | None, value: bytes | None, headers: Headers, coordinates: Coordinates) -> Decoded:
        """Decode one message.

        Raises:
            Poison: this message can never be read; `code` is not_framed, undecodable, unsupported_type,
                unknown_schema, missing_event_id or no_row_identity.
            Outage: a schema is needed and the registry is away.
        """
        if not value:
            return TOMBSTONE
        if coordinates.topic.startswith(HEARTBEAT_PREFIX):
            return HEARTBEAT
        try:
            if value[0] != 0:
                return self._decode_json(key, value, headers, coordinates)
            key_frame = key[:FRAME_BYTES] if key and key[0] == 0 else None
            plan = self._plans.get((key_frame, value[:FRAME_BYTES]))
            if plan is None:
                plan = self._plan(key_frame, value)
            if isinstance(plan, ChangePlan):
                if key and key_frame is None:
                    frame(key)  # raises: a row change whose key is not Avro has no identity we can trust
                return plan.decode(key or None, value, coordinates)
            if isinstance(plan, Ignored):
                return plan
            return events.event(plan.read(value), self._key_text(key), headers, coordinates, self._namespace)
        except FAULTS as error:
            raise Poison(f"the message does not fit its schema: {type(error).__name__}: {error}") from error

    def _decode_json(
        self, key: bytes | None, value: bytes, headers: Headers, coordinates: Coordinates
    ) -> Event | Ignored:
        data = events.json_object(value)
        if data is None:
            return TOMBSTONE
        if coordinates.topic.endswith(".transaction") and events.describes_transaction(data):
            return TRANSACTION
        return events.event(data, self._key_text(key), headers, coordinates, self._namespace)

    def _key_text(self, key: bytes | None) -> str | None:
        if not key:
            return None
        if key[0] != 0:  # a StringConverter's key; Postgres' text holds no zero byte
            return key.decode("utf-8", "surrogateescape")
        schema_id, _ = frame(key)
        plan = self._keys.get(schema_id)
        if plan is None:
            plan = self._keys[schema_id] = DatumPlan(self._schema(schema_id))
        return events.key_text(plan.read(key))

    def _plan(self, key_frame: bytes | None, value: bytes) -> _Plan:
        pair = (key_frame, value[:FRAME_BYTES])
        refused = self._refused.get(pair)
        if refused is not None:
            raise Poison(str(refused), code=refused.code)
        value_schema = self._schema(frame(value)[0])
        key_schema = self._schema(frame(key_frame)[0]) if key_frame is not None and is_envelope(value_schema) else None
        try:
            plan = self._build(key_schema, value_schema)
        except Poison as error:
            self._refused[pair] = error
            raise
        self._plans[pair] = plan
        return plan

    def _build(self, key_schema: Schema | None, value_schema: Schema) -> _Plan:
        fields = {field["name"] for field in value_schema.get("fields", ())}
        name = value_schema.get("connect.name")
        if is_envelope(value_schema):
            return ChangePlan(key_schema, value_schema, epoch=self._epoch, custom_keys=self._custom_keys)
        if name == _HEARTBEAT:
            return HEARTBEAT
        if name == _TRANSACTION or fields == _TRANSACTION_FIELDS:
            return TRANSACTION
        if fields >= _LOGICAL_MESSAGE_FIELDS:
            return LOGICAL_MESSAGE
        return DatumPlan(value_schema)

    def _schema(self, schema_id: int) -> Schema:
        schema = self._schemas.get(schema_id)
        if schema is None:
            schema = self._schemas[schema_id] = parse(self._schema_of(schema_id))
        return schema
