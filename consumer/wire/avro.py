"""Avro as it arrives from Kafka: framing, schemas without logical types, and one read that turns every fault to Poison.

fastavro's own handling of logical types refuses whole schemas (a decimal whose scale exceeds its precision is legal in
Postgres 15 and later), rounds decimals to the declared precision and raises on infinite dates. So schemas are parsed
without them, values arrive as they travelled, and `columns` converts them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from consumer.errors import Poison

Schema = dict[str, Any]
"""A parsed schema: Avro's JSON with full names, `LOGICAL_TYPE` in place of logicalType, defaults left out."""

LOGICAL_TYPE: Final = "rowcall.logicalType"
FRAME_BYTES: Final = 5
"""Confluent framing: a zero byte and the schema's registry ID, four bytes, big-endian."""

FAULTS: Final = (
    LookupError,
    ArithmeticError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    struct.error,
    MemoryError,
    RecursionError,
)
"""What reading or converting bytes that do not fit their schema can raise; UnicodeDecodeError is a ValueError."""

_LEFT_OUT: Final = frozenset({"default", "doc", "aliases"})


def frame(message: bytes) -> tuple[int, bytes]:
    """Split a framed message into (schema ID, Avro body).

    Raises:
        Poison: `not_framed`, when the message does not start with the framing.
    """
    if len(message) < FRAME_BYTES or message[0] != 0:
        raise not_framed(message)
    return int.from_bytes(message[1:FRAME_BYTES], "big"), message[FRAME_BYTES:]


def not_framed(message: bytes) -> Poison:
    """The error for bytes without framing; it shows how they start."""
    start = message[:8].hex(" ")
    return Poison(f"{len(message)} bytes starting with {start} carry no schema ID", code="not_framed")


def parse(schema: Any) -> Schema:
    """Parse a schema from the registry for reading raw values.

    Raises:
        Poison: `unsupported_type`, when it is not a valid Avro schema.
    """
    try:
        parsed = fastavro.parse_schema(_raw(schema))
    except (SchemaParseException, UnknownType, *FAULTS) as error:
        raise Poison(f"the Avro schema cannot be used: {error}", code="unsupported_type") from error
    return parsed if isinstance(parsed, dict) else {"type": parsed}


def read(schema: Schema, message: bytes) -> Any:
    """Read the body of a framed message, all of it.

    Raises:
        Poison: when bytes are left over.
        FAULTS: when the bytes do not fit the schema.
    """
    stream = io.BytesIO(message)
    stream.seek(FRAME_BYTES)
    datum = fastavro.schemaless_reader(stream, schema)
    if stream.tell() != len(message):
        raise Poison(f"{len(message) - stream.tell()} bytes are left over after the Avro body")
    return datum


def named_types(schema: Any) -> dict[str, Schema]:
    """Full name → definition of each named type in a parsed schema."""
    found: dict[str, Schema] = {}
    _collect(schema, found)
    return found


def _collect(schema: Any, found: dict[str, Schema]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, found)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "error", "enum", "fixed"):
            found[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], found)
        for part in ("items", "values"):
            if part in schema:
                _collect(schema[part], found)
        if isinstance(schema.get("type"), dict | list):
            _collect(schema["type"], found)


def resolve(schema: Any, names: Mapping[str, Schema]) -> Schema:
    """The definition behind a reference or a bare type name, always as a mapping."""
    if isinstance(schema, str):
        return names.get(schema) or {"type": schema}
    if isinstance(schema, list):
        return {"type": schema}
    inner = schema.get("type")
    if isinstance(inner, dict):
        return resolve(inner, names)
    if isinstance(inner, str) and inner in names:
        return names[inner]
    result: Schema = schema
    return result


def optional(schema: Any, names: Mapping[str, Schema]) -> Schema:
    """The type of a value that is not null: the other branch of a union with null, or the type itself."""
    resolved = resolve(schema, names)
    branches = resolved["type"]
    if not isinstance(branches, list):
        return resolved
    others = [branch for branch in branches if branch != "null"]
    return resolve(others[0], names) if len(others) == 1 else {"type": others}


def _raw(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_raw(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        (LOGICAL_TYPE if name == "logicalType" else name): _raw(item)
        for name, item in schema.items()
        if name not in _LEFT_OUT
    }


Convert = Callable[[Any], Any]
"""A function from a value that is not null to another."""
