"""What every detector is, and the sequential ones: mean, variance, null rate, shares of categories.

A detector belongs to one segment of one monitor. It gets clean values in the order they came and answers with a level;
its state is JSON. It knows nothing of time zones, topics or events. Promises: the same values give the same levels,
whatever was saved and loaded in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from producers.drift import baseline as frozen
from producers.drift.adwin import Pair
from producers.drift.baseline import Baseline

LEARNING: Final = -1
OK: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
# A warning needs two witnesses: the cut, and a window that lies this many standard errors from the baseline.
_SIGMAS: Final = 4.0
# For so many values after a recovery a cut may be the last part of the way back.
_RETURNING: Final = 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """What a detector sees now, for people: numbers in the column's unit where it has one."""

    statistic: float | None = None
    threshold: float | None = None
    baseline: float | None = None
    observed: float | None = None
    samples: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a detector; see `monitors.Monitor` for what each means."""

    warning: float | None
    critical: float | None
    learn: int
    window: int
    window_seconds: float
    hysteresis: float
    effect: float
    settle: int
    below: bool
    method: str
    critical_effect: float = 0.0


class Detector(Protocol):
    """One statistic of one segment."""

    def update(self, value: Any, at: float) -> int:
        """Take a clean value that came at `at` (seconds since 1970); the level, or LEARNING."""

    def tick(self, now: float) -> int | None:
        """Look at the clock; the level, or None where time alone says nothing."""

    def due(self) -> float | None:
        """When `tick` has to be called, in seconds since 1970; None for never."""

    def reading(self) -> Reading:
        """What it sees now."""

    def dump(self) -> Any:
        """The state as JSON."""

    def load(self, state: Any) -> None:
        """Take a state that `dump` gave."""


class Timeless:
    """For detectors that time alone does not move."""

    def tick(self, now: float) -> int | None:
        """Nothing to say."""
        return None

    def due(self) -> float | None:
        """Never."""
        return None


class Track:
    """A pair of windows over standardised values, and the level it holds until the values have come back."""

    __slots__ = ("_critical_effect", "_effect", "_hysteresis", "_learn", "_settle", "held", "pair", "reference",
                 "returning", "shift", "suspected")  # fmt: skip

    def __init__(self, options: Options, *, share: int = 1) -> None:
        """`share`: how many tracks share the chance of a false alarm."""
        warning, critical = options.warning or 0.05, options.critical or 0.002
        self.pair = Pair(warning / share, critical / share)
        self._effect, self._hysteresis = options.effect, options.hysteresis
        # Among many values the cut is sure of shifts that matter to nobody; the monitor says whether they matter.
        self._critical_effect = options.critical_effect
        self._settle, self._learn = options.settle, options.learn
        self.reference = 0.0
        self.shift = 0.0
        self.held = OK
        self.suspected, self.returning = 0, 0

    def update(self, unit: float) -> int:
        """Take a standardised value; the level held."""
        pair, held = self.pair, self.held
        before = pair.warning.mean
        found = pair.update(unit)
        if found > held:
            self._judge(found, before)
        if self.returning:
            self.returning -= 1
        if self.suspected and not self.held:
            self.suspected -= 1
            if self._stands_out():
                self._hold(WARNING)
        if self.held:
            self._look_for_the_end()
        return self.held

    def _judge(self, found: int, before: float) -> None:
        """A cut: raise the level, unless it leads back to the baseline."""
        gap = abs(self.pair.mean - self.reference)
        leads_back = gap <= (self._hysteresis * self.shift if self.held else abs(before - self.reference))
        if leads_back and (found < CRITICAL or self.held or self.returning):
            return
        if (found == CRITICAL and gap >= self._critical_effect) or self._stands_out():
            self._hold(found)
        else:
            self.suspected = self._settle

    def _stands_out(self) -> bool:
        """Whether the window, seen alone, differs from the frozen baseline: the second witness of a warning."""
        pair = self.pair
        gap = abs(pair.mean - self.reference)
        return gap >= self._effect and gap >= _SIGMAS * (1 / pair.width + 1 / self._learn) ** 0.5

    def _hold(self, level: int) -> None:
        self.held = max(self.held, level)
        self.suspected = 0
        self.shift = max(self.shift, abs(self.pair.mean - self.reference)) if self.pair.width >= self._settle else 0.0

    def _look_for_the_end(self) -> None:
        pair = self.pair
        if pair.width < self._settle:
            return
        gap = abs(pair.mean - self.reference)
        if gap > self.shift:
            self.shift = gap
        elif gap <= self._hysteresis * self.shift:
            self.held, self.shift, self.returning = OK, 0.0, _RETURNING

    def dump(self) -> list[Any]:
        """As JSON."""
        return [self.pair.dump(), self.reference, self.shift, self.held, self.suspected, self.returning]

    def load(self, state: list[Any]) -> None:
        """Take what `dump` gave."""
        self.pair.load(state[0])
        self.reference, self.shift = float(state[1]), float(state[2])
        self.held, self.suspected, self.returning = int(state[3]), int(state[4]), int(state[5])


class Mean(Timeless):
    """The mean, both ways, on values in units of a frozen median and median deviation."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._learned: list[float] = []
        self._baseline: Baseline | None = None
        self._track = Track(options)

    def update(self, value: float, at: float) -> int:
        """Take a finite number."""
        if self._baseline is None:
            self._learned.append(value)
            if len(self._learned) >= self._options.learn:
                self._freeze()
            return LEARNING
        return self._track.update(self._unit(self._baseline, value))

    def reading(self) -> Reading:
        """The window's mean against the baseline's."""
        base, track = self._baseline, self._track
        if base is None:
            return Reading(samples=len(self._learned), note="learning the baseline")
        gap = track.pair.mean - track.reference
        return Reading(
            statistic=gap,
            threshold=self._options.warning if track.held < CRITICAL else self._options.critical,
            baseline=self._raw(base, track.reference),
            observed=self._raw(base, track.pair.mean),
            samples=track.pair.width,
            note=f"the mean of the last {track.pair.width} values lies {gap:+.2f} spreads from the baseline",
        )

    def dump(self) -> Any:
        """As JSON."""
        base = self._baseline
        return {"learned": self._learned} if base is None else {"base": base.dump(), "track": self._track.dump()}

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        if "base" in state:
            self._baseline = frozen.load(state["base"])
            self._track.load(state["track"])
        else:
            self._learned = [float(value) for value in state["learned"]]

    def _freeze(self) -> None:
        base = self._baseline = frozen.freeze(self._learned)
        units = [self._unit(base, value) for value in self._learned]
        self._track.reference = sum(units) / len(units)
        for unit in units:
            self._track.update(unit)
        # What the baseline itself holds is no drift from it.
        self._track.held, self._track.shift, self._track.suspected = OK, 0.0, 0
        self._learned = []

    def _unit(self, base: Baseline, value: float) -> float:
        return base.standard(value) / base.noise

    def _raw(self, base: Baseline, unit: float) -> float:
        return base.raw(unit * base.noise)


