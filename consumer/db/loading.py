"""How values of Postgres become Python's: as the decoder of row changes gives them, and never with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.string import TextLoader

from consumer.records import Infinity

# Types that the decoder of row changes gives as text; psycopg has classes of its own for them.
_RANGES: Final = ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange")
_AS_TEXT: Final = ("inet", "cidr", *_RANGES, *(name.replace("range", "multirange") for name in _RANGES))


def adapt(context: AdaptContext) -> None:
    """Have a session load values so."""
    if context.adapters is not None:
        context.adapters.register_loader("date", _Date)
        context.adapters.register_loader("timestamp", _Timestamp)
        context.adapters.register_loader("timestamptz", _Timestamptz)
        for name in _AS_TEXT:
            context.adapters.register_loader(name, TextLoader)


class _Date(DateLoader):
    """Dates; Postgres' infinities as `Infinity`, as the decoder of row changes gives them."""

    def load(self, data: Any) -> Any:
        return _loaded(super().load, data)


class _Timestamp(TimestampLoader):
    """Timestamps, likewise."""

    def load(self, data: Any) -> Any:
        return _loaded(super().load, data)


class _Timestamptz(TimestamptzLoader):
    """Timestamps with time zone, likewise."""

    def load(self, data: Any) -> Any:
        return _loaded(super().load, data)


def _loaded(load: Callable[[Any], Any], data: Any) -> Any:
    """What `load` makes of the text; the text itself where Python has no such time. A row must never fail to load."""
    text = bytes(data)
    if text in (b"infinity", b"-infinity"):
        return Infinity(text.decode())
    try:
        return load(data)
    except psycopg.DataError:
        return text.decode()
