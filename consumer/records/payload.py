"""The stored input of a job: a `Change` or `Event` as JSON text, and back.

Intake writes it, the executor reads it. What the job's own columns hold (event ID, topic, partition, offset, time) is
not repeated. Values take the codec's tags, so `read(kind, write(message), …)` is the same message again; rows of plain
values go through one compiled call, since intake does this for every admitted event.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal

import orjson

from consumer.records.change import Change, Coordinates, Event, Operation, Origin
from consumer.records.codec import TAG, decode, encode

Kind = Literal["change", "event"]

# Types that orjson writes as they are, or leaves to `_tag`; every other one takes the codec's own way.
_DIRECT: Final = frozenset(
    {str, int, bool, type(None), Decimal, bytes, dt.datetime, dt.date, dt.time, dt.timedelta, float}
)
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
        before, after, key = message.before, message.after, message.key
        if _is_direct(before) and _is_direct(after) and _is_direct(key):
            # The operation and the origin go as they are: orjson writes enums and data classes by itself.
            plain = {"op": message.operation, "before": before, "after": after, "key": key, "origin": message.origin}
            try:
                text = orjson.dumps(plain, default=_tag, option=orjson.OPT_PASSTHROUGH_DATETIME)
            except TypeError:  # a lone surrogate, or an integer beyond 64 bits
                text = _NUL
            if _NUL not in text:
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
    origin = message.origin
    return {
        "op": message.operation.value,
        "before": message.before,
        "after": message.after,
        "key": message.key,
        "origin": {
            "connector": origin.connector,
            "database": origin.database,
            "schema": origin.schema,
            "table": origin.table,
            "txid": origin.txid,
            "lsn": origin.lsn,
            "committed_ms": origin.committed_ms,
            "snapshot": origin.snapshot,
        },
    }


def _is_direct(row: Mapping[str, Any] | None) -> bool:
    if row is None:
        return True
    types = set(map(type, row.values()))
    if not types <= _DIRECT or TAG in row:
        return False
    return float not in types or all(map(math.isfinite, [value for value in row.values() if type(value) is float]))


def _tag(value: Any) -> dict[str, Any]:
    # Values are of _DIRECT's types; the codec has the same tags, tested side by side.
    kind = type(value)
    if kind is Decimal:
        return {TAG: "decimal", "v": str(value)}
    if kind is dt.datetime:
        return {TAG: "datetime", "v": value.isoformat()}
    tagged: dict[str, Any] = orjson.loads(encode(value))
    return tagged
