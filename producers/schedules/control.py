"""What people do with schedules: look, pause, resume, fill a range again. Each act stands in the audit."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import orjson

from consumer import db
from consumer.agents.schedule import Schedule
from consumer.errors import OperatorError
from producers.schedules.definitions import from_json, now_of
from producers.schedules.fire import Fired, fire

_SQL: Final = db.queries("schedules", "producers")
BACKFILL_LIMIT: Final = 1000
"""Slots of one backfill; a longer range is filled in parts."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """Slots of a range: `fire` those that started nothing yet, `done` the number of those that did."""

    fire: list[dt.datetime] = field(default_factory=list)
    done: int = 0


def stored(session: db.SyncSession) -> list[dict[str, Any]]:
    """Every schedule, with its definition."""
    with db.translated():
        return [dict(row) for row in session.execute(_SQL["stored"])]


def find(session: db.SyncSession, name: str) -> dict[str, Any]:
    """One schedule.

    Raises:
        OperatorError: there is none of this name; names those there are.
    """
    rows = stored(session)
    for row in rows:
        if row["name"] == name:
            return row
    names = ", ".join(row["name"] for row in rows) or "none; a scheduler declares them when it starts"
    raise OperatorError(f"there is no schedule {name!r}; known are: {names}")


def next_slots(row: dict[str, Any], now: dt.datetime, count: int) -> list[dt.datetime]:
    """The next slots of a stored schedule."""
    schedule = from_json(row["definition"])
    first = row["next_slot"]
    if first is None or count < 1:
        return []
    start = max(first, now)
    later = schedule.after(start)
    found = [first] if first >= now else []
    while len(found) < count and (slot := next(later, None)) is not None:
        found.append(slot)
    return found


def past_slots(session: db.SyncSession, name: str, limit: int) -> list[dict[str, Any]]:
    """The latest slots and what became of them, the newest first."""
    with db.translated():
        return [dict(row) for row in session.execute(_SQL["slots"], {"schedule": name, "limit": limit})]


def pause(session: db.SyncSession, name: str, *, actor: str, reason: str | None) -> None:
    """Fire no more slots until it is resumed; slots that pass meanwhile are not caught up.

    Raises:
        OperatorError: there is no such schedule, or it is not active.
    """
    with db.transaction(session):
        row = _held(session, name)
        if row["state"] != "ACTIVE":
            raise OperatorError(f"schedule {name} is {row['state']} already")
        _set_state(session, name, "PAUSED", reason, row["next_slot"])
        _audit(session, actor, "schedule_pause", name, reason=reason)


def resume(session: db.SyncSession, name: str, *, actor: str, reason: str | None, catch_up: bool) -> None:
    """Fire again from now on, or with `catch_up` from the first slot after the pause began, by the schedule's rules.

    Raises:
        OperatorError: there is no such schedule, or it is not paused.
    """
    with db.transaction(session):
        row = _held(session, name)
        if row["state"] != "PAUSED":
            raise OperatorError(f"schedule {name} is {row['state']}, not PAUSED")
        following = row["next_slot"] if catch_up else next(from_json(row["definition"]).after(row["now"]), None)
        _set_state(session, name, "ACTIVE", None, following)
        _audit(session, actor, "schedule_resume", name, reason=reason, catch_up=catch_up)


def plan(session: db.SyncSession, name: str, start: dt.datetime, end: dt.datetime) -> Backfill:
    """What a backfill of [start, end) would fire.

    Raises:
        OperatorError: the range is empty, lies in the future, or holds more than BACKFILL_LIMIT slots.
    """
    schedule = from_json(find(session, name)["definition"])
    with db.translated():
        now = now_of(session)
        done = session.execute(_SQL["settled_slots"], {"schedule": name, "start": start, "end": end}).fetchall()
    if start >= end:
        raise OperatorError("the range is empty: --from must lie before --to")
    if end > now:
        raise OperatorError("a backfill ends now at the latest; what comes later fires by itself")
    found = _slots_between(schedule, start, end)
    settled = {row["slot"] for row in done}
    return Backfill([slot for slot in found if slot not in settled], len(settled & set(found)))


def backfill(session: db.SyncSession, name: str, slots: list[dt.datetime], *, actor: str, reason: str | None) -> Fired:
    """Fire these slots now, whatever runs; a slot that started something meanwhile is left alone."""
    with db.transaction(session):
        row = _held(session, name)
        schedule = from_json(row["definition"])
        fired = Fired(name)
        for slot in slots:
            values = {"schedule": name, "start": slot, "end": slot + dt.timedelta(microseconds=1)}
            if session.execute(_SQL["settled_slots"], values).fetchone() is None:
                fire(session, fired, schedule, slot, backfill=True)
        detail = {"from": slots[0].isoformat(), "to": slots[-1].isoformat(), "slots": len(slots)} if slots else {}
        _audit(session, actor, "schedule_backfill", name, reason=reason, **detail)
    return fired


def _slots_between(schedule: Schedule, start: dt.datetime, end: dt.datetime) -> list[dt.datetime]:
    found: list[dt.datetime] = []
    for slot in takewhile(lambda slot: slot < end, schedule.after(start - dt.timedelta(seconds=1))):
        if len(found) == BACKFILL_LIMIT:
            raise OperatorError(f"the range holds more than {BACKFILL_LIMIT} slots; fill it in parts")
        if slot >= start:
            found.append(slot)
    return found


def _held(session: db.SyncSession, name: str) -> dict[str, Any]:
    row = session.execute(_SQL["hold"], (name,)).fetchone()
    if row is None:
        find(session, name)
        raise OperatorError(f"schedule {name!r} has just gone")
    return dict(row)


def _set_state(
    session: db.SyncSession, name: str, state: str, reason: str | None, following: dt.datetime | None
) -> None:
    session.execute(_SQL["set_state"], {"name": name, "state": state, "reason": reason, "next": following})


def _audit(session: db.SyncSession, actor: str, action: str, name: str, **detail: Any) -> None:
    given = {key: value for key, value in detail.items() if value is not None}
    values = {"actor": actor, "action": action, "subject": f"schedule:{name}", "detail": orjson.dumps(given).decode()}
    session.execute(_SQL["audit"], values)
