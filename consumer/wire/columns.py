"""The type table: from the value on the wire to the value an agent sees, chosen by the schema's semantic name.

A plan is built once for each schema and says which columns need work at all; for the others nothing is called. A
column's name never decides anything. What is not in the table is refused when the plan is built, never guessed at.
Sources: Debezium's Postgres page, "Data type mappings"; Connect's AvroData for the form in Avro.
"""

from __future__ import annotations

import decimal
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import orjson

from consumer.errors import Poison
from consumer.records import UNCHANGED
from consumer.wire import temporal
from consumer.wire.avro import LOGICAL_TYPE, Convert, Schema, optional

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default word for an unchanged TOAST value; `UnchangedToastedPlaceholder` has its form for each type."""
_PLACEHOLDER_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
_PLACEHOLDER_HSTORE: Final = f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
_UUID: Final = "io.debezium.data.Uuid"
_JSON: Final = "io.debezium.data.Json"

# Exact at any size: the default context rounds to 28 digits.
_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
# orjson turns integers beyond 64 bits into floats: a text that may hold one goes to the slower reader.
_LONG_INTEGER: Final = re.compile(r"[0-9]{19}")
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})
_MAX_INT_DIGITS: Final = 4000
"""Python refuses to read longer integers by default (4300 digits)."""


def json_text(text: str) -> Any:
    """The value of a json or jsonb column, integers of any size included."""
    if _LONG_INTEGER.search(text) is None:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            # Lone surrogates, which json (not jsonb) may hold: the next reader takes them, and has the last word.
            return json.loads(text, parse_constant=_no_constant)
    return json.loads(text, parse_int=_json_integer, parse_constant=_no_constant)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _json_integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _MAX_INT_DIGITS else Decimal(text)


def scaled(unscaled: bytes, scale: int) -> Decimal:
    """Connect's Decimal: a big-endian two's complement integer and its decimal exponent, exactly."""
    return _EXACT.scaleb(Decimal(int.from_bytes(unscaled, "big", signed=True)), -scale)


def _bits(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _variable_decimal(record: dict[str, Any]) -> Decimal:
    return scaled(record["value"], record["scale"])


def _point(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["x"], "y": record["y"]}


def _sparse_vector(record: dict[str, Any]) -> dict[str, Any]:
    entries = record["vector"]
    pairs = entries.items() if isinstance(entries, dict) else ((entry["key"], entry["value"]) for entry in entries)
    return {"dimensions": record["dimensions"], "vector": {str(index): value for index, value in pairs}}


# Semantic name → (Avro type it must have, conversion; None keeps the value as it is).
_NAMED: Final[dict[str, tuple[str, Convert | None]]] = {
    "io.debezium.time.Date": ("int", temporal.date),
    "io.debezium.time.Time": ("int", temporal.time_ms),
    "io.debezium.time.MicroTime": ("long", temporal.time_us),
    "io.debezium.time.NanoTime": ("long", temporal.time_ns),
    "io.debezium.time.ZonedTime": ("string", temporal.time_zoned),
    "io.debezium.time.Timestamp": ("long", temporal.timestamp_ms),
    "io.debezium.time.MicroTimestamp": ("long", temporal.timestamp_us),
    "io.debezium.time.NanoTimestamp": ("long", temporal.timestamp_ns),
    "io.debezium.time.ZonedTimestamp": ("string", temporal.timestamp_zoned),
    "io.debezium.time.IsoDate": ("string", temporal.date_iso),
    "io.debezium.time.IsoTime": ("string", temporal.time_iso),
    "io.debezium.time.IsoTimestamp": ("string", temporal.timestamp_iso),
    "io.debezium.time.MicroDuration": ("long", temporal.duration_us),
    "io.debezium.time.Interval": ("string", None),
    "org.apache.kafka.connect.data.Date": ("int", temporal.date),
    "org.apache.kafka.connect.data.Time": ("int", temporal.time_ms),
    "org.apache.kafka.connect.data.Timestamp": ("long", temporal.timestamp_ms),
    _UUID: ("string", uuid.UUID),
    _JSON: ("string", json_text),
    "io.debezium.data.Xml": ("string", None),
    "io.debezium.data.Ltree": ("string", None),
    "io.debezium.data.Tsvector": ("string", None),
    "io.debezium.data.Enum": ("string", None),
    "io.debezium.data.EnumSet": ("string", None),
    "io.debezium.data.Bits": ("bytes", _bits),
    "io.debezium.data.FloatVector": ("array", None),
    "io.debezium.data.DoubleVector": ("array", None),
    VARIABLE_DECIMAL: ("record", _variable_decimal),
    "io.debezium.data.SparseVector": ("record", _sparse_vector),
    "io.debezium.data.geometry.Point": ("record", _point),
    "io.debezium.data.geometry.Geometry": ("record", None),
    "io.debezium.data.geometry.Geography": ("record", None),
}

# Avro's own logical types, where no semantic name says more. One that is not here has no meaning beyond its base type.
_LOGICAL: Final[dict[str, tuple[str, Convert]]] = {
    "date": ("int", temporal.date),
    "time-millis": ("int", temporal.time_ms),
    "time-micros": ("long", temporal.time_us),
    "timestamp-millis": ("long", temporal.instant_ms),
    "timestamp-micros": ("long", temporal.instant_us),
    "local-timestamp-millis": ("long", temporal.timestamp_ms),
    "local-timestamp-micros": ("long", temporal.timestamp_us),
    "uuid": ("string", uuid.UUID),
}


class TypeTable:
    """Conversions for the types of one parsed schema. `records` allows records that the table does not name."""

    def __init__(self, names: Mapping[str, Schema], *, records: bool) -> None:
        self._names = names
        self._records = records

    def conversion(self, schema: Any, path: str) -> Convert | None:
        """The conversion for values of `schema` that are not null; None where there is nothing to do.

        Raises:
            Poison: `unsupported_type`, naming the column and the type.
        """
        known = optional(schema, self._names)
        base = known["type"]
        if isinstance(base, list):
            self._refuse_conversion(base, path)
            return None
        name = known.get("connect.name")
        if name == DECIMAL or (name is None and known.get(LOGICAL_TYPE) == "decimal" and base in ("bytes", "fixed")):
            return _decimal(known)
        if name in _NAMED:
            expected, convert = _NAMED[name]
            if base != expected:
                raise _unsupported(path, f"{name} as Avro {base}")
            return convert
        if base in ("record", "error"):
            return self._record(known, path)
        if name is not None and base not in ("enum", "fixed"):
            raise _unsupported(path, name)
        return self._plain(known, base, path)

    def _plain(self, known: Schema, base: str, path: str) -> Convert | None:
        logical = known.get(LOGICAL_TYPE)
        if logical in _LOGICAL and _LOGICAL[logical][0] == base:
            return _LOGICAL[logical][1]
        if base == "array":
            return _each(self.conversion(known["items"], f"{path}[]"))
        if base == "map":
            return _each_value(self.conversion(known["values"], f"{path}{{}}"))
        if base in _PRIMITIVES or (self._records and base in ("enum", "fixed")):
            return None
        raise _unsupported(path, f"Avro {base}")

    def _refuse_conversion(self, branches: Sequence[Any], path: str) -> None:
        # The reader does not say which branch a value came from, so only branches that stay as they are will do.
        if any(self.conversion(branch, path) is not None for branch in branches):
            raise _unsupported(path, "a union of several types that need conversion")

    def _record(self, known: Schema, path: str) -> Convert | None:
        if not self._records:
            raise _unsupported(path, known.get("connect.name") or f"record {known['name']}")
        fields = self.row(known, path)
        return (lambda record: convert_row(record, fields)) if fields else None

    def row(self, record: Schema, path: str = "") -> list[tuple[str, Convert]]:
        """(column, conversion) for each column of a record that needs one, in the record's order."""
        prefix = f"{path}." if path else ""
        pairs = ((field["name"], self.conversion(field["type"], prefix + field["name"])) for field in record["fields"])
        return [(name, convert) for name, convert in pairs if convert is not None]

    def checked_row(self, record: Schema) -> list[tuple[str, Convert]]:
        """As `row`, for messages that may hold placeholders of unchanged TOAST values."""
        checked = []
        for field in record["fields"]:
            convert = self.conversion(field["type"], field["name"])
            placeholders = self._placeholders(field["type"])
            if placeholders:
                checked.append((field["name"], _unless_placeholder(placeholders, convert)))
            elif convert is not None:
                checked.append((field["name"], convert))
        return checked

    def hides_placeholders(self, record: Schema) -> bool:
        """Whether a placeholder can stand in this record in a form that does not spell `PLACEHOLDER`."""
        values = (self._placeholders(field["type"]) for field in record["fields"])
        return any(PLACEHOLDER not in repr(value) for placeholders in values for value in placeholders)

    def _placeholders(self, schema: Any) -> list[Any]:
        known = optional(schema, self._names)
        match known["type"]:
            case "string":
                return [PLACEHOLDER, _PLACEHOLDER_HSTORE] if known.get("connect.name") == _JSON else [PLACEHOLDER]
            case "bytes" if known.get("connect.name") is None:
                return [PLACEHOLDER.encode()]
            case "map":
                return [{PLACEHOLDER: PLACEHOLDER}]
            case "array":
                items = optional(known["items"], self._names)
                if items["type"] in ("int", "long"):
                    return [list(PLACEHOLDER.encode())]
                if items["type"] == "string":
                    return [[PLACEHOLDER]] + ([[_PLACEHOLDER_UUID]] if items.get("connect.name") == _UUID else [])
        return []


def convert_row(row: dict[str, Any], conversions: Sequence[tuple[str, Convert]]) -> dict[str, Any]:
    """Convert a row's columns in place; NULL stays None."""
    for name, convert in conversions:
        value = row[name]
        if value is not None:
            row[name] = convert(value)
    return row


def decimal_scale(known: Schema) -> int:
    """The scale a decimal type declares, by Connect's parameter or Avro's attribute."""
    return int(known.get("connect.parameters", {}).get("scale", known.get("scale", 0)))


def _decimal(known: Schema) -> Convert:
    shift = -decimal_scale(known)
    scaleb, from_bytes = _EXACT.scaleb, int.from_bytes
    return lambda data: scaleb(Decimal(from_bytes(data, "big", signed=True)), shift)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: [None if item is None else convert(item) for item in items]


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: {name: None if item is None else convert(item) for name, item in items.items()}


def _unless_placeholder(placeholders: list[Any], convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: UNCHANGED if value in placeholders else value
    return lambda value: UNCHANGED if value in placeholders else convert(value)


def _unsupported(path: str, name: str) -> Poison:
    return Poison(f"column {path or '(whole value)'} has type {name}, which is not supported", code="unsupported_type")
