"""Event IDs: what makes two deliveries the same event. The recipes are versioned in the ID and never change.

`rc1` names a streamed row change by its place in the log and its row; `st1` names a snapshot row by its row and its
content, since snapshot rows are state and have no stable place; `ob1` names an event by the ID its sender gave it.
Not part of any of them: topic, partition, offset, registry IDs, envelope times, the row image of a streamed change.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import orjson

from consumer.errors import Poison
from consumer.wire.avro import Schema, optional
from consumer.wire.columns import DECIMAL, VARIABLE_DECIMAL, decimal_scale

ID_HEX_DIGITS: Final = 32
"""16 of SHA-256's 32 bytes: 2^64 events for an even chance of one clash."""

PRODUCED: Final = uuid.UUID("6f1d3c8e-52a7-5b0e-9d43-7c1f0b8a2e65")
"""The name space of the IDs of all events Rowcall produces; a constant of the recipe, never to change."""

Canonical = Callable[[Any], Any]

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def change_id(epoch: str, source: Mapping[str, Any], op: str, key: Sequence[Any] | None, order: int | None) -> str:
    """The ID of a streamed change.

    Args:
        epoch: raised by an operator after a restore, so that log positions used again give new IDs.
        source: the envelope's source block.
        key: canonical key values in the key schema's order; None for a truncate or a table without a key.
        order: the event's number in its transaction, where the key alone does not name the row.
    """
    identity = [
        epoch, source["name"], source["db"], source["schema"], source["table"],
        source["txId"], source["lsn"], source["ts_ms"], op, key, order,
    ]  # fmt: skip
    return "rc1:" + sha256(orjson.dumps(identity)).hexdigest()[:ID_HEX_DIGITS]


def state_id(epoch: str, source: Mapping[str, Any], key: Sequence[Any] | None, row: Mapping[str, Any]) -> str:
    """The ID of a snapshot row: the same until its content, given as canonical values by column, changes."""
    digest = sha256(orjson.dumps(row, option=orjson.OPT_SORT_KEYS)).hexdigest()
    identity = [epoch, source["name"], source["db"], source["schema"], source["table"], key, digest]
    return "st1:" + sha256(orjson.dumps(identity)).hexdigest()[:ID_HEX_DIGITS]


def event_id(namespace: str, header: bytes | str | None) -> str:
    """The ID of an application event, from its `id` header.

    Raises:
        Poison: `missing_event_id`.
    """
    text = "" if header is None else header_text(header)
    if not text:
        raise Poison("the message has no `id` header to know it by", code="missing_event_id")
    return f"ob1:{namespace}:{text.lower() if _UUID.fullmatch(text) else text}"


def header_text(header: bytes | str) -> str:
    """A header as plain text: Connect's JsonConverter quotes strings or wraps them into schema and payload."""
    text = header if isinstance(header, str) else header.decode("utf-8", "surrogateescape")
    if text[:1] not in ('"', "{"):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    if isinstance(value, str):
        return value
    return "" if value is None else str(value) if isinstance(value, int) else text


def canonical(schema: Any, names: Mapping[str, Schema]) -> Canonical | None:
    """How a wire value of `schema` enters an ID; None where it does so as it is.

    Taken before any conversion, so that a later correction of the type table changes no ID.
    """
    known = optional(schema, names)
    base, name = known["type"], known.get("connect.name")
    if name == DECIMAL:
        return _decimal(decimal_scale(known))
    if name == VARIABLE_DECIMAL:
        return lambda record: f"{_integer(record['value'])}:{record['scale']}"
    match base:
        case "bytes" | "fixed":
            return bytes.hex
        case "float" | "double":
            return repr
        case "array":
            return _each(canonical(known["items"], names))
        case "map":
            return _each_value(canonical(known["values"], names))
        case "record" | "error":
            return _fields(known, names)
    return None


def canonical_fields(record: Schema, names: Mapping[str, Schema]) -> list[tuple[str, Canonical | None]]:
    """(field, canonical form) of a record, in its order."""
    return [(field["name"], canonical(field["type"], names)) for field in record["fields"]]


def canonical_values(record: Mapping[str, Any], fields: Sequence[tuple[str, Canonical | None]]) -> list[Any]:
    """A record's values in canonical form, in the schema's order."""
    return [_apply(form, record[name]) for name, form in fields]


def _apply(form: Canonical | None, value: Any) -> Any:
    return value if form is None or value is None else form(value)


def _integer(unscaled: bytes) -> int:
    return int.from_bytes(unscaled, "big", signed=True)


def _decimal(scale: int) -> Canonical:
    return lambda unscaled: f"{_integer(unscaled)}:{scale}"


def _each(form: Canonical | None) -> Canonical | None:
    return None if form is None else lambda items: [_apply(form, item) for item in items]


def _each_value(form: Canonical | None) -> Canonical | None:
    return None if form is None else lambda items: {name: _apply(form, item) for name, item in items.items()}


def _fields(record: Schema, names: Mapping[str, Schema]) -> Canonical:
    fields = canonical_fields(record, names)
    return lambda value: canonical_values(value, fields)
