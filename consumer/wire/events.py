"""Application events: what the outbox router, or any producer that sets an `id` header, puts on a topic.

The value is Avro with its schema ID in front, or a JSON object in plain bytes. Its identity is the `id` header alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from consumer.records import Coordinates, Event
from consumer.wire.avro import Convert, Schema, named_types, not_framed
from consumer.wire.columns import TypeTable, json_text
from consumer.wire.identity import event_id, header_text
from consumer.wire.reader import reader

ID_HEADER: Final = "id"
OCCURRED_AT_HEADER: Final = "occurred_at"

# A day and more inside what Python can hold, so that the stored moment can be read back in any session's time zone.
_FIRST_MOMENT: Final = dt.datetime(2, 1, 1, tzinfo=dt.UTC)
_LAST_MOMENT: Final = dt.datetime(9998, 12, 31, tzinfo=dt.UTC)

Headers = Iterable[tuple[str, bytes | str | None]] | None
"""As confluent-kafka gives them; a name may come twice, then the last one counts."""


class DatumPlan:
    """Reads framed Avro of any shape, records and Avro's own logical types included."""

    def __init__(self, schema: Schema) -> None:
        self._read = reader(schema)
        table = TypeTable(named_types(schema), records=True)
        self._convert: Convert | None = table.conversion(schema, "")

    def read(self, message: bytes) -> Any:
        """The decoded datum."""
        datum = self._read(message)
        return datum if self._convert is None or datum is None else self._convert(datum)


def event(data: Any, key: str | None, headers: Headers, coordinates: Coordinates | None, namespace: str) -> Event:
    """The event around decoded `data`.

    Raises:
        Poison: `missing_event_id`.
    """
    raw = dict(headers or ())
    texts = {name: _text(value) for name, value in raw.items() if value is not None}
    return Event(
        event_id(namespace, raw.get(ID_HEADER)),
        None if coordinates is None else coordinates.topic,
        key,
        data,
        texts,
        _moment(texts.get(OCCURRED_AT_HEADER)),
        coordinates,
    )


def json_object(message: bytes) -> dict[str, Any] | None:
    """The JSON object a message is, or None for JSON null, which is a tombstone.

    Raises:
        Poison: `not_framed`, when it is anything else.
    """
    try:
        data = json_text(message.decode())
    except (ValueError, RecursionError) as error:
        raise not_framed(message) from error
    if data is not None and not isinstance(data, dict):
        raise not_framed(message)
    return data


def key_text(datum: Any) -> str | None:
    """A decoded key as the text that orders events: a string as it is, anything else as JSON."""
    if datum is None or isinstance(datum, str):
        return datum
    return orjson.dumps(datum, default=str, option=orjson.OPT_SORT_KEYS).decode()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _moment(text: str | None) -> dt.datetime | None:
    """An ISO time with a zone, in UTC: Postgres takes fewer offsets than ISO.

    One without a zone names no instant, and neither does any other text; years 1 and 9999 cannot be stored and read
    everywhere. The header keeps it then.
    """
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(header_text(text))
    except ValueError:
        return None
    if moment.tzinfo is None or not _FIRST_MOMENT <= moment <= _LAST_MOMENT:
        return None
    return moment.astimezone(dt.UTC)


def describes_transaction(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is Debezium's BEGIN or END marker."""
    return data.get("status") in ("BEGIN", "END") and {"id", "event_count", "data_collections"} <= data.keys()
