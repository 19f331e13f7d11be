"""What is due now and then beside the claims, whichever agents and however many runs a worker has.

Expired leases, ended pauses, reviews, limits and broken lanes. Before it, the loop looks for work; it writes through
the stages alone. Promises: one statement finds out what has anything to do, so that a worker that waits asks little;
what has is done at least every third of a lease, also while every slot is taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from consumer import claim, db, limits
from consumer.executor.measure import hold_changed
from consumer.executor.permits import Permits
from consumer.executor.review_clock import ReviewClock
from consumer.telemetry import RECLAIMED

_log = logging.getLogger(__name__)
# How often lanes are looked through for what statements by hand have broken.
_MEND_SECONDS: Final = 60.0


class Upkeep:
    """Does what is due on the session it is given.

    Args:
        agents: names of the worker's agents.
        lease_seconds: three looks fall into one lease.
        permits: says when a budget was just found spent: its hold must not wait for the next look.
    """

    def __init__(self, agents: Sequence[str], *, lease_seconds: float, permits: Permits) -> None:
        self._agents = list(agents)
        self._seconds = lease_seconds / 3
        self._permits = permits
        self._reviews = ReviewClock()
        self._look_at = 0.0
        self._mend_at = 0.0
        self.rated = False

    async def tend(self, session: db.Session) -> None:
        """One look, if it is time to, and what it finds to do. `rated` tells afterwards if any agent has a rate."""
        now = time.monotonic()
        if now >= self._look_at or self._permits.something_spent:
            self._look_at = now + self._seconds
            self._permits.something_spent = False
            await self._do(session, await claim.due(session, self._agents))
        if now >= self._mend_at:
            self._mend_at = now + _MEND_SECONDS
            if mended := await claim.mend_lanes(session):
                _log.error(
                    "%d lanes were broken by statements outside Rowcall's functions and are mended", mended,
                    extra={"action": "lanes_mended"},
                )  # fmt: skip

    async def _do(self, session: db.Session, due: claim.Due) -> None:
        if due.expired and (taken := await claim.reclaim(session)):
            RECLAIMED.add(taken)
            _log.warning("%d expired runs reclaimed", taken, extra={"action": "reclaim"})
        if due.paused:
            await claim.unpause_agents(session, self._agents)
        # Once more after the last one is gone: its gauge goes back to 0.
        if due.reviews or self._reviews.shows:
            await self._reviews.tend(session)
        self.rated = due.rated
        if due.limits:
            for hold in await limits.keep(session):
                hold_changed(hold)
