"""Real Avro messages as Debezium's Postgres connector and the outbox router make them, for tests and benches.

Schemas have the form Connect's Avro converter gives them (semantic names in `connect.name`, optional fields as unions
with null, the source block of Debezium 3.6). Values are given as they travel, not as Python sees them afterwards: an
`io.debezium.time.MicroTimestamp` is an integer here. Nothing in this module reads messages.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro

Schema = dict[str, Any]
Headers = list[tuple[str, bytes | None]]


def named(base: Any, name: str, **parameters: str) -> Schema:
    """A wire type with a semantic name: `named("long", "io.debezium.time.MicroTimestamp")`."""
    schema: Schema = dict(base) if isinstance(base, Mapping) else {"type": base}
    schema |= {"connect.version": 1, "connect.name": name}
    return schema | ({"connect.parameters": parameters} if parameters else {})


def connect_decimal(scale: int, precision: int) -> Schema:
    """numeric(precision, scale) in precise mode."""
    schema = named(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        scale=str(scale),
        **{"connect.decimal.precision": str(precision)},
    )
    return {"type": "bytes", "scale": scale, "precision": precision, **schema, "logicalType": "decimal"}


def array_of(items: Any) -> Schema:
    """A Postgres array: its elements may be null."""
    return {"type": "array", "items": ["null", items]}


INT16: Final[Schema] = {"type": "int", "connect.type": "int16"}
DATE: Final = named("int", "io.debezium.time.Date")
MICRO_TIME: Final = named("long", "io.debezium.time.MicroTime")
MICRO_TIMESTAMP: Final = named("long", "io.debezium.time.MicroTimestamp")
ZONED_TIMESTAMP: Final = named("string", "io.debezium.time.ZonedTimestamp")
UUID: Final = named("string", "io.debezium.data.Uuid")
JSON: Final = named("string", "io.debezium.data.Json")
VARIABLE_SCALE_DECIMAL: Final[Schema] = named(
    {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    },
    "io.debezium.data.VariableScaleDecimal",
)


def unscaled(value: int) -> bytes:
    """Java's BigInteger.toByteArray: big-endian two's complement, shortest form."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


@dataclass(frozen=True)
class Column:
    """One column: its wire type, and whether it may be NULL."""

    name: str
    type: Any
    optional: bool = True

    @property
    def field(self) -> Schema:
        if self.optional:
            return {"name": self.name, "type": ["null", self.type], "default": None}
        return {"name": self.name, "type": self.type}


