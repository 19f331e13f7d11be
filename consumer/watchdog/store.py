"""What the watchdog writes: states, flips, the alerts that follow from them, reminders, and its own rounds.

Before it, `decide`; after it, `deliver` sends the alerts. Promises: a flip is written once however many watchdogs see
it, with the moment from which it held, and its alerts in the same transaction; a time without any watchdog is one flip.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from consumer import db
from consumer.records.jobs import storable
from consumer.telemetry import WATCH_FLIPS
from consumer.watchdog.alert import Listener, of_flip
from consumer.watchdog.decide import Decision
from consumer.watchdog.observation import FUTURE_SECONDS, Known

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("watchdog")
_KEEP_DAYS: Final = 30
_SAY_SECONDS: Final = 0.5
_GAP_SUBJECT: Final = "watchdog:rounds"


@dataclass(frozen=True, slots=True)
class Round:
    """The beginning of a round: the database's time, and whether nothing may become worse yet."""

    now: dt.datetime
    quiet: bool
    gap: bool


class Store:
    """One watchdog's hand on the database.

    Args:
        session: in autocommit.
        channels: whom each alert is for, where they want it; it is logged in any case.
    """

    def __init__(self, session: db.SyncSession, channels: Sequence[Listener]) -> None:
        self._session = session
        self._channels = list(channels)
        # When this round last said that it looks, by the process' own clock.
        self._said = -math.inf

    def begin_round(self, *, gap_seconds: float, quiet_seconds: float) -> Round:
        """Say that a watchdog looks now. After a gap: one flip, and a quiet time for all to be heard of again."""
        with db.transaction(self._session):
            values = {"gap": gap_seconds, "quiet": quiet_seconds, "future": FUTURE_SECONDS}
            row = self._session.execute(_SQL["begin_round"], values).fetchone()
            if row is None:
                raise AssertionError("a round always has a row")
            if row["gap"]:
                self._flip(_gap(row, quiet_seconds))
        self._said = time.monotonic()
        return Round(row["now"], row["quiet"], row["gap"])

    def still_looking(self, gap_seconds: float) -> None:
        """Say that the round goes on, where it takes long."""
        if time.monotonic() - self._said < _SAY_SECONDS:
            return
        self._said = time.monotonic()
        with db.transaction(self._session):
            self._session.execute(_SQL["still_looking"], {"gap": gap_seconds})

    def known(self) -> dict[str, Known]:
        """Every subject the database has."""
        names = ("subject", "state", "told", "paused", "message", "due_at", "reminders", "reminded_at")
        with db.translated():
            rows = self._session.execute(_SQL["states"]).fetchall()
        return {row["subject"]: Known(**{name: row[name] for name in names}) for row in rows}

    def begin_watching(self, decisions: Sequence[Decision]) -> None:
        """Write subjects that are new."""
        if decisions:
            with db.translated():
                self._session.execute(_SQL["begin_watching"], _columns(decisions))

    def see(self, decisions: Sequence[Decision]) -> None:
        """Keep when subjects were last heard of; not in every round."""
        if decisions:
            with db.transaction(self._session):
                self._session.execute(_SQL["see"], _columns(decisions))

    def move(self, decision: Decision) -> bool:
        """Write a flip with its alerts, unless another watchdog has."""
        # What a connector or a person says of itself may be anything; the flip must land.
        decision = replace(decision, message=storable(decision.message))
        values = {
            "subject": decision.subject, "old": decision.old, "new": decision.new, "told": decision.told,
            "message": decision.message, "due": decision.due_at, "beat": decision.last_beat_at, "run": decision.run_id,
        }  # fmt: skip
        with db.transaction(self._session):
            if self._session.execute(_SQL["move"], values).fetchone() is None:
                return False
            self._flip(decision)
        return True

    def remind(self, known: Iterable[Known], now: dt.datetime, seconds: float) -> int:
        """Tell again of what somebody was told and is still so; how many."""
        due = [
            item for item in known
            if item.told and not item.paused and item.reminded_at is not None
            and not dt.timedelta() <= now - item.reminded_at < dt.timedelta(seconds=seconds)
        ] if seconds > 0 else []  # fmt: skip
        return sum(self._remind(item, seconds) for item in due)

    def prune(self) -> None:
        """Drop what is too old to be asked about, and instances and subjects that are no more."""
        for name in ("prune_flips", "prune_alerts", "prune_heartbeats", "prune_states"):
            with db.transaction(self._session):
                self._session.execute(_SQL[name], {"days": _KEEP_DAYS})
        with db.transaction(self._session):
            names = [channel.name for channel in self._channels]
            orphans = self._session.execute(_SQL["give_up_orphans"], {"channels": names}).fetchall()
        for row in orphans:
            _log.error(
                "%d alerts for the channel %s were GIVEN UP: no watchdog has had it for a day", row["count"],
                row["channel"], extra={"action": "alert_gave_up", "channel": row["channel"]},
            )  # fmt: skip

    def _flip(self, decision: Decision) -> None:
        values = {
            "subject": decision.subject, "old": decision.old, "new": decision.new, "message": decision.message,
            "due": decision.due_at, "beat": decision.last_beat_at, "run": decision.run_id,
        }  # fmt: skip
        row = self._session.execute(_SQL["flip"], values).fetchone()
        if decision.alert and row is not None:
            self._alert(row, 0, decision.message)
        level = logging.INFO if not decision.alert or decision.new == "up" else logging.WARNING
        _log.log(
            level, "%s: %s → %s. %s", decision.subject, decision.old, decision.new, decision.message,
            extra={
                "action": "watch_flip", "subject": decision.subject, "state": decision.new, "was": decision.old,
                "due_at": decision.due_at, "told": decision.alert,
            },
        )  # fmt: skip
        WATCH_FLIPS.add(state=decision.new)

    def _remind(self, item: Known, seconds: float) -> bool:
        with db.transaction(self._session):
            values = {"subject": item.subject, "state": item.state, "reminders": item.reminders, "seconds": seconds}
            row = self._session.execute(_SQL["remind"], values).fetchone()
            if row is None:
                return False
            flip = self._session.execute(_SQL["last_flip"], {"subject": item.subject}).fetchone()
            if flip is not None:
                self._alert(flip, row["reminders"], row["message"])
        _log.warning(
            "%s is still %s. %s", item.subject, item.state, row["message"],
            extra={
                "action": "watch_reminder", "subject": item.subject, "state": item.state, "reminder": row["reminders"],
            },
        )  # fmt: skip
        return True

    def _alert(self, flip: Mapping[str, Any], reminder: int, message: str) -> None:
        alert = of_flip(flip, reminder=reminder, message=message)
        names = [channel.name for channel in self._channels if channel.wants(alert)]
        values = {"flip": flip["flip"], "reminder": reminder, "message": message, "channels": names}
        self._session.execute(_SQL["alert"], values)


def _gap(row: Any, quiet_seconds: float) -> Decision:
    away = (row["now"] - row["last_at"]).total_seconds()
    what = (
        f"no watchdog could look for {away:.0f} s" if away > 0 else f"the database's clock went back by {-away:.0f} s"
    )
    since = min(row["last_at"], row["now"])
    return Decision(
        subject=_GAP_SUBJECT, old="up", new="gap", told=True, alert=True, due_at=since,
        last_beat_at=since, run_id=None,
        message=f"{what}, until now; everything has {quiet_seconds:.0f} s to be heard "
        "of again before it is judged",
    )  # fmt: skip


def _columns(decisions: Sequence[Decision]) -> dict[str, list[Any]]:
    return {
        "subjects": [item.subject for item in decisions],
        "due": [item.due_at for item in decisions],
        "beats": [item.last_beat_at for item in decisions],
    }
