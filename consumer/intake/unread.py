"""Notices partitions that the group has given to this process and that nobody reads.

The loop asks it in each turn. Back-pressure and outages lift partitions too, and say so themselves; what stays unread
without them (a topic that was deleted, an offset that is moved again and again) would be silent for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet
from typing import Final

from consumer import telemetry
from consumer.kafka import Place
from consumer.telemetry import Health

_log = logging.getLogger(__name__)

UNREAD_SECONDS: Final = 30.0
"""How long a partition may be owned and not read."""
_SHOWN: Final = 10


class Unread:
    """Since when each partition is not read; belongs to the thread of the loop."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._since: dict[Place, float] = {}
        self._told: frozenset[Place] = frozenset()
        telemetry.UNREAD_PARTITIONS.set(0)

    def look(self, owned: AbstractSet[Place], placed: AbstractSet[Place], *, explained: bool) -> None:
        """Tell of what has not been read for UNREAD_SECONDS; time in which it is `explained` does not count."""
        now = time.monotonic()
        idle = frozenset() if explained else owned - placed
        self._since = {place: self._since.get(place, now) for place in idle}
        late = frozenset(place for place, since in self._since.items() if now - since > UNREAD_SECONDS)
        if late == self._told:
            return
        telemetry.UNREAD_PARTITIONS.set(len(late))
        names = ", ".join(f"{topic}/{number}" for topic, number in sorted(late)[:_SHOWN])
        names += f" and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
        if late - self._told:
            _log.warning(
                "partitions are given to this process and not read for %g s: %s. Does the topic still exist? "
                "`rowcall doctor` tells; a restart of this process reads them anew",
                UNREAD_SECONDS,
                names,
                extra={"action": "partitions_unread", "partitions": len(late)},
            )
        self._told = late
        self._health.report("partitions", ready=not late, detail=f"not read: {names}" if late else "all are read")
