"""Which slots of a schedule are due, and which of those that were left behind are still to fire. Pure functions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice, takewhile
from typing import Any, Final
from zoneinfo import ZoneInfo

from consumer.agents.schedule import Schedule
from consumer.errors import DataRefused

SLOTS_AT_ONCE: Final = 1000
"""Slots dealt with in one transaction: a scheduler that was away for months catches up in several."""

# {slot}, {slot:FORMAT}, and a time beside it: {slot-1d:%Y-%m-%d}.
_PLACE: Final = re.compile(r"\{slot(?:([+-]\d{1,6})([dhm]))?(?::([^{}]*))?\}")
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True, slots=True)
class Due:
    """Slots up to now, in order. `fire` start a run, `missed` are only recorded; `next` is the first later one."""

    fire: list[dt.datetime]
    missed: list[dt.datetime]
    next: dt.datetime | None


def due(schedule: Schedule, first: dt.datetime, now: dt.datetime) -> Due:
    """Sort the slots from `first`, the first not yet dealt with, to now by the schedule's rules for catching up."""
    passed = [first] if first <= now else []
    coming = schedule.after(first)
    following: dt.datetime | None = next(coming, None) if passed else first
    while following is not None and following <= now and len(passed) < SLOTS_AT_ONCE:
        passed.append(following)
        following = next(coming, None)
    late = [slot for slot in passed if now - slot > schedule.grace]
    on_time = passed[len(late) :]
    room = schedule.catch_up_limit
    more_passed = following is not None and following <= now
    if following is not None and more_passed and schedule.catch_up == "all" and _recent(schedule, late[-1:], now):
        # The newest count, and they come in a later transaction.
        newer = takewhile(lambda slot: now - slot > schedule.grace, chain([following], coming))
        room -= sum(1 for _ in islice(newer, room))
    caught = [] if more_passed and schedule.catch_up != "all" else _caught_up(schedule, late, bool(on_time), now, room)
    kept = set(caught)
    return Due([*caught, *on_time], [slot for slot in late if slot not in kept], following)


def _recent(schedule: Schedule, late: list[dt.datetime], now: dt.datetime) -> list[dt.datetime]:
    return [slot for slot in late if now - slot <= schedule.catch_up_window]


def _caught_up(
    schedule: Schedule, late: list[dt.datetime], newer: bool, now: dt.datetime, room: int
) -> list[dt.datetime]:
    recent = _recent(schedule, late, now)
    if schedule.catch_up == "all":
        return recent[-room:] if room else []
    # The last slot is the one on time, where there is one.
    return recent[-1:] if schedule.catch_up == "last" and not newer else []


def starts_at(schedule: Schedule, slot: dt.datetime) -> dt.datetime:
    """When the slot's run may start: the slot and its jitter, the same whoever computes it."""
    if not schedule.jitter:
        return slot
    digest = sha256(f"{schedule.name}\n{slot.isoformat()}".encode()).digest()
    return slot + schedule.jitter * (int.from_bytes(digest[:8], "big") / 2**64)


def filled(schedule: Schedule, slot: dt.datetime, value: Any) -> Any:
    """`value` with `{slot:FORMAT}` in its texts replaced by the slot's time in the schedule's zone.

    `{slot-1d:FORMAT}` is a day before on the calendar, `h` and `m` are hours and minutes.

    Raises:
        DataRefused: a place of it is no time that there is.
    """
    if isinstance(value, str):
        return _PLACE.sub(lambda found: _told(slot.astimezone(ZoneInfo(schedule.timezone)), found), value)
    if isinstance(value, Mapping):
        return {name: filled(schedule, slot, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [filled(schedule, slot, item) for item in value]
    return value


def _told(local: dt.datetime, found: re.Match[str]) -> str:
    amount, unit, form = found.groups()
    try:
        moment = local + dt.timedelta(**{_UNITS[unit]: int(amount)}) if amount else local
        return moment.strftime(form) if form else moment.isoformat()
    except (OverflowError, ValueError) as error:
        raise DataRefused(f"{found.group()} is no time for the slot {local.isoformat()}: {error}") from error
