"""The figures of drift: goldens, data sets, false alarms, delays, order of levels, updates a second, time to an event.

Everything runs with the defaults that are shipped: the engine and the states of `rowcall drift run`, or that process
itself. `drift_data` has the data sets, `drift_speed` the speed, `drift_many` more segments than memory holds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
import orjson

from benchmarks import drift_data, drift_many, drift_speed
from benchmarks.figures import Measured, NotMeasured
from benchmarks.services import Services
from producers.drift.adwin import Adwin
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor

DELTA: Final = 0.002


def measure(services: Services) -> Measured:
    """All of it; `--quick` leaves most seeds and the other data sets out."""
    seeds = 10 if services.quick else 200
    figures: dict[str, float] = {}
    raw: dict[str, Any] = {}
    figures["drift_goldens_equal"], raw["goldens"] = _goldens()
    loan = drift_data.scores(drift_data.CAR_LOAN)
    figures |= {
        "car_loan_columns_found": float(len(loan["ours"].delays)),
        "car_loan_columns_within_3000": float(loan["ours"].soon),
        "car_loan_false_alarms": float(loan["ours"].false_alarms),
    }
    raw["car_loan"] = _shown("car_loan", loan)
    if not services.quick:
        raw["not_used_in_tuning"] = _others()
    figures["drift_false_alarms_per_5000"] = _false_alarms(seeds)
    for shift in (1, 3):
        figures[f"drift_delay_p50_{shift}sigma"] = _delay(seeds, shift)
    figures["drift_warning_after_critical"], raw["ramps"] = _ramps(seeds)
    figures["drift_updates_per_s"], raw["updates"] = drift_speed.updates(services)
    try:
        raw["updates"]["through_topic_per_s"] = drift_speed.through_topic(services)
    except NotMeasured as error:
        # It stands beside the figures and must not cost them.
        raw["updates"]["through_topic_per_s"] = f"not measured: {error}"
    raw["beyond_memory"] = drift_many.beyond_memory(services)
    figures["drift_event_ms_p99"], raw["event_ms"] = drift_speed.event_ms(services)
    return Measured(figures, raw)


class Golden(NamedTuple):
    """A stream that others have published, and where ADWIN finds a change in it."""

    name: str
    stream: Sequence[float]
    clock: int
    found: list[int]


def _goldens() -> tuple[float, dict[str, Any]]:
    """The share that our windows find, saved as JSON and read back before each value; fresh after each change."""
    chance = random.Random(12345)
    river = [*chance.choices([0, 1], k=1000), *chance.choices(range(4, 8), k=1000)]
    normal = numpy.random.RandomState(31).normal
    frouros = numpy.concatenate([normal(0, 0.5, 100), normal(4, 0.2, 100), normal(6, 0.5, 100)]).tolist()
    goldens = [
        Golden("river's documentation", river, 32, [1023]),
        Golden("frouros' tests", frouros, 32, [127, 223]),
        Golden("frouros' tests, looking after each value", frouros, 1, [107, 209]),
    ]
    found = {golden.name: _changes(golden) for golden in goldens}
    return sum(found[golden.name] == golden.found for golden in goldens) / len(goldens), found


def _changes(golden: Golden) -> list[int]:
    fresh = Adwin(DELTA, golden.clock).dump()
    state, found = orjson.dumps(fresh), []
    for place, value in enumerate(golden.stream):
        window = Adwin.load(orjson.loads(state), DELTA, golden.clock)
        changed = window.update(value)
        if changed:
            found.append(place)
        state = orjson.dumps(fresh if changed else window.dump())
    return found


def _others() -> dict[str, Any]:
    scored = {name: _shown(name, drift_data.scores(data)) for name, data in drift_data.OTHERS.items()}
    return scored | {name: drift_data.told_rows(*what) for name, what in drift_data.UNSCORED.items()}


def _shown(name: str, scores: dict[str, drift_data.Score]) -> dict[str, Any]:
    for kind, score in scores.items():
        print(f"  {name}, {kind}: {len(score.delays)} found, {score.soon} of them within {drift_data.SOON} rows, "
              f"{score.false_alarms} false alarms")  # fmt: skip
    return {kind: score.raw() for kind, score in scores.items()}


class _Stream:
    """One monitor with the defaults, fed with normal values a second apart."""

    def __init__(self, seed: int) -> None:
        self.monitor = Monitor.of(name="m", topic="t", value="v")
        self._engine = Engine([self.monitor], lambda keys: {}, {})
        self._chance, self._at = random.Random(seed), 0.0

    def feed(self, middle: float = 0.0) -> list[int]:
        """One value of spread 1; the levels it raises."""
        self._at += 1
        value = self._chance.gauss(middle, 1)
        self._engine.feed([self.monitor], [Sample({"v": value}, self._at, self._at)])
        told, self._engine.told = self._engine.told, []
        return [item.turn.level for item in told if item.turn.turn == "raised"]


def _false_alarms(seeds: int) -> float:
    raised = 0
    for seed in range(seeds):
        stream = _Stream(seed)
        raised += sum(len(stream.feed()) for _ in range(stream.monitor.learn + 5000))
    return raised / seeds


def _delay(seeds: int, shift: float) -> float:
    """The median of the first event after a shift, of either level; 3,000 where none came."""
    delays = []
    for seed in range(1000, 1000 + seeds):
        stream = _Stream(seed)
        for _ in range(stream.monitor.learn + 1000):
            stream.feed()
        delays.append(next((count for count in range(1, 3000) if stream.feed(shift)), 3000))
    return float(statistics.median(delays))


def _ramps(seeds: int) -> tuple[float, dict[str, Any]]:
    """Ramps to two spreads over 2,000 values: how many told a critical level before its warning; the lead of the
    warning, in values, and the ramps where a level was never reached."""
    wrong, leads, without = 0, [], 0
    for seed in range(5000, 5000 + seeds):
        stream = _Stream(seed)
        for _ in range(stream.monitor.learn + 500):
            stream.feed()
        raised = [(count, level) for count in range(2000) for level in stream.feed(count / 1000)]
        levels = [level for _, level in raised]
        wrong += 2 in levels and 1 not in levels[: levels.index(2)]
        first = {level: next((count for count, found in raised if found == level), None) for level in (1, 2)}
        if first[1] is None or first[2] is None:
            without += 1
        else:
            leads.append(first[2] - first[1])
    return float(wrong), {"lead_p50": statistics.median(leads) if leads else None, "without_both_levels": without}
