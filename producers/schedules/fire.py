"""Firing: a slot and the run it starts, in one transaction.

Before it, the loop found a schedule due; after it, workers claim the run, or the outbox carries the tick. Writes
`schedule_slots` with `agent_jobs` or `outbox`, and the schedule's next slot. Promises: a slot fires once, however many
schedulers see it and wherever one dies; a run still going is never doubled unless the schedule allows it.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from consumer import db
from consumer.agents.schedule import Schedule
from consumer.errors import DataRefused, TransactionConflict
from consumer.telemetry import SLOTS
from producers.emit import identity
from producers.schedules import slots
from producers.schedules.definitions import from_json

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("schedules", "producers")


@dataclass(slots=True)
class Fired:
    """What one transaction did with one schedule: outcome → slots."""

    schedule: str
    outcomes: Counter[str] = field(default_factory=Counter)


def fire_due(session: db.SyncSession) -> Fired | None:
    """Fire what is due of one schedule; None when nothing is.

    Raises:
        Outage, TransactionConflict: nothing was written.
    """
    with db.transaction(session):
        row = session.execute(_SQL["pick"]).fetchone()
        if row is None:
            return None
        schedule = from_json(row["definition"])
        found = slots.due(schedule, row["next_slot"], row["now"])
        fired = Fired(schedule.name)
        for slot in found.missed:
            _note(session, fired, schedule, slot, "missed", detail="no scheduler ran in time")
        for slot in found.fire:
            try:
                with db.transaction(session):
                    fire(session, fired, schedule, slot)
            except DataRefused as error:
                # It would be refused again, and would hold up every schedule that is due later.
                _note(session, fired, schedule, slot, "refused", detail=str(error)[:1000])
        session.execute(_SQL["advance"], {"name": schedule.name, "next": found.next})
    _tell(fired)
    return fired


def fire(
    session: db.SyncSession, fired: Fired, schedule: Schedule, slot: dt.datetime, *, backfill: bool = False
) -> None:
    """Fire one slot, inside the caller's transaction that holds the schedule."""
    event = f"sc1:{schedule.name}:{slot.astimezone(dt.UTC).isoformat()}"
    if schedule.topic:
        _send_tick(session, schedule, slot, event)
        _note(session, fired, schedule, slot, "sent", backfill=backfill)
        return
    blocked = None if backfill else _make_way(session, schedule, slot)
    if blocked is not None:
        _note(session, fired, schedule, slot, "skipped", detail=blocked)
        return
    state = session.execute(_SQL["agent_state"], (schedule.agent,)).fetchone()
    if state is not None and state["state"] == "RETIRED":
        _note(session, fired, schedule, slot, "refused", detail=f"agent {schedule.agent} is retired")
        return
    job, coalesced = _queue(session, schedule, slot, event)
    _note(session, fired, schedule, slot, "coalesced" if coalesced else "queued", job=job, backfill=backfill)


def _make_way(session: db.SyncSession, schedule: Schedule, slot: dt.datetime) -> str | None:
    """Why the slot may not start a run; None when it may, after `cancel_previous` has cancelled."""
    live = session.execute(_SQL["live"], (schedule.name,)).fetchall()
    if not live or schedule.overlap == "allow":
        return None
    open_effects = [row for row in live if row["effect"] is not None]
    if schedule.overlap == "cancel_previous" and open_effects:
        # Only a person's word ends what nobody knows the end of.
        row = open_effects[0]
        return f"run {row['id']} of an earlier slot is {row['status']}, and its effect {row['effect']} is not known"
    if schedule.overlap == "cancel_previous":
        _cancel(session, schedule, slot, [row["id"] for row in live])
        return None
    if schedule.overlap == "queue_one" and len(live) < 2:
        return None
    first = live[0]
    return f"run {first['id']} of an earlier slot is {first['status']}"


def _cancel(session: db.SyncSession, schedule: Schedule, slot: dt.datetime, ids: Sequence[int]) -> None:
    reason = f"the slot {slot.isoformat()} of schedule {schedule.name} takes its place"
    session.execute(_SQL["cancel"], {"ids": list(ids), "error": reason})
    session.execute(_SQL["close_reviews"], {"ids": list(ids), "by": f"schedule {schedule.name}", "reason": reason})


def _queue(session: db.SyncSession, schedule: Schedule, slot: dt.datetime, event: str) -> tuple[int, bool]:
    """(the run, whether it is one that was there before)."""
    values: Mapping[str, Any] = {
        "agent": schedule.agent,
        "payload": orjson.dumps(slots.filled(schedule, slot, schedule.payload)).decode(),
        "dedupe_key": slots.filled(schedule, slot, schedule.dedupe_key),
        "event": event,
        "slot": slot,
        # One lane for the slots of a schedule: its runs go one after the other.
        "key": None if schedule.overlap == "allow" else f"schedule:{schedule.name}",
        "run_after": slots.starts_at(schedule, slot),
        "tenant": schedule.tenant,
        "priority": schedule.priority,
        "max_attempts": schedule.max_attempts,
    }
    row = session.execute(_SQL["queue"], values).fetchone()
    if row is not None:
        return row["id"], False
    holder = session.execute(_SQL["holder"], values).fetchone()
    if holder is None:
        # It ended between the two statements and freed the key; the next look fires the slot.
        raise TransactionConflict(f"the dedupe_key of schedule {schedule.name} has just changed hands")
    if holder["same"]:
        return holder["id"], False
    session.execute(_SQL["coalesce"], {"job": holder["id"], "event": event, "payload": values["payload"]})
    return holder["id"], True


def _send_tick(session: db.SyncSession, schedule: Schedule, slot: dt.datetime, event: str) -> None:
    payload = {
        "schedule": schedule.name,
        "slot": slot.astimezone(dt.UTC).isoformat(),
        "payload": slots.filled(schedule, slot, schedule.payload),
    }
    session.execute(
        _SQL["tick"],
        {
            "id": identity("schedule", event),
            "topic": schedule.topic,
            "key": schedule.name,
            "payload": orjson.dumps(payload),
            "occurred_at": payload["slot"],
        },
    )


def _note(
    session: db.SyncSession,
    fired: Fired,
    schedule: Schedule,
    slot: dt.datetime,
    outcome: str,
    *,
    job: int | None = None,
    detail: str | None = None,
    backfill: bool = False,
) -> None:
    values = {
        "schedule": schedule.name,
        "slot": slot,
        "outcome": outcome,
        "job": job,
        "detail": detail,
        "backfill": backfill,
    }
    if session.execute(_SQL["note"], values).fetchone() is not None:
        fired.outcomes[outcome] += 1


def _tell(fired: Fired) -> None:
    for outcome, count in fired.outcomes.items():
        SLOTS.add(count, outcome=outcome)
        level = logging.WARNING if outcome in ("missed", "refused") else logging.INFO
        _log.log(
            level,
            "schedule %s: %d %s",
            fired.schedule,
            count,
            outcome,
            extra={"action": "slot_" + outcome, "schedule": fired.schedule, "count": count},
        )
