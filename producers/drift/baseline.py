"""The frozen baseline: what a stream looked like when its monitor began, in numbers that outliers do not move."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

# Of a normal distribution, the standard deviation over the median absolute deviation.
_NORMAL: Final = 1.4826
# A column that never moved gets a thousandth of its level as its unit, so that the first move is seen.
_FLOOR_SHARE: Final = 1e-3
_FLOOR: Final = 1e-9
CAP: Final = 8.0
"""How far a single value may pull, in units of the baseline's spread."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Median and spread, in the column's unit, of the first `count` values; `level` and `noise` in standard units."""

    median: float
    scale: float
    count: int
    level: float
    noise: float

    def standard(self, value: float) -> float:
        """The value in units of the spread, at most CAP away from 0."""
        unit = (value - self.median) / self.scale
        return CAP if unit > CAP else -CAP if unit < -CAP else unit

    def raw(self, unit: float) -> float:
        """The way back, for people."""
        return self.median + unit * self.scale

    def dump(self) -> list[Any]:
        """As JSON."""
        return [self.median, self.scale, self.count, self.level, self.noise]


def freeze(values: Sequence[float]) -> Baseline:
    """The baseline of finite values, of which there is at least one."""
    median = statistics.median(values)
    scale = _NORMAL * statistics.median([abs(value - median) for value in values])
    floor = max(abs(median) * _FLOOR_SHARE, _FLOOR)
    if scale < floor:
        # More than half of the values are the same: the usual spread says more than the median of nothing.
        mean = statistics.fmean(values)
        scale = max(statistics.fmean([(value - mean) ** 2 for value in values]) ** 0.5, floor)
    shape = Baseline(median, scale, len(values), 0.0, 1.0)
    units = [shape.standard(value) for value in values]
    level = statistics.fmean(units)
    noise = statistics.fmean([(unit - level) ** 2 for unit in units]) ** 0.5
    return Baseline(median, scale, len(values), level, max(noise, _FLOOR))


def load(state: list[Any]) -> Baseline:
    """The baseline that `dump` gave."""
    return Baseline(float(state[0]), float(state[1]), int(state[2]), float(state[3]), float(state[4]))
