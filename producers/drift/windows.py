"""The detectors of windows, bounds and the clock: distribution, unseen, threshold, freshness, volume, schema."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from math import log, sqrt
from typing import Any, Final

from producers.drift.detectors import CRITICAL, LEARNING, OK, WARNING, Detector, Options, Reading, Timeless

_BINS: Final = 10
_KNOWN: Final = 1000


class Levels:
    """Two bounds with hysteresis: a level that is reached is left only beyond its share of the bound."""

    def __init__(self, options: Options) -> None:
        assert options.warning is not None and options.critical is not None
        self.bounds = (options.warning, options.critical)
        self._sign = -1 if options.below else 1
        self._slack = options.hysteresis
        self.held = OK

    def update(self, value: float) -> int:
        """The level of a value."""
        level = sum(self._sign * value >= self._sign * bound for bound in self.bounds)
        if level < self.held:
            bound = self.bounds[self.held - 1]
            room = abs(bound) * (1 - self._slack)
            if self._sign * value >= self._sign * bound - room:
                level = self.held
        self.held = level
        return level

    @property
    def bound(self) -> float:
        """The bound of the level held, or the one that would be reached next."""
        return self.bounds[max(self.held - 1, 0)]


class Threshold(Timeless):
    """A number against two bounds."""

    def __init__(self, options: Options) -> None:
        self._levels = Levels(options)
        self._last: float | None = None
        self._count = 0

    def update(self, value: float, at: float) -> int:
        """Take a number."""
        self._last, self._count = value, self._count + 1
        return self._levels.update(value)

    def reading(self) -> Reading:
        """The last value and the bound."""
        note = f"the value is {self._last:.6g}" if self._last is not None else "no value yet"
        return Reading(self._last, self._levels.bound, None, self._last, self._count, note)

    def dump(self) -> Any:
        """As JSON."""
        return [self._levels.held, self._last, self._count]

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        self._levels.held, self._last, self._count = state


class Distribution(Timeless):
    """Windows of `window` values, each compared whole with the baseline: PSI over its deciles, or Kolmogorov-Smirnov.

    PSI of two samples of one distribution is about (bins - 1)(1/n + 1/m): below 500 values it says nothing. For KS the
    levels are the chance of a false alarm in one window, with the exact sizes of both samples.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._learned: list[float | str] = []
        self._reference: list[float] = []
        self._shares: dict[str, float] = {}
        self._window: list[float | str] = []
        self._levels = Levels(options) if options.method == "psi" else None
        self._last, self._held, self._known = 0.0, OK, False

    def update(self, value: float | str, at: float) -> int:
        """Take a number or a category."""
        if not self._known:
            self._learned.append(value)
            if len(self._learned) >= self._options.learn:
                self._freeze()
            return LEARNING
        if bool(self._reference) is not isinstance(value, str):
            self._window.append(value)
        if len(self._window) >= self._options.window:
            self._held = self._compare()
            self._window = []
        return self._held

    def reading(self) -> Reading:
        """The statistic of the last whole window."""
        options = self._options
        threshold = self._levels.bound if self._levels else self._critical_value(options.warning or 0.001)
        note = f"{options.method.upper()} of the last {options.window} values is {self._last:.4f}"
        return Reading(self._last, threshold, 0.0, self._last, options.window, note)

    def dump(self) -> Any:
        """As JSON."""
        held = self._levels.held if self._levels else self._held
        return [self._learned, self._reference, self._shares, self._window, self._last, held, self._known]

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        self._learned, self._reference, self._shares, self._window, self._last, self._held, self._known = state
        if self._levels:
            self._levels.held = self._held

    def _freeze(self) -> None:
        numbers = [value for value in self._learned if not isinstance(value, str)]
        self._known = True
        if len(numbers) * 2 >= len(self._learned):
            self._reference = sorted(numbers)
        counts = Counter(self._bin(value) for value in self._learned)
        self._shares = {name: count / len(self._learned) for name, count in counts.items()}
        self._learned = []

    def _bin(self, value: float | str) -> str:
        if isinstance(value, str):
            return value
        edges = [self._reference[len(self._reference) * part // _BINS] for part in range(1, _BINS)]
        return str(bisect.bisect_left(edges, value))

    def _compare(self) -> int:
        if self._levels:
            self._last = self._psi()
            return self._levels.update(self._last)
        self._last = self._ks()
        warning, critical = self._options.warning or 0.001, self._options.critical or 0.0001
        return sum(self._last > self._critical_value(chance) for chance in (warning, critical))

    def _psi(self) -> float:
        counts = Counter(self._bin(value) for value in self._window)
        size = len(self._window)
        least = 0.5 / size
        total = 0.0
        for name in self._shares.keys() | counts.keys():
            now, then = max(counts[name] / size, least), max(self._shares.get(name, 0.0), least)
            total += (now - then) * log(now / then)
        return total

    def _ks(self) -> float:
        window, reference = sorted(float(value) for value in self._window), self._reference
        return max(
            abs(bisect.bisect_right(window, value) / len(window) - bisect.bisect_right(reference, value) /
                len(reference))
            for value in (*window, *reference)
        )  # fmt: skip

    def _critical_value(self, chance: float) -> float:
        one, other = len(self._reference) or self._options.learn, self._options.window
        return sqrt(-log(chance / 2) / 2) * sqrt((one + other) / (one * other))


class Unseen(Timeless):
    """Categories that the baseline has not: their share among the last `window` values."""

    def __init__(self, options: Options) -> None:
        self._options, self._levels = options, Levels(options)
        self._known: dict[str, None] = {}
        self._count, self._last = 0, ""
        self._recent: list[int] = []

    def update(self, value: str, at: float) -> int:
        """Take a category."""
        self._count += 1
        if self._count <= self._options.learn:
            if len(self._known) < _KNOWN:
                self._known[value] = None
            return LEARNING
        new = value not in self._known
        if new:
            self._last = value
        self._recent.append(int(new))
        del self._recent[: -self._options.window]
        return self._levels.update(sum(self._recent) / self._options.window)

    def reading(self) -> Reading:
        """The share of unseen categories and the last of them."""
        share = sum(self._recent) / self._options.window
        note = f"{share:.1%} of the last values are categories not seen before, the last one {self._last[:100]!r}"
        return Reading(share, self._levels.bound, 0.0, share, len(self._recent), note)

    def dump(self) -> Any:
        """As JSON."""
        return [list(self._known), self._count, self._last, self._recent, self._levels.held]

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        known, self._count, self._last, self._recent, self._levels.held = state
        self._known = dict.fromkeys(known)


class Freshness:
    """Seconds since the newest event of the segment."""

    def __init__(self, options: Options) -> None:
        self._levels = Levels(options)
        self._newest: float | None = None
        self._begun: float | None = None
        self._age = 0.0

    def begin(self, now: float) -> None:
        """From now on it counts as silence that no event comes, where there has been none yet."""
        if self._begun is None:
            self._begun = now

    def update(self, value: float, at: float) -> int:
        """Take the time of an event; an older one than the newest changes nothing, and none is newer than now."""
        self._newest = value if self._newest is None else max(self._newest, value)
        return self._look(at)

    def tick(self, now: float) -> int | None:
        """The level by the clock."""
        return None if self._since() is None else self._look(now)

    def due(self) -> float | None:
        """When the next bound is reached."""
        since = self._since()
        if since is None or self._levels.held == CRITICAL:
            return None
        return since + self._levels.bounds[self._levels.held]

    def reading(self) -> Reading:
        """The age."""
        note = f"the newest event is {self._age:.0f} seconds old"
        if self._newest is None:
            note = f"no event has come in {self._age:.0f} seconds, since the monitor began"
        return Reading(self._age, self._levels.bound, None, self._age, int(self._newest is not None), note)

    def dump(self) -> Any:
        """As JSON."""
        return [self._newest, self._age, self._levels.held, self._begun]

    def load(self, state: Any) -> None:
        """Take what `dump` gave; an older state does not say when the monitor began."""
        self._newest, self._age, self._levels.held = state[:3]
        self._begun = state[3] if len(state) > 3 else None

    def _look(self, now: float) -> int:
        if self._newest is not None:
            self._newest = min(self._newest, now)
        since = self._since()
        self._age = 0.0 if since is None else max(0.0, now - since)
        return self._levels.update(self._age)

    def _since(self) -> float | None:
        return self._begun if self._newest is None else self._newest


class Volume:
    """Arrivals in each window of `window_seconds`, against the first `learn` windows; too many and too few alike."""

    def __init__(self, options: Options) -> None:
        self._options, self._levels = options, Levels(options)
        self._counts: list[int] = []
        self._ends: float | None = None
        self._count, self._last, self._far = 0, 0, 0.0

    def update(self, value: float, at: float) -> int:
        """Take one arrival."""
        level = self._close(at)
        self._count += 1
        return level

    def tick(self, now: float) -> int | None:
        """Close windows that are over."""
        return None if self._ends is None else self._close(now)

    def due(self) -> float | None:
        """The end of the window."""
        return self._ends

    def reading(self) -> Reading:
        """The count of the last whole window."""
        usual = statistics.median(self._counts) if self._counts else 0.0
        note = f"{self._last} in {self._options.window_seconds:g} seconds; usual are {usual:g}"
        return Reading(self._far, self._levels.bound, usual, float(self._last), len(self._counts), note)

    def dump(self) -> Any:
        """As JSON."""
        return [self._counts, self._ends, self._count, self._last, self._far, self._levels.held]

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        self._counts, self._ends, self._count, self._last, self._far, self._levels.held = state

    def _close(self, now: float) -> int:
        seconds = self._options.window_seconds
        if self._ends is None:
            self._ends = (now // seconds + 1) * seconds
        # A process that was down for long learns nothing from thousands of empty windows.
        for _ in range(100):
            if now < self._ends:
                break
            self._judge(self._count)
            self._count = 0
            self._ends += seconds
        else:
            self._ends = (now // seconds + 1) * seconds
        return self._levels.held if len(self._counts) >= self._options.learn else LEARNING

    def _judge(self, count: int) -> None:
        self._last = count
        if len(self._counts) < self._options.learn:
            self._counts.append(count)
            return
        usual = statistics.median(self._counts)
        spread = 1.4826 * statistics.median([abs(value - usual) for value in self._counts])
        self._far = abs(count - usual) / max(spread, sqrt(usual), 1.0)
        self._levels.update(self._far)


class Schema(Timeless):
    """Columns and types against those of the first `learn` rows: added is a warning, removed or changed critical."""

    def __init__(self, options: Options) -> None:
        self._learn = options.learn
        self._types: dict[str, str] = {}
        self._count = 0
        self._note = ""

    def update(self, value: Mapping[str, Any], at: float) -> int:
        """Take a row."""
        self._count += 1
        if self._count <= self._learn:
            for name, item in value.items():
                if self._types.get(name, "null") == "null":
                    self._types[name] = _type(item)
            return LEARNING
        added = sorted(value.keys() - self._types.keys())
        removed = sorted(self._types.keys() - value.keys())
        changed = []
        for name in value.keys() & self._types.keys():
            now, then = _type(value[name]), self._types[name]
            if then == "null":
                self._types[name] = now
            elif now not in ("null", then):
                changed.append(f"{name}: {then} to {now}")
        parts = (("added", added), ("removed", removed), ("type changed", sorted(changed)))
        self._note = "; ".join(f"{word} {', '.join(names)}"[:500] for word, names in parts if names)
        return CRITICAL if removed or changed else WARNING if added else OK

    def reading(self) -> Reading:
        """What differs."""
        return Reading(samples=self._count, note=self._note or "the columns are those of the baseline")

    def dump(self) -> Any:
        """As JSON."""
        return [self._types, self._count, self._note]

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        self._types, self._count, self._note = state


def _type(value: Any) -> str:
    return "null" if value is None else type(value).__name__


WINDOWED: Final[Mapping[str, Callable[[Options], Detector]]] = {
    "distribution": Distribution,
    "unseen": Unseen,
    "threshold": Threshold,
    "freshness": Freshness,
    "volume": Volume,
    "schema": Schema,
}