class Variance(Mean):
    """The spread: the mean of how far values lie from the baseline's middle. A shift of the mean moves it too."""

    def _unit(self, base: Baseline, value: float) -> float:
        return abs(base.standard(value) - base.level) / base.noise

    def _raw(self, base: Baseline, unit: float) -> float:
        return unit * base.noise * base.scale

    def reading(self) -> Reading:
        """The distance from the middle, now and in the baseline."""
        made = super().reading()
        if made.observed is None or made.baseline is None:
            return made
        note = f"values lie {made.observed:.6g} from the middle on average; it was {made.baseline:.6g}"
        return Reading(made.statistic, made.threshold, made.baseline, made.observed, made.samples, note)


class Rate(Timeless):
    """The share of values that are 1, as of NULLs: a Bernoulli stream."""

    word = "NULL"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._count, self._ones = 0, 0
        self._track = Track(options)

    def update(self, value: float, at: float) -> int:
        """Take 0 or 1."""
        if self._count < self._options.learn:
            self._count += 1
            self._ones += int(value)
            return LEARNING
        return self._track.update(_bernoulli(value, self._ones / self._count, self._count))

    def reading(self) -> Reading:
        """The share now and in the baseline."""
        base = self._ones / self._count if self._count else 0.0
        now = base + self._track.pair.mean * _deviation(base, max(self._count, 1))
        note = f"{now:.1%} of the last {self._track.pair.width} values are {self.word}; it was {base:.1%}"
        threshold = self._options.warning if self._track.held < CRITICAL else self._options.critical
        return Reading(self._track.pair.mean, threshold, base, now, self._track.pair.width, note)

    def dump(self) -> Any:
        """As JSON."""
        return {"count": self._count, "ones": self._ones, "track": self._track.dump()}

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        self._count, self._ones = state["count"], state["ones"]
        self._track.load(state["track"])


