"""ADWIN: a window over a stream that shrinks when two parts of it have different means.

Bifet and Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007. A small port whose state is
JSON; River's implementation is the oracle of its tests, decision by decision. `Pair` runs two confidences over one
stream and keeps one window for both as long as neither has cut it.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any, Final

MAX_BUCKETS: Final = 5
MIN_PART: Final = 5
GRACE: Final = 10


class Adwin:
    """One window. `levels[i]` holds the totals and variances of buckets of 2^i values, the oldest first.

    Args:
        delta: confidence; smaller is surer and later.
        clock: how many values between two looks for a change.
    """

    __slots__ = ("clock", "delta", "levels", "tick", "total", "variance", "width")

    def __init__(self, delta: float, clock: int = 1) -> None:
        self.delta = delta
        self.clock = clock
        self.levels: list[tuple[list[float], list[float]]] = [([], [])]
        self.total = 0.0
        self.variance = 0.0
        self.width = 0
        self.tick = 0

    @property
    def mean(self) -> float:
        """The mean of the window; 0 while it is empty."""
        return self.total / self.width if self.width else 0.0

    def update(self, value: float) -> bool:
        """Take a finite value; whether the window has been cut."""
        self.insert(value)
        self.tick += 1
        if self.tick % self.clock or not self.changed():
            return False
        self.cut()
        return True

    def insert(self, value: float) -> None:
        """Put a value into the window, without looking for a change."""
        before = self.width
        self.width = width = before + 1
        if before:
            gap = value - self.total / before
            self.variance += before * gap * gap / width
        self.total += value
        totals, variances = self.levels[0]
        totals.append(value)
        variances.append(0.0)
        if len(totals) > MAX_BUCKETS:
            self._compress()

    def changed(self) -> bool:
        """Whether some cut of the window leaves two parts whose means differ more than chance allows."""
        width = self.width
        if width <= GRACE:
            return False
        chance = log(2 * log(width) / self.delta)
        # Rounding may leave a little less than nothing.
        spread, linear = max(0.0, self.variance / width), 2.0 / 3.0 * chance
        older, newer = 0, width
        sum_older, sum_newer = 0.0, self.total
        for index in range(len(self.levels) - 1, -1, -1):
            size = 1 << index
            for total in self.levels[index][0]:
                older += size
                newer -= size
                if newer < MIN_PART:
                    return False
                sum_older += total
                sum_newer -= total
                if older < MIN_PART:
                    continue
                gap = sum_older / older - sum_newer / newer
                share = 1.0 / (older - MIN_PART + 1) + 1.0 / (newer - MIN_PART + 1)
                if (gap if gap > 0 else -gap) > sqrt(2 * share * spread * chance) + linear * share:
                    return True
        return False

    def cut(self) -> None:
        """Drop the oldest buckets until no cut shows a change."""
        self._drop()
        while self.changed():
            self._drop()

    def copy(self) -> Adwin:
        """Another window with the same content."""
        return Adwin.load(self.dump(), self.delta, self.clock)

    def dump(self) -> list[Any]:
        """The state as JSON."""
        levels = [(list(totals), list(variances) if index else []) for index, (totals, variances)
                  in enumerate(self.levels)]  # fmt: skip
        return [self.width, self.total, self.variance, self.tick, levels]

    @classmethod
    def load(cls, state: list[Any], delta: float, clock: int = 1) -> Adwin:
        """The window that `dump` gave; numbers that JSON has made whole are taken back."""
        made = cls(delta, clock)
        made.width, made.total, made.variance, made.tick = state[0], float(state[1]), float(state[2]), state[3]
        made.levels = [
            (
                [float(value) for value in totals],
                [float(value) for value in variances] if index else [0.0] * len(totals),
            )
            for index, (totals, variances) in enumerate(state[4])
        ]
        return made

    def _drop(self) -> None:
        size = 1 << (len(self.levels) - 1)
        totals, variances = self.levels[-1]
        total, variance = totals.pop(0), variances.pop(0)
        self.width -= size
        self.total -= total
        gap = total / size - self.total / self.width
        self.variance -= variance + size * self.width * gap * gap / (size + self.width)
        if not totals and len(self.levels) > 1:
            self.levels.pop()

    def _compress(self) -> None:
        index = 0
        while index < len(self.levels) and len(self.levels[index][0]) > MAX_BUCKETS:
            totals, variances = self.levels[index]
            if index + 1 == len(self.levels):
                self.levels.append(([], []))
            size = 1 << index
            gap = totals[0] / size - totals[1] / size
            wider = self.levels[index + 1]
            wider[0].append(totals[0] + totals[1])
            wider[1].append(variances[0] + variances[1] + size * 0.5 * gap * gap)
            del totals[:2], variances[:2]
            index += 1


class Pair:
    """Two confidences over one stream: warning (the larger delta) and critical.

    While the windows are the same they are one object; a change the surer one sees is seen by the other too. After a
    critical change both go on from the narrower window.
    """

    __slots__ = ("_deltas", "critical", "warning")

    def __init__(self, warning: float, critical: float) -> None:
        self._deltas = (warning, critical)
        self.warning = Adwin(warning)
        self.critical: Adwin | None = None

    def update(self, value: float) -> int:
        """Take a finite value: 0 for no change, 1 for a change of level warning, 2 for critical."""
        warning, critical = self.warning, self.critical
        warning.insert(value)
        level = 0
        if critical is None:
            if not warning.changed():
                return 0
            critical = self.critical = warning.copy()
            critical.delta = self._deltas[1]
        else:
            critical.insert(value)
        if warning.changed():
            warning.cut()
            level = 1
        if critical.changed():
            critical.cut()
            level = 2
            if critical.width < warning.width:
                critical.delta = self._deltas[0]
                self.warning = critical
            self.critical = None
        return level

    @property
    def mean(self) -> float:
        """The mean of the narrower window: the values as they are now."""
        return self.warning.mean

    @property
    def width(self) -> int:
        """How many values that mean stands on."""
        return self.warning.width

    def dump(self) -> list[Any]:
        """The state as JSON."""
        return [self.warning.dump(), None if self.critical is None else self.critical.dump()]

    def load(self, state: list[Any]) -> None:
        """Take a state that `dump` gave."""
        self.warning = Adwin.load(state[0], self._deltas[0])
        self.critical = None if state[1] is None else Adwin.load(state[1], self._deltas[1])
