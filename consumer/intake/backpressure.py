"""Back-pressure: intake stops reading while too many jobs wait, and goes on below four fifths of the limit.

The backlog stays in Kafka then, where it costs nothing; the group membership is kept. Only jobs that an agent is to
work off count: those of paused, retired and unknown agents stop nobody.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from consumer import db, telemetry

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("intake")

RESUME_AT: Final = 0.8
CHECK_SECONDS: Final = 1.0
_SHARE: Final = 20
"""Counting takes at most one part in so many of the time, however much there is to count."""


class Backlog:
    """Counts waiting jobs, at most once in CHECK_SECONDS and only when the number may have changed.

    Args:
        limit: waiting jobs at which intake stops (ROWCALL_BACKLOG_LIMIT).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._checked = float("-inf")
        self._took = 0.0
        self._grown = True
        self.full = False

    def grow(self) -> None:
        """Say that jobs were admitted."""
        self._grown = True

    def check(self, session: db.SyncSession) -> bool:
        """Whether intake must not read.

        Raises:
            Outage: the database does not answer.
        """
        now = time.monotonic()
        if now - self._checked < max(CHECK_SECONDS, self._took * _SHARE) or not (self._grown or self.full):
            return self.full
        self._checked = now
        self._grown = False
        with db.translated():
            row = session.execute(_SQL["backlog"], {"limit": self._limit + 1}).fetchone()
        self._took = time.monotonic() - now
        waiting = 0 if row is None else int(row["waiting"])
        telemetry.BACKLOG.set(waiting)
        full = waiting > (self._limit * RESUME_AT if self.full else self._limit)
        if full != self.full:
            _log.warning(
                "%s jobs wait: intake %s",
                waiting,
                "stops reading" if full else "reads again",
                extra={"action": "backlog_full" if full else "backlog_over", "waiting": waiting, "limit": self._limit},
            )
        self.full = full
        return full
