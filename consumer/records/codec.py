"""The one stored form of values: JSON, with a tag where JSON alone would lose or refuse something.

Plain JSON turns NaN into null, refuses lone surrogates and integers beyond 64 bits, and has no decimals, dates or
bytes; Postgres' json functions refuse NUL. Such values become {"$rc1": tag, "v": text}; everything else stands as
itself, so a payload written by hand is read as it is. `decode(encode(x)) == x` for every `Value`.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import orjson

from consumer.records.change import UNCHANGED, Infinity

# The 1 is the codec's version: a later form gets its own tag and this one stays readable.
TAG: Final = "$rc1"
_INT64: Final = 1 << 63
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")
_EPOCH_DELTA: Final = dt.timedelta(microseconds=1)


def encode(value: Any) -> str:
    """The JSON text of `value`.

    Raises:
        TypeError: for a type the codec does not know.
    """
    return orjson.dumps(_plain(value)).decode()


def decode(text: str | bytes) -> Any:
    """The value that `encode` was given.

    Raises:
        ValueError: when the text is not JSON or carries an unknown tag.
    """
    # orjson makes a float of an integer beyond 64 bits, which a payload written by hand may hold.
    exact = _LONG_NUMBER.search(text if isinstance(text, str) else text.decode()) is not None
    return _rich(json.loads(text) if exact else orjson.loads(text))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if _is_storable(value) else _tagged("str", _b64(value.encode("utf-8", "surrogatepass")))
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else _tagged("int", str(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return tagged(value)


def _is_storable(text: str) -> bool:
    return (text.isascii() and "\x00" not in text) or ("\x00" not in text and not _has_surrogate(text))


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _plain_mapping(value: Mapping[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith("$rc") and _is_storable(key) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    return _tagged("map", [[_plain(key), _plain(item)] for key, item in value.items()])


def tagged(value: Any) -> Any:
    """A value that JSON has no form for, neither text nor number nor container, as its tagged object.

    Raises:
        TypeError: for a type the codec does not know.
    """
    match value:
        case Decimal():
            return _tagged("decimal", str(value))
        case bytes() | bytearray() | memoryview():
            return _tagged("bytes", _b64(bytes(value)))
        case dt.datetime():
            return _tagged("datetime", value.isoformat())
        case dt.date():
            return _tagged("date", value.isoformat())
        case dt.time():
            return _tagged("time", value.isoformat())
        case dt.timedelta():
            microseconds = value // _EPOCH_DELTA
            # The longest durations go beyond the 64 bits that JSON's writer takes.
            return _tagged("duration", microseconds if -_INT64 <= microseconds < _INT64 else str(microseconds))
        case uuid.UUID():
            return _tagged("uuid", str(value))
        case Infinity():
            return _tagged("infinity", value.value)
        case str() | int() | float():  # subclasses: enums with a plain value
            return _plain(value.__class__.__mro__[-2](value) if not hasattr(value, "value") else value.value)
    if value is UNCHANGED:
        return _tagged("unchanged", None)
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {TAG: tag, "v": value}


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _rich(value: Any) -> Any:
    if type(value) is dict:
        if TAG in value:
            return _untag(value)
        return {key: _rich(item) for key, item in value.items()}
    if type(value) is list:
        return [_rich(item) for item in value]
    return value


def _untag(value: dict[str, Any]) -> Any:
    reader = _READERS.get(value[TAG])
    if reader is None:
        raise ValueError(f"unknown tag {value[TAG]!r} in stored data")
    return reader(value.get("v"))


_READERS: Final[dict[str, Any]] = {
    "str": lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    "int": int,
    "float": float,
    "map": lambda pairs: {_rich(key): _rich(item) for key, item in pairs},
    "decimal": Decimal,
    "bytes": base64.b64decode,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "duration": lambda microseconds: dt.timedelta(microseconds=int(microseconds)),
    "uuid": uuid.UUID,
    "infinity": Infinity,
    "unchanged": lambda _: UNCHANGED,
}
