"""Dates and times of Debezium and Connect as Python's, with what Python cannot hold kept as `Infinity` or ISO text.

Python's years are 1 to 9999; Postgres' dates go from 4713 BC to 5874897. A value outside is the same instant in ISO
8601 with a sign, never an error and never a wrong date. 24:00, which Postgres allows, becomes a timedelta of one day.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from consumer.records import Infinity

_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
# The Gregorian calendar repeats after 400 years.
_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400

# The driver's infinite dates after Debezium has cut them to an int of days, in UTC (seen with 3.6.1). Connect must run
# in UTC: the cut depends on its zone.
_INFINITE_DAYS: Final = {-2147472692: Infinity.POSITIVE, -2147472691: Infinity.NEGATIVE}
# Postgres' infinite timestamps as the JDBC driver gives them, in each unit Debezium sends (seen with 3.6.1). Debezium
# itself cuts finite timestamps beyond the year 294247 to the largest int64.
_INFINITE_US: Final = {9223372036825200000: Infinity.POSITIVE, -9223372036832400000: Infinity.NEGATIVE}
_INFINITE_MS: Final = {9223372036825200: Infinity.POSITIVE, -9223372036832400: Infinity.NEGATIVE}
_INFINITE_NS: Final = {2**63 - 1: Infinity.POSITIVE, -(2**63): Infinity.NEGATIVE}
_INFINITE_TEXT: Final = {"infinity": Infinity.POSITIVE, "-infinity": Infinity.NEGATIVE}

Date = dt.date | Infinity | str
Time = dt.time | dt.timedelta
Moment = dt.datetime | Infinity | str


def date(days: int) -> Date:
    """Days since 1970."""
    try:
        return dt.date.fromordinal(_EPOCH_ORDINAL + days)
    except (ValueError, OverflowError):
        return _INFINITE_DAYS.get(days) or _far_date(days)


def time_ms(milliseconds: int) -> Time:
    """Milliseconds since midnight."""
    return time_us(milliseconds * 1000)


def time_us(microseconds: int) -> Time:
    """Microseconds since midnight; a full day is 24:00."""
    if microseconds == _DAY_US:
        return dt.timedelta(days=1)
    if not 0 <= microseconds < _DAY_US:
        raise ValueError(f"{microseconds} microseconds are no time of day")
    return (_EPOCH + dt.timedelta(0, 0, microseconds)).time()


def time_ns(nanoseconds: int) -> Time:
    """Nanoseconds since midnight; Postgres knows no finer unit than microseconds."""
    return time_us(nanoseconds // 1000)


def time_zoned(text: str) -> Time:
    """`11:51:30.123Z`; Debezium gives every timetz in UTC."""
    return dt.timedelta(days=1) if text.startswith("24:00:00") else dt.time.fromisoformat(text)


def timestamp_ms(milliseconds: int) -> Moment:
    """Milliseconds since 1970 of a wall clock without a zone."""
    return _INFINITE_MS.get(milliseconds) or timestamp_us(milliseconds * 1000)


def timestamp_us(microseconds: int) -> Moment:
    """Microseconds since 1970 of a wall clock without a zone."""
    try:
        return _EPOCH + dt.timedelta(0, 0, microseconds)
    except OverflowError:
        return _INFINITE_US.get(microseconds) or _far_timestamp(microseconds)


def timestamp_ns(nanoseconds: int) -> Moment:
    """Nanoseconds since 1970 of a wall clock without a zone."""
    return _INFINITE_NS.get(nanoseconds) or timestamp_us(nanoseconds // 1000)


def timestamp_zoned(text: str) -> Moment:
    """ISO 8601 with a zone; years that Python does not have stay as the text they are."""
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return _INFINITE_TEXT.get(text) or text


def date_iso(text: str) -> Date:
    """`2017-09-15Z`, Debezium's IsoDate: the zone is a constant and means nothing."""
    try:
        return dt.date.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return _INFINITE_TEXT.get(text) or text


def timestamp_iso(text: str) -> Moment:
    """`2017-09-15T04:05:11.789Z`, Debezium's IsoTimestamp: a wall clock, its zone is a constant."""
    moment = timestamp_zoned(text)
    return moment.replace(tzinfo=None) if isinstance(moment, dt.datetime) else moment


def time_iso(text: str) -> Time:
    """`04:05:11.789Z`, Debezium's IsoTime: a wall clock, its zone is a constant."""
    moment = time_zoned(text)
    return moment.replace(tzinfo=None) if isinstance(moment, dt.time) else moment


def instant_ms(milliseconds: int) -> Moment:
    """Milliseconds since 1970 UTC: Avro's own timestamp-millis."""
    return instant_us(milliseconds * 1000)


def instant_us(microseconds: int) -> Moment:
    """Microseconds since 1970 UTC: Avro's own timestamp-micros."""
    try:
        return _EPOCH_UTC + dt.timedelta(0, 0, microseconds)
    except OverflowError:
        return f"{_far_timestamp(microseconds)}Z"


def duration_us(microseconds: int) -> dt.timedelta:
    """Debezium's MicroDuration: approximate, a month counts 365.25 / 12 days."""
    return dt.timedelta(0, 0, microseconds)


def _far_date(days: int) -> str:
    ordinal = _EPOCH_ORDINAL + days
    cycles = (ordinal - 1) // _CYCLE_DAYS
    near = dt.date.fromordinal(ordinal - cycles * _CYCLE_DAYS)
    return f"{near.year + cycles * _CYCLE_YEARS:+05d}-{near.month:02d}-{near.day:02d}"


def _far_timestamp(microseconds: int) -> str:
    days, rest = divmod(microseconds, _DAY_US)
    return f"{_far_date(days)}T{(_EPOCH + dt.timedelta(0, 0, rest)).time().isoformat('microseconds')}"
