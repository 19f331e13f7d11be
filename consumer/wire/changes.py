"""Debezium's envelope as a `Change`: one plan for each pair of key and value schema, built once and then only run.

The key is read for the ID as it travelled and converted for the agent afterwards; the row image never enters the ID of
a streamed change. Snapshot rows (`op=r`) are decoded and marked; whether they wake an agent is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from consumer.errors import Poison
from consumer.records import Change, Coordinates, Operation, Origin
from consumer.wire.avro import Schema, named_types, optional
from consumer.wire.columns import PLACEHOLDER, TypeTable, convert_row
from consumer.wire.identity import canonical_fields, canonical_values, change_id, state_id
from consumer.wire.reader import LeftOut, reader

_OPERATIONS: Final[dict[str, Operation]] = {operation.value: operation for operation in Operation}
_SOURCE_FIELDS: Final = frozenset({"name", "db", "schema", "table", "txId", "lsn", "ts_ms"})
_ENVELOPE_FIELDS: Final = frozenset({"before", "after", "source", "op"})
_PLACEHOLDER_BYTES: Final = PLACEHOLDER.encode()


def is_envelope(schema: Schema) -> bool:
    """Whether a value schema is Debezium's envelope of a row change, by its shape (a router may rename it)."""
    return {field["name"] for field in schema.get("fields", ())} >= _ENVELOPE_FIELDS


class KeyPlan:
    """How to read the key of a table's messages."""

    def __init__(self, schema: Schema) -> None:
        if schema["type"] != "record":
            raise Poison(f"the key is Avro {schema['type']}, not a record of key columns", code="unsupported_type")
        names = named_types(schema)
        self._read = reader(schema)
        self._conversions = TypeTable(names, records=False).row(schema)
        fields = canonical_fields(schema, names)
        # Most keys are integers and strings, which enter the ID as they are.
        self._canonical = fields if any(form is not None for _, form in fields) else None

    def read(self, key: bytes) -> tuple[dict[str, Any], list[Any]]:
        """(key row as agents see it, canonical values for the ID)."""
        row = self._read(key)
        values = list(row.values()) if self._canonical is None else canonical_values(row, self._canonical)
        return convert_row(row, self._conversions), values


class RowPlan:
    """How to convert the `before` and `after` images of a table."""

    def __init__(self, schema: Schema, names: Mapping[str, Schema]) -> None:
        table = TypeTable(names, records=False)
        self._plain = table.row(schema)
        self._checked = table.checked_row(schema)
        self._always_check = table.hides_placeholders(schema)
        self._canonical = canonical_fields(schema, names)

    def convert(self, row: dict[str, Any], message: bytes) -> dict[str, Any]:
        """Convert in place. Columns are compared with placeholders only where the message spells one at all."""
        check = self._always_check or _PLACEHOLDER_BYTES in message
        return convert_row(row, self._checked if check else self._plain)

    def canonical(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row's values as they enter a snapshot row's ID."""
        names = [name for name, _ in self._canonical]
        return dict(zip(names, canonical_values(row, self._canonical), strict=True))


class ChangePlan:
    """Decodes the row changes of one (key schema, value schema) pair."""

    def __init__(
        self, key_schema: Schema | None, value_schema: Schema, *, epoch: str, custom_keys: frozenset[str]
    ) -> None:
        names = named_types(value_schema)
        images = {field["name"]: optional(field["type"], names) for field in value_schema["fields"]}
        lacking = _SOURCE_FIELDS - {field["name"] for field in images["source"].get("fields", ())}
        if lacking:
            missing = ", ".join(sorted(lacking))
            raise Poison(f"not from Debezium's Postgres connector: source lacks {missing}", code="unsupported_type")
        if images["before"] != images["after"]:
            raise Poison("before and after of the envelope have different types", code="unsupported_type")
        self._read = reader(
            value_schema, _left_out(value_schema, images, ordered=key_schema is None or bool(custom_keys))
        )
        self._key = None if key_schema is None else KeyPlan(key_schema)
        self._row = RowPlan(images["after"], names)
        self._epoch = epoch
        self._custom_keys = custom_keys

    def decode(self, key: bytes | None, value: bytes, coordinates: Coordinates | None) -> Change:
        """One message.

        Raises:
            Poison: `no_row_identity`, or bytes that do not fit the schema.
        """
        envelope = self._read(value)
        operation = _OPERATIONS.get(envelope["op"])
        if operation is None:
            raise Poison(f"operation {envelope['op']!r} is not one of {', '.join(_OPERATIONS)}")
        key_row, key_values = (None, None) if self._key is None or key is None else self._key.read(key)
        source, before, after = envelope["source"], envelope["before"], envelope["after"]
        event_id = self._identify(operation, envelope, key_values)
        convert = self._row.convert
        return Change(
            event_id,
            operation,
            None if before is None else convert(before, value),
            None if after is None else convert(after, value),
            key_row,
            Origin(
                source["name"],
                source["db"],
                source["schema"],
                source["table"],
                source["txId"],
                source["lsn"],
                source["ts_ms"],
                operation is Operation.READ,
            ),
            coordinates,
        )

    def _identify(self, operation: Operation, envelope: Mapping[str, Any], key: list[Any] | None) -> str:
        source = envelope["source"]
        if operation is Operation.READ:
            return state_id(self._epoch, source, key, self._row.canonical(envelope["after"]))
        if operation is Operation.TRUNCATE:
            # One record of the log truncates a table once: its place and the table name it.
            return change_id(self._epoch, source, envelope["op"], None, None)
        order = None
        if key is None or (self._custom_keys and f"{source['schema']}.{source['table']}" in self._custom_keys):
            order = _order_in_transaction(envelope)
        return change_id(self._epoch, source, envelope["op"], key, order)


def _left_out(envelope: Schema, images: Mapping[str, Schema], *, ordered: bool) -> LeftOut:
    """What neither the change nor its ID takes from the envelope; the place in the transaction only if `ordered`."""
    used = _ENVELOPE_FIELDS | {"transaction"} if ordered else _ENVELOPE_FIELDS
    source = images["source"]
    return {
        envelope["name"]: frozenset(images) - used,
        source["name"]: frozenset(field["name"] for field in source["fields"]) - _SOURCE_FIELDS,
    }


def _order_in_transaction(envelope: Mapping[str, Any]) -> int:
    transaction = envelope.get("transaction")
    if transaction is None:
        source = envelope["source"]
        raise Poison(
            f"a row of {source['schema']}.{source['table']} has no unique key and the connector sends no transaction "
            "metadata; set provide.transaction.metadata=true or give the table a primary key",
            code="no_row_identity",
        )
    order: int = transaction["total_order"]
    return order
