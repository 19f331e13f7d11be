"""When an endpoint wants to be asked again: every form in which that is said.

Order and treatment follow openai-python: `retry-after-ms`, then `retry-after` in seconds, then as HTTP-date;
`x-should-retry` overrides what the status means. After them come `x-ratelimit-reset*` (Go durations, seconds, or a time
since 1970) and the words "try again in …". Nonsense (negative, zero, NaN, endless, unreadable) counts as unsaid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

_UNITS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_GO_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|μs|ms|s|m|h|d)){1,6}")
_GO_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|μs|ms|s|m|h|d)")
_IN_WORDS: Final = re.compile(
    r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) ?(millisecond|second|minute|hour|day)s?\b", re.IGNORECASE
)
_IN_GO: Final = re.compile(r"(?:try again|retry) (?:in|after) ([0-9.nuµμmshd]+)", re.IGNORECASE)
_WORD_UNITS: Final = {"millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_RESETS: Final = ("x-ratelimit-reset", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
# A number above this is a time since 1970 in seconds; above a thousand times of it, in milliseconds.
_EPOCH_SECONDS: Final = 1e9


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """What `x-should-retry` says; None where it says nothing."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds of the Retry-After headers; `now` is seconds since 1970 (the answer's own Date is preferred)."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None and (wait := _usable(milliseconds / 1000)) is not None:
        return wait
    text = headers.get("retry-after", "")
    seconds = _number(text)
    if seconds is not None:
        return _usable(seconds)
    moment = _http_date(text)
    if moment is None:
        return None
    sent = _http_date(headers.get("date", ""))
    return _usable(moment - (now if sent is None else sent))


def reset_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the limit that is used up is whole again, by the `x-ratelimit-reset*` headers.

    A limit with something left is passed over. The wish is soft: a call may well succeed earlier.
    """
    waits = []
    for name in _RESETS:
        left = _number(headers.get(name.replace("reset", "remaining"), "0"))
        if left is None or left <= 0:
            waits.append(_reset(headers.get(name, ""), now))
    return max((wait for wait in waits if wait is not None), default=None)


def worded_wait(text: str) -> float | None:
    """Seconds of "try again in 20s", "… in 6m0s", "… in 24 hours"."""
    if (words := _IN_WORDS.search(text)) is not None:
        return _usable(float(words[1]) * _WORD_UNITS[words[2].lower()])
    if (go := _IN_GO.search(text)) is not None:
        return duration(go[1].rstrip("."))
    return None


def duration(text: str) -> float | None:
    """Seconds of a Go duration ("12ms", "6m0s", "1h2m3.5s"); None for anything else, and for zero."""
    if _GO_DURATION.fullmatch(text) is None:
        return None
    return _usable(sum(float(number) * _UNITS[unit] for number, unit in _GO_PART.findall(text)))


def _reset(text: str, now: float) -> float | None:
    number = _number(text)
    if number is None:
        return duration(text.strip())
    if number >= _EPOCH_SECONDS * 1000:
        return _usable(number / 1000 - now)
    return _usable(number - now if number >= _EPOCH_SECONDS else number)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _usable(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _http_date(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
