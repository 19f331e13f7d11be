"""The circuit breaker of one endpoint: after failures in a row, nothing is sent for a while, then one probe.

It keeps a broken endpoint from being asked by every run in flight at once, and those runs from waiting for it.
"""

from __future__ import annotations

from typing import Final

# Failures in a row that open it, and seconds it stays open; a run's own retry (2 s and doubling) is of the same order.
FAILURES: Final = 5
COOL_DOWN_SECONDS: Final = 15.0


class Breaker:
    """Times are of one monotonic clock, in seconds."""

    def __init__(self, failures: int = FAILURES, cool_down_seconds: float = COOL_DOWN_SECONDS) -> None:
        self._limit = failures
        self._cool_down = cool_down_seconds
        self._failed = 0
        self._open_until: float | None = None
        self._probing = False

    def wait(self, now: float) -> float | None:
        """None where a call may be sent; else the seconds after which it is worth a try."""
        if self._open_until is None:
            return None
        if now < self._open_until:
            return self._open_until - now
        return self._cool_down if self._probing else None

    def enter(self) -> bool:
        """A call is about to be sent; True when it is the probe."""
        probe = self._open_until is not None and not self._probing
        self._probing = self._probing or probe
        return probe

    def note(self, *, failed: bool, probe: bool, now: float) -> None:
        """The outcome of a call that was sent. One that began before the circuit opened does not prolong the pause."""
        self._probing = self._probing and not probe
        self._failed = self._failed + 1 if failed else 0
        if not failed:
            self._open_until = None
        elif self._failed >= self._limit and (probe or self._open_until is None):
            self._open_until = now + self._cool_down

    def abandon(self, *, probe: bool) -> None:
        """A call ended without an outcome (it was cancelled): the next one may be the probe."""
        self._probing = self._probing and not probe
