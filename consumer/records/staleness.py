"""Whether a row is still as it was seen: values from the log beside values from the table."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from consumer.records.change import UNCHANGED, Change, ReadRow


def changed_columns(change: Change, current: Mapping[str, Any], written: set[str]) -> list[str]:
    """Columns whose value in the database is another one now than the agent saw.

    Those the agent has read; where that is not known (a person approved an answer of an earlier attempt), all but those
    about to be written, which an earlier run of the same agent may have filled.
    """
    row = change.row
    read = set(row.read) if isinstance(row, ReadRow) else set(row) - written
    # Looking at what was seen is not seeing it: the row may be compared more than once.
    seen = row.whole if isinstance(row, ReadRow) else row
    return [
        name
        for name, value in seen.items()
        if name in read and value is not UNCHANGED and name in current and not same(value, current[name])
    ]


def same(read: Any, current: Any) -> bool:
    """Whether a value from the log and one from the table are the same value."""
    if isinstance(read, float) and isinstance(current, float):
        # The log has a `real` in full (0.10000000149…), the table in its shortest form (0.1).
        return read == current or read == _as_real(current) or (math.isnan(read) and math.isnan(current))
    if isinstance(read, Decimal) and isinstance(current, Decimal):
        return read == current or (read.is_nan() and current.is_nan())
    if isinstance(read, dt.time) and isinstance(current, dt.time):
        # The log has a `timetz` in UTC, and Python does not turn the clock past midnight.
        return _in_utc(read) == _in_utc(current)
    if isinstance(current, memoryview):
        current = bytes(current)
    return bool(read == current)


def _as_real(value: float) -> float:
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return value
    return float(rounded)


def _in_utc(time: dt.time) -> dt.time:
    if time.utcoffset() is None:
        return time
    # Any day will do: only the time of it is looked at.
    return dt.datetime.combine(dt.date(2000, 1, 2), time).astimezone(dt.UTC).timetz()
