"""The stored input of a job: a `Change` or `Event` as JSON text, and back.

Intake writes it, the executor reads it. What the job's own columns hold (event ID, topic, partition, offset, time) is
not repeated. Values take the codec's tags, so `read(kind, write(message), …)` is the same message again; rows of plain
values go through one compiled call, since intake does this for every admitted event.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Literal

import orjson

from consumer.records.change import Change, Coordinates, Event, Operation, Origin
from consumer.records.codec import TAG, decode, encode, tagged

Kind = Literal["change", "event"]

_NUL: Final = b"\\u0000"


def kind_of(message: Change | Event) -> Kind:
    """The job's `input_kind`."""
    return "change" if isinstance(message, Change) else "event"


def write(message: Change | Event) -> str:
    """The payload of a job that `message` wakes."""
    return to_bytes(message).decode()


def to_bytes(message: Change | Event) -> bytes:
    """The same as UTF-8, without NUL and without raw control characters."""
    if isinstance(message, Change):
        before, after, key = _row(message.before), _row(message.after), _row(message.key)
        if before is not _OTHER and after is not _OTHER and key is not _OTHER:
            plain = {
                "op": message.operation,
                "before": before,
                "after": after,
                "key": key,
                "origin": _origin(message.origin),
            }
            try:
                text = orjson.dumps(plain)
            except TypeError:  # a lone surrogate, or an integer beyond 64 bits
                text = _NUL
            # Looked for in two steps: hardly any row holds a backslash, and one byte is found fast.
            if b"\\" not in text or _NUL not in text:
                return text
    return encode(_plain(message)).encode()


def read(
    kind: str,
    text: str | bytes,
    *,
    event_id: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    key: str | None = None,
    occurred_at: dt.datetime | None = None,
) -> Change | Event:
    """The message a job was made from; for a job that was queued (`payload`), an Event around its data.

    Raises:
        ValueError: when the text is not what `write` makes for this kind.
    """
    data = decode(text)
    coordinates = None
    if topic is not None and partition is not None and offset is not None:
        coordinates = Coordinates(topic, partition, offset)
    if kind == "payload":
        return Event(event_id, topic, key, data, {}, occurred_at, coordinates)
    try:
        if kind == "change":
            return Change(
                event_id,
                Operation(data["op"]),
                data["before"],
                data["after"],
                data["key"],
                Origin(**data["origin"]),
                coordinates,
            )
        return Event(event_id, topic, data["key"], data["data"], data["headers"], occurred_at, coordinates)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the stored input is not a {kind}: {error}") from error


def _plain(message: Change | Event) -> dict[str, Any]:
    if isinstance(message, Event):
        return {"key": message.key, "data": message.data, "headers": message.headers}
    return {
        "op": message.operation.value,
        "before": message.before,
        "after": message.after,
        "key": message.key,
        "origin": _origin(message.origin),
    }


def _origin(origin: Origin) -> dict[str, Any]:
    return {
        "connector": origin.connector,
        "database": origin.database,
        "schema": origin.schema,
        "table": origin.table,
        "txid": origin.txid,
        "lsn": origin.lsn,
        "committed_ms": origin.committed_ms,
        "snapshot": origin.snapshot,
    }


def _row(row: Mapping[str, Any] | None) -> Any:
    """The row as orjson writes it, values tagged where they must be; `_OTHER` where only the codec knows how."""
    if row is None:
        return None
    tags = _tags_of(tuple(map(type, row.values())))
    if tags is None or TAG in row:
        return _OTHER
    if not tags:
        return row
    values = list(row.values())
    for place, tag in tags:
        values[place] = tag(values[place])
    return dict(zip(row, values, strict=True))


@lru_cache(maxsize=4096)
def _tags_of(kinds: tuple[type, ...]) -> tuple[tuple[int, Callable[[Any], Any]], ...] | None:
    """For a row of values of these types: what is to be tagged, by place; None where only the codec knows how.

    A table has few such rows, which differ in what is NULL, and they come by the thousands.
    """
    if not _DIRECT.issuperset(kinds):
        return None
    return tuple((place, _TAGS[kind]) for place, kind in enumerate(kinds) if kind in _TAGS)


def _tagged_float(value: float) -> Any:
    return value if math.isfinite(value) else tagged(value)


def _tagged_decimal(value: Decimal) -> Any:
    return {TAG: "decimal", "v": str(value)}


def _tagged_datetime(value: dt.datetime) -> Any:
    # orjson writes times without a zone or in UTC as isoformat does, only faster.
    zone = value.tzinfo
    return {TAG: "datetime", "v": value} if zone is None or zone is dt.UTC else tagged(value)


_OTHER: Final = object()
# What orjson writes as it is; how values of other types are tagged, which the codec does alike (tested side by side).
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_TAGS: Final[dict[type, Callable[[Any], Any]]] = {
    float: _tagged_float,
    Decimal: _tagged_decimal,
    dt.datetime: _tagged_datetime,
    dt.date: tagged,
    dt.time: tagged,
    dt.timedelta: tagged,
    bytes: tagged,
}
_DIRECT: Final = _PLAIN | _TAGS.keys()