@dataclass(frozen=True)
class Message:
    """What the consumer gets from Kafka, without its place there."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """A captured table and the registry IDs its key and value schemas have."""

    name: str
    columns: Sequence[Column]
    key: Sequence[str] = ("id",)
    schema: str = "public"
    prefix: str = "cdc"
    key_id: int = 1
    value_id: int = 2

    @property
    def topic(self) -> str:
        return f"{self.prefix}.{self.schema}.{self.name}"

    @property
    def key_schema(self) -> Schema:
        by_name = {column.name: column for column in self.columns}
        fields = [{"name": name, "type": by_name[name].type} for name in self.key]
        return {"type": "record", "name": "Key", "namespace": self.topic, "fields": fields} | _connect(
            self.topic, "Key"
        )

    @property
    def value_schema(self) -> Schema:
        row: Schema = {"type": "record", "name": "Value", "fields": [column.field for column in self.columns]}
        row |= {"connect.name": f"{self.topic}.Value"}
        fields = [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": SOURCE},
            {"name": "transaction", "type": ["null", TRANSACTION], "default": None},
            {"name": "op", "type": "string"},
            *({"name": name, "type": ["null", "long"], "default": None} for name in ("ts_ms", "ts_us", "ts_ns")),
        ]
        envelope: Schema = {"type": "record", "name": "Envelope", "namespace": self.topic, "fields": fields}
        return envelope | {"connect.version": 2, "connect.name": f"{self.topic}.Envelope"}

    @property
    def schemas(self) -> dict[int, Schema]:
        """Registry ID → schema, as the registry would give them."""
        return {self.key_id: self.key_schema, self.value_id: self.value_schema}


def _connect(topic: str, kind: str) -> Schema:
    return {"connect.name": f"{topic}.{kind}"}


SOURCE: Final[Schema] = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {
            "name": "snapshot",
            "type": [
                "null",
                {
                    "type": "string",
                    "connect.version": 1,
                    "connect.parameters": {"allowed": "true,first,first_in_data_collection,last,false,incremental"},
                    "connect.name": "io.debezium.data.Enum",
                },
            ],
            "default": None,
        },
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "ts_us", "type": ["null", "long"], "default": None},
        {"name": "ts_ns", "type": ["null", "long"], "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
        {"name": "origin", "type": ["null", "string"], "default": None},
        {"name": "origin_lsn", "type": ["null", "long"], "default": None},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.postgresql.Source",
}

TRANSACTION: Final[Schema] = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "event.block",
}

HEARTBEAT: Final[Schema] = {
    "type": "record",
    "name": "Heartbeat",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "ts_ms", "type": "long"}],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.common.Heartbeat",
}

TRANSACTION_MARKER: Final[Schema] = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "namespace": "io.debezium.connector.common",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {
            "name": "data_collections",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "collection",
                        "namespace": "event",
                        "fields": [
                            {"name": "data_collection", "type": "string"},
                            {"name": "event_count", "type": "long"},
                        ],
                    },
                },
            ],
            "default": None,
        },
        {"name": "ts_ms", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.common.TransactionMetadataValue",
}


def framed(schema_id: int, schema: Schema, datum: Any) -> bytes:
    """Confluent framing: magic byte 0, big-endian schema ID, the Avro body."""
    out = io.BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    fastavro.schemaless_writer(out, fastavro.parse_schema(_without_logical_types(schema)), datum)
    return out.getvalue()


def change(
    table: Table,
    op: str,
    /,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    total_order: int | None = None,
    envelope_ms: int = 1_760_000_000_111,
    headers: Headers | None = None,
    **source: Any,
) -> Message:
    """One row-change message. `source` overrides fields of the source block (lsn, txId, ts_ms, snapshot, …)."""
    envelope = {
        "before": before,
        "after": after,
        "source": _source(table) | source,
        "transaction": None
        if total_order is None
        else {"id": "571:1", "total_order": total_order, "data_collection_order": 1},
        "op": op,
        "ts_ms": envelope_ms,
        "ts_us": envelope_ms * 1000,
        "ts_ns": envelope_ms * 1_000_000,
    }
    row = after if after is not None else before
    key = None
    if table.key and row is not None:
        key = framed(table.key_id, table.key_schema, {name: row[name] for name in table.key})
    return Message(table.topic, key, framed(table.value_id, table.value_schema, envelope), headers or [])


def _source(table: Table) -> dict[str, Any]:
    return {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": table.prefix,
        "ts_ms": 1_760_000_000_000,
        "snapshot": None,
        "db": "shop",
        "sequence": '["26720000","26720104"]',
        "ts_us": 1_760_000_000_000_123,
        "ts_ns": 1_760_000_000_000_123_000,
        "schema": table.schema,
        "table": table.name,
        "txId": 771,
        "lsn": 26_720_104,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _without_logical_types(item) for key, item in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(item) for item in schema]
    return schema


ORDERS: Final = Table(
    "orders",
    [
        Column("id", "long", optional=False),
        Column("customer_id", "long", optional=False),
        Column("status", "string", optional=False),
        Column("amount", connect_decimal(2, 12)),
        Column("note", "string"),
        Column("quantity", "int"),
        Column("express", "boolean"),
        Column("weight", "double"),
        Column("created_at", MICRO_TIMESTAMP),
        Column("paid_at", ZONED_TIMESTAMP),
    ],
)
"""Ten columns, the table the benchmarks use."""


def order(number: int, **columns: Any) -> dict[str, Any]:
    """One row of `ORDERS`, as it travels."""
    return {
        "id": number,
        "customer_id": number % 997,
        "status": "paid",
        "amount": unscaled(number * 17 + 1999),
        "note": f"please ring twice, order {number}",
        "quantity": number % 7,
        "express": number % 2 == 0,
        "weight": number / 8,
        "created_at": 1_760_000_000_000_000 + number,
        "paid_at": "2025-10-09T08:53:20.123456Z",
    } | columns
