"""What becomes of reviews by the clock alone, told in logs and metrics: expiry, escalation, and what still waits.

The database does it (`consumer.review.tend`), one worker at a time; each worker tells how many wait.
"""

from __future__ import annotations

import logging

from consumer import db, review
from consumer.telemetry import REVIEWS_DECIDED, REVIEWS_ESCALATED, REVIEWS_OPEN

_log = logging.getLogger(__name__)


class ReviewClock:
    """Looks after undecided reviews; remembers which series it has set, so that they go back to 0."""

    def __init__(self) -> None:
        self._open: set[tuple[str, str, str]] = set()
        self._decided: set[tuple[str, str]] = set()

    @property
    def shows(self) -> bool:
        """Whether any gauge stands above 0."""
        return bool(self._open or self._decided)

    async def tend(self, session: db.Session) -> None:
        """Expire, escalate, supersede, and set the gauges."""
        done = await review.tend(session)
        for late in done.expired:
            _log.warning(
                "review %d expired undecided: its answer is denied and job %d cancelled", late.review_id, late.job_id,
                extra={"action": "review_expired", "agent": late.agent, "job_id": late.job_id},
            )  # fmt: skip
        for late in done.escalated:
            REVIEWS_ESCALATED.add(agent=late.agent)
            _log.warning(
                "review %d still waits: `rowcall reviews show %d`", late.review_id, late.review_id,
                extra={"action": "review_escalated", "agent": late.agent, "job_id": late.job_id},
            )  # fmt: skip
        if done.superseded:
            _log.info("%d reviews superseded by newer changes", done.superseded, extra={"action": "reviews_superseded"})
        await self._count(session)

    async def _count(self, session: db.Session) -> None:
        now = await review.counts(session)
        for agent, tier, age in self._open | set(now.open):
            REVIEWS_OPEN.set(now.open.get((agent, tier, age), 0), agent=agent, tier=tier, age=age)
        for agent, decision in self._decided | set(now.decided):
            REVIEWS_DECIDED.set(now.decided.get((agent, decision), 0), agent=agent, decision=decision)
        self._open, self._decided = set(now.open), set(now.decided)
