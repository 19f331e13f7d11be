"""From records to bytes: the values of the topics that Rowcall writes, by the outbox and by its producers.

Avro in Confluent's framing where the topic has a schema, a JSON object otherwise. Does no input or output: a schema
comes with its registry ID.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

AVRO: Final = "application/avro"
JSON: Final = "application/json"
# Kafka's rule for topic names.
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAGIC: Final = b"\x00"
# What fastavro raises for a value that does not fit; it names a field in few of them.
_UNFIT: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


class Unfit(ValueError):
    """A record, key or topic that cannot be sent; the message names the field and the reason."""


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A topic's schema with its registry ID. `fields` holds each field of the record as a record of its own."""

    id: int
    parsed: Any
    fields: Mapping[str, Any]


def check_message(topic: str, *, key: str | None, event_type: str) -> None:
    """Refuse what no broker or database takes.

    Raises:
        Unfit: the topic's name, the key or the event type.
    """
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise Unfit(f"{topic!r} is no name of a Kafka topic")
    for what, text in (("key", key), ("event_type", event_type)):
        if text is not None and not _storable(text):
            raise Unfit(f"the {what} of a record for {topic} holds NUL or half a character")


def encode(topic: str, record: BaseModel | Mapping[str, Any], schema: AvroSchema | None) -> tuple[bytes, str]:
    """The message's value and its content type.

    Raises:
        Unfit: naming the field that does not fit the schema.
    """
    if schema is None:
        return _json(topic, record), JSON
    return _avro(topic, record, schema), AVRO


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
        raise Unfit(
            f"a record for {topic} does not fit schemas/{topic}.avsc: {_fault(values, schema, error)}"
        ) from error
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
        raise Unfit(f"a record for {topic} cannot be written as JSON: {error}") from error


def _storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
