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
# Until the window has grown by this share of itself, the spread of its values keeps 9 parts of 10.
_GROWTH: Final = 9
# Of the room that a look leaves, what the sum of later values may take; the rest is for their number.
_WALK: Final = 0.75


class Adwin:
    """One window. `levels[i]` holds the totals and variances of buckets of 2^i values, the oldest first; one value has
    no variance, so level 0 holds none.

    A look at all cuts also tells how far the values that follow may wander before any cut can show a change; until they
    have, nobody has to look again (`_look`). This changes no decision and is no part of the state.

    Args:
        delta: confidence; smaller is surer and later.
        clock: how many values between two looks for a change.
    """

    __slots__ = ("_bound", "_centre", "_left", "_walk", "clock", "delta", "levels", "tick", "total", "variance",
                 "width")  # fmt: skip

    def __init__(self, delta: float, clock: int = 1) -> None:
        self.delta = delta
        self.clock = clock
        self.levels: list[tuple[list[float], list[float]]] = [([], [])]
        self.total = 0.0
        self.variance = 0.0
        self.width = 0
        self.tick = 0
        self._left, self._bound, self._centre, self._walk = 0, 0.0, 0.0, 0.0

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

    def trust(self, delta: float) -> None:
        """Go on with another confidence."""
        self.delta = delta
        self._left = 0

    def insert(self, value: float) -> None:
        """Put a value into the window, without looking for a change."""
        before, total = self.width, self.total
        self.width = width = before + 1
        if before:
            gap = value - total / before
            self.variance += before * gap * gap / width
        self.total = total + value
        if self._left:
            walk = self._walk = self._walk + value - self._centre
            self._left = self._left - 1 if -self._bound <= walk <= self._bound else 0
        totals = self.levels[0][0]
        totals.append(value)
        if len(totals) > MAX_BUCKETS:
            self._compress()

    def changed(self) -> bool:
        """Whether some cut of the window leaves two parts whose means differ more than chance allows."""
        return not self._left and self.width > GRACE and self._look()

    def _look(self) -> bool:
        """The same, by all cuts; without a change it sets for how many values the answer stands.

        A cut shows a change when |T| > n * bound(n), for n values after it whose sum lies T from n times the mean m of
        those before it. What comes later leaves m alone. With a centre c, k later values add to T their walk, the sum
        of value - c, and k(c - m); so the answer stands while |walk| + k |c - m| is no more than what each cut leaves
        of the least its n * bound(n) can become. It never falls below `least`, which is also what two parts of the walk
        itself have to differ by.
        """
        width, centre = self.width, self.total / self.width
        chance = log(2 * log(width) / self.delta)
        # Rounding may leave a little less than nothing.
        spread, linear = max(0.0, self.variance / width), 2.0 / 3.0 * chance
        least = linear + 4 * sqrt(2 * spread * chance)
        room, reach = 0.9 * least, 0.0
        older, newer = 0, width
        sum_older, sum_newer = 0.0, self.total
        for index in range(len(self.levels) - 1, -1, -1):
            size = 1 << index
            for total in self.levels[index][0]:
                older += size
                newer -= size
                sum_older += total
                sum_newer -= total
                if older < MIN_PART:
                    continue
                mean = sum_older / older
                low = least
                if newer >= MIN_PART:
                    gap = mean - sum_newer / newer
                    rest = 1.0 / (older - MIN_PART + 1)
                    share = rest + 1.0 / (newer - MIN_PART + 1)
                    root = sqrt(2 * share * spread * chance)
                    if (gap if gap > 0 else -gap) > root + linear * share:
                        return True
                    if newer >= 2 * MIN_PART:
                        low = newer * root + linear * (newer * rest + 1)
                far, off = sum_newer - newer * mean, mean - centre
                left = 0.9 * low - (far if far > 0 else -far)
                if left < room:
                    room = left
                if off > reach or -off > reach:
                    reach = off if off > 0 else -off
        self._stand(room, reach, 0.9 * least)
        return False

    def _stand(self, room: float, reach: float, least: float) -> None:
        """Set for how many values, and how long a walk, an answer stands."""
        if room <= 0:
            return
        bound = min(_WALK * room, least / (2 + 1 / _GROWTH))
        steps, rest = self.width // _GROWTH, room - bound
        self._left = steps if reach * steps <= rest else int(rest / reach)
        self._bound, self._centre, self._walk = bound, self.total / self.width, 0.0

    def cut(self) -> None:
        """Drop the oldest buckets until no cut shows a change."""
        self._drop()
        while self.changed():
            self._drop()

    def copy(self) -> Adwin:
        """Another window with the same content."""
        return Adwin.load(self.dump(), self.delta, self.clock)

    def dump(self) -> list[Any]:
        """The state as JSON. The lists are the window's own: write them before the next value."""
        return [self.width, self.total, self.variance, self.tick, self.levels]

    @classmethod
    def load(cls, state: list[Any], delta: float, clock: int = 1) -> Adwin:
        """The window that `dump` gave; numbers that JSON has made whole are taken back."""
        made = cls(delta, clock)
        made.width, made.total, made.variance, made.tick = state[0], float(state[1]), float(state[2]), state[3]
        made.levels = [(list(map(float, totals)), list(map(float, variances))) for totals, variances in state[4]]
        return made

    def _drop(self) -> None:
        size = 1 << (len(self.levels) - 1)
        totals, variances = self.levels[-1]
        total, variance = totals.pop(0), variances.pop(0) if variances else 0.0
        self.width -= size
        self.total -= total
        self._left = 0
        gap = total / size - self.total / self.width
        self.variance -= variance + size * self.width * gap * gap / (size + self.width)
        if not totals and len(self.levels) > 1:
            self.levels.pop()

    def _compress(self) -> None:
        levels, index = self.levels, 0
        totals, variances = levels[0]
        while len(totals) > MAX_BUCKETS:
            if index + 1 == len(levels):
                levels.append(([], []))
            one, other = totals[:2]
            size = 1 << index
            gap = one / size - other / size
            spread = variances[0] + variances[1] if index else 0.0
            del totals[:2], variances[:2]
            index += 1
            totals, variances = levels[index]
            totals.append(one + other)
            variances.append(spread + size * 0.5 * gap * gap)


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
            critical.trust(self._deltas[1])
        else:
            critical.insert(value)
        if warning.changed():
            warning.cut()
            level = 1
        if critical.changed():
            critical.cut()
            level = 2
            if critical.width < warning.width:
                critical.trust(self._deltas[0])
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
