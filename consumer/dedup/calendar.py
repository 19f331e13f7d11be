"""The days by which event IDs are kept: made ahead, so that admission never lacks one, and dropped when they are over.

A table for each day from the horizon to three days ahead. An ID whose day lies beyond, or that has none, goes to the
undated table; its rows go when they were seen twice the horizon ago, so that a day up to a horizon ahead is over then.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from consumer import db

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("dedup")

DAYS_AHEAD: Final = 3
"""Days made before they begin: an intake that cannot make tables for a weekend still has them."""

PART: Final = 10_000
"""Rows of the undated table that one statement deletes."""


class Calendar:
    """Which days exist, by the database's clock.

    Args:
        horizon: days for which duplicates are known (ROWCALL_DEDUP_DAYS).
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self.today = 0
        self._made: set[int] = set()

    @property
    def oldest(self) -> int:
        """The first day inside the horizon; events before it are parked."""
        return self.today - self._horizon

    def is_dated(self, day: int | None) -> bool:
        """Whether IDs of this day are kept by day."""
        return day is not None and day <= self.today + DAYS_AHEAD

    def refresh(self, session: db.SyncSession) -> None:
        """Ask the database what day it is, and make the days that are missing from today on."""
        with db.translated():
            row = session.execute(_SQL["today"]).fetchone()
        self.today = 0 if row is None else int(row["today"])
        self._made = attached(session)
        self.ensure(session, set(range(self.today, self.today + DAYS_AHEAD + 1)))

    def ensure(self, session: db.SyncSession, days: set[int]) -> None:
        """Make the tables of these days where they are missing; outside any admission transaction."""
        missing = {day for day in days - self._made if self.oldest <= day <= self.today + DAYS_AHEAD}
        if not missing:
            return
        with db.transaction(session):
            session.execute(_SQL["lock_days"])
            for day in sorted(missing - attached(session)):
                statements = _statements(session, day)
                session.execute(statements["make"])
                session.execute(statements["attach"])
        self._made |= missing


def attached(session: db.SyncSession) -> set[int]:
    """The days that have a table now."""
    with db.translated():
        return {row["day"] for row in session.execute(_SQL["days"]) if row["attached"] and not row["pending"]}


def prune(session: db.SyncSession, horizon: int) -> list[int]:
    """Drop the days before the horizon, on a session without transaction_timeout; the days that went.

    Each is detached concurrently, so that admissions go on, and then dropped; a prune that was interrupted is finished.
    IDs without a day are deleted in parts.
    """
    gone: list[int] = []
    with db.translated():
        mine = session.execute(_SQL["try_lock_prune"]).fetchone()
        if mine is None or not mine["mine"]:
            return gone
        try:
            row = session.execute(_SQL["today"]).fetchone()
            oldest = (0 if row is None else row["today"]) - horizon
            for item in session.execute(_SQL["days"]).fetchall():
                if item["day"] >= oldest:
                    continue
                statements = _statements(session, item["day"])
                if item["pending"]:
                    session.execute(statements["finish"])
                elif item["attached"]:
                    session.execute(statements["detach"])
                session.execute(statements["drop"])
                gone.append(item["day"])
            _forget(session, 2 * horizon)
        finally:
            if not session.closed and not session.broken:
                session.execute(_SQL["unlock_prune"])
    if gone:
        _log.info("days of event IDs dropped", extra={"action": "prune", "count": len(gone)})
    return gone


def _forget(session: db.SyncSession, days: int) -> None:
    total, last = 0, PART
    while last == PART:
        last = session.execute(_SQL["forget_undated"], {"days": days, "limit": PART}).rowcount
        total += last
    if total:
        _log.info("event IDs without a day dropped", extra={"action": "prune", "count": total})


def _statements(session: db.SyncSession, day: int) -> dict[str, bytes]:
    row: dict[str, Any] | None = session.execute(_SQL["day_statements"], {"day": day}).fetchone()
    return {} if row is None else {name: text.encode() for name, text in row.items()}
