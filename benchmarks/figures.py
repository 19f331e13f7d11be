"""The pure part: figures, their targets, how rounds become one number, and the document that is written.

A figure is a number under a key. Rates are per second, times milliseconds, memory 10^6 bytes, ratios ours over theirs.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure must reach."""

    relation: Literal[">=", "<=", "=="]
    value: float

    def reached(self, figure: float) -> bool:
        """Whether `figure` is good enough."""
        return _RELATIONS[self.relation](figure, self.value)

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


_RELATIONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}

TARGETS: Final[Mapping[str, Target]] = {
    "intake_over_fastavro": Target(">=", 0.3),
    "intake_over_faststream": Target(">=", 2),
    "runs_over_dbos": Target(">=", 12),
    "runs_tx_over_dbos": Target(">=", 8),
    "runs_over_restate": Target(">=", 2),
    "noop_over_pgqueuer": Target(">=", 1),
    "run_ms_p50": Target("<=", 7),
    "claim_p99_backlog_ratio": Target("<=", 3),
    "commit_to_result_ms_p50": Target("<=", 50),
    "commit_to_result_ms_p99": Target("<=", 250),
    "commit_to_result_over_polling": Target("<=", 0.05),
    "idle_cpu_percent": Target("<=", 1),
    "idle_queries_per_s": Target("<=", 2),
    "rss_mb": Target("<=", 300),
    "webhooks_per_s": Target(">=", 1500),
    "slots_fired_over_due": Target("==", 1.0),
    "drift_goldens_equal": Target(">=", 1.0),
    "car_loan_columns_found": Target(">=", 5),
    "car_loan_columns_within_3000": Target(">=", 4),
    "car_loan_false_alarms": Target("<=", 0),
    "drift_false_alarms_per_5000": Target("<=", 0.1),
    "drift_delay_p50_1sigma": Target("<=", 40),
    "drift_delay_p50_3sigma": Target("<=", 10),
    "drift_warning_after_critical": Target("<=", 0),
    "drift_updates_per_s": Target(">=", 20_000),
    "drift_event_ms_p99": Target("<=", 1000),
    "overdue_alert_ms_after_due": Target("<=", 2000),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one benchmark gives: figures for the flat object, and everything they came from for `_context`."""

    figures: Mapping[str, float]
    raw: Mapping[str, Any] = field(default_factory=dict)


class NotMeasured(Exception):
    """A part the benchmark needs is missing or failed; the sentence names it."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The same work by both sides, round by round; rates per second."""

    ours: Sequence[float]
    reference: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over the reference of the same round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.reference, strict=True)]

    @property
    def ratio(self) -> float:
        """The median over the rounds: one disturbed round does not decide."""
        return statistics.median(self.ratios)

    def raw(self) -> dict[str, Any]:
        """The rounds and their spread, for `_context`."""
        return {
            "ours_per_s": rounded(self.ours),
            "reference_per_s": rounded(self.reference),
            "ratios": rounded(self.ratios),
            "spread": {"ours": spread(self.ours), "reference": spread(self.reference), "ratio": spread(self.ratios)},
        }


def spread(values: Sequence[float]) -> float:
    """How far the rounds lie apart: (largest - smallest) / median."""
    middle = statistics.median(values)
    return round((max(values) - min(values)) / middle, 3) if middle else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed.

    Raises:
        ValueError: without values.
    """
    if not values:
        raise ValueError("a percentile needs values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Count and percentiles of single measurements, for `_context`."""
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    return {
        "count": len(values),
        "min": significant(min(values)),
        **{name: significant(percentile(values, share)) for name, share in shares.items()},
        "max": significant(max(values)),
    }


def significant(value: float, digits: int = 4) -> float:
    """The value with so many significant digits: what it is exact to at best."""
    return float(f"{value:.{digits}g}")


def rounded(values: Sequence[float]) -> list[float]:
    """Each value as `significant`."""
    return [significant(value) for value in values]


def document(measured: Mapping[str, Measured], context: Mapping[str, Any]) -> dict[str, Any]:
    """One flat object, key → number, with `_context` for everything else.

    Raises:
        ValueError: when two benchmarks give the same key, or a figure is not a finite number.
    """
    flat: dict[str, Any] = {}
    for name, result in measured.items():
        for key, value in result.figures.items():
            if key in flat:
                raise ValueError(f"the figure {key} is given twice, the second time by {name}")
            if not math.isfinite(value):
                raise ValueError(f"the figure {key} of {name} is {value}")
            flat[key] = significant(value)
    raw = {name: dict(result.raw) for name, result in measured.items()}
    return {**flat, "_context": {**context, "raw": raw}}


def missed(figures: Mapping[str, float]) -> list[str]:
    """One sentence for each figure that does not reach its target; other keys have none."""
    return [
        f"{key} is {figures[key]:g}, must be {target}"
        for key, target in TARGETS.items()
        if key in figures and not target.reached(figures[key])
    ]
