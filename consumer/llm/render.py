"""An agent's input as the model reads it: one line of plain JSON.

Decimals stand as text (a model reads 0.10 as written), times in ISO 8601, bytes in base64, a column the change did not
touch as the word "unchanged". No string can hold a line break or the closing marker: data cannot leave its fence.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel

from consumer.errors import AgentError
from consumer.llm.trace_text import storable

# Line ends that JSON leaves as they are, and the start of a closing marker.
_ESCAPES: Final = (("\u2028", "\\u2028"), ("\u2029", "\\u2029"), ("\x85", "\\u0085"), ("</", "<\\/"))


def render(value: Any) -> str:
    """`value` as one line of JSON.

    Raises:
        AgentError: for a value of a type that has no readable form.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(", ", ": "))
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


def _plain(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case enum.Enum():
            return _plain(value.value)
        case str():
            return storable(value)
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {_key(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case BaseModel():
            return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    match value:
        case Decimal() | uuid.UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return _iso_duration(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise AgentError(f"a value of type {type(value).__name__} cannot be shown to a model; give it a plain form first")


def _key(key: Any) -> str:
    return storable(key) if isinstance(key, str) else str(_plain(key))


def _iso_duration(value: dt.timedelta) -> str:
    microseconds = value // dt.timedelta(microseconds=1)
    sign, whole = ("-" if microseconds < 0 else ""), abs(microseconds)
    seconds = f"{whole // 1_000_000}.{whole % 1_000_000:06}".rstrip("0").rstrip(".")
    return f"{sign}PT{seconds}S"