class Shares(Timeless):
    """How often each category comes: a Bernoulli stream for each frequent one, and one for all others together."""

    _FREQUENT: Final = 0.02
    _MOST: Final = 8
    _OTHERS: Final = "(others)"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._learned: Counter[str] = Counter()
        self._base: dict[str, float] = {}
        self._tracks: dict[str, Track] = {}

    def update(self, value: str, at: float) -> int:
        """Take a category."""
        if not self._tracks:
            self._learned[value] += 1
            if self._learned.total() >= self._options.learn:
                self._freeze()
            return LEARNING
        name = value if value in self._base else self._OTHERS
        count = self._options.learn
        return max(
            track.update(_bernoulli(1.0 if key == name else 0.0, self._base[key], count))
            for key, track in self._tracks.items()
        )

    def reading(self) -> Reading:
        """The category that has moved most."""
        if not self._tracks:
            return Reading(samples=self._learned.total(), note="learning the baseline")
        name = max(self._tracks, key=lambda key: (self._tracks[key].held, abs(self._tracks[key].pair.mean)))
        track, base = self._tracks[name], self._base[name]
        now = base + track.pair.mean * _deviation(base, self._options.learn)
        note = f"{name!r} makes {now:.1%} of the last {track.pair.width} values; it was {base:.1%}"
        threshold = self._options.warning if track.held < CRITICAL else self._options.critical
        return Reading(track.pair.mean, threshold, base, now, track.pair.width, note)

    def dump(self) -> Any:
        """As JSON."""
        if not self._tracks:
            return {"learned": dict(self._learned)}
        return {"base": self._base, "tracks": {name: track.dump() for name, track in self._tracks.items()}}

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        if "learned" in state:
            self._learned = Counter(state["learned"])
            return
        self._base = {name: float(share) for name, share in state["base"].items()}
        self._tracks = {name: Track(self._options, share=len(self._base)) for name in self._base}
        for name, track in self._tracks.items():
            track.load(state["tracks"][name])

    def _freeze(self) -> None:
        total = self._learned.total()
        frequent = [name for name, count in self._learned.most_common(self._MOST) if count / total >= self._FREQUENT]
        self._base = {name: self._learned[name] / total for name in frequent}
        self._base[self._OTHERS] = max(0.0, 1.0 - sum(self._base.values()))
        self._tracks = {name: Track(self._options, share=len(self._base)) for name in self._base}
        self._learned = Counter()


class Values(Timeless):
    """`mean` for a column of numbers, `shares` for one of texts; the first value decides."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._inner: Mean | Shares | None = None

    def update(self, value: float | str, at: float) -> int:
        """Take a number or a text; what is not like the first one is left out."""
        if self._inner is None:
            self._inner = Shares(self._options) if isinstance(value, str) else Mean(self._options)
        if isinstance(self._inner, Shares):
            return self._inner.update(str(value), at)
        return self._inner.update(value, at) if not isinstance(value, str) else LEARNING

    def reading(self) -> Reading:
        """That of the detector in use."""
        return Reading() if self._inner is None else self._inner.reading()

    def dump(self) -> Any:
        """As JSON."""
        kind = None if self._inner is None else "shares" if isinstance(self._inner, Shares) else "mean"
        return {"kind": kind, "inner": None if self._inner is None else self._inner.dump()}

    def load(self, state: Any) -> None:
        """Take what `dump` gave."""
        if state["kind"] is not None:
            self._inner = Shares(self._options) if state["kind"] == "shares" else Mean(self._options)
            self._inner.load(state["inner"])


SEQUENTIAL: Final[Mapping[str, Callable[[Options], Detector]]] = {
    "values": Values,
    "mean": Mean,
    "variance": Variance,
    "null_rate": Rate,
    "shares": Shares,
}


def _deviation(share: float, count: int) -> float:
    # A share of 0 or 1 in the baseline is only known to lie within one part in `count`.
    share = min(max(share, 1 / count), 1 - 1 / count) if count > 1 else 0.5
    return float((share * (1 - share)) ** 0.5)


def _bernoulli(value: float, share: float, count: int) -> float:
    unit = (value - share) / _deviation(share, count)
    return min(unit, frozen.CAP) if unit > 0 else max(unit, -frozen.CAP)
