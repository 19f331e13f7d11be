"""Detectors: River's decisions on goldens and random streams, two levels, and values that would blind them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from river.drift import adwin as river

from producers.drift.adwin import Adwin
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor

ORACLE = "AdaptiveWindowing"


def held(states: Any) -> Callable[[Any], Any]:
    """Gives these states, whatever is asked for."""
    return lambda keys: states


def found(stream: Sequence[float], window: Any) -> list[int]:
    return [place for place, value in enumerate(stream) if window.update(value)]


def reloading(stream: Sequence[float], delta: float, clock: int) -> list[int]:
    """The same, with the state saved as JSON and loaded before each value; fresh after a detection, as River does."""
    places, state = [], Adwin(delta, clock).dump()
    for place, value in enumerate(stream):
        window = Adwin.load(json.loads(json.dumps(state)), delta, clock)
        if window.update(value):
            places.append(place)
            window = Adwin(delta, clock)
        state = window.dump()
    return places


def test_golden_of_rivers_documentation() -> None:
    chance = random.Random(12345)
    stream = chance.choices([0, 1], k=1000) + chance.choices(range(4, 8), k=1000)
    assert reloading(stream, 0.002, 32) == [1023]


@pytest.mark.parametrize("delta", [0.05, 0.002])
@pytest.mark.parametrize("clock", [1, 32])
def test_decisions_are_rivers_on_random_streams(delta: float, clock: int) -> None:
    for seed in range(10):
        chance = random.Random(seed)
        stream: list[float] = []
        for _ in range(5):
            middle, spread = chance.gauss(0, 1.5), chance.choice([0.1, 1, 2])
            stream += [chance.gauss(middle, spread) for _ in range(chance.randint(50, 500))]
        assert found(stream, Adwin(delta, clock)) == found(stream, getattr(river, ORACLE)(delta=delta, clock=clock))


class Watched:
    """One monitor without a database."""

    def __init__(self, **fields: Any) -> None:
        self.monitor = Monitor.of(**{"name": "m", "topic": "t", "value": "v", "cooldown": 0, **fields})
        self.engine = Engine([self.monitor], lambda keys: {}, {})
        self.at = 0.0

    def feed(self, values: Sequence[Any], *, at: float | None = None) -> list[tuple[int, str]]:
        before = len(self.engine.told)
        for value in values:
            self.at += 1
            now = self.at if at is None else at
            self.engine.feed([self.monitor], [Sample({"v": value}, now, self.at)])
        return [(told.turn.level, told.turn.turn) for told in self.engine.told[before:]]


def normal(seed: int, count: int, middle: float = 0.0, spread: float = 1.0) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(middle, spread) for _ in range(count)]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_mean_shift_is_told_both_ways_in_any_unit_and_so_is_its_end(scale: float, shift: float) -> None:
    watched = Watched()
    assert watched.feed([scale * (5 + value) for value in normal(1, 1500)]) == []
    assert watched.feed([scale * (5 + value) for value in normal(2, 60, shift)]) == [(1, "raised"), (2, "raised")]
    assert watched.feed([scale * (5 + value) for value in normal(3, 600)]) == [(2, "recovered"), (1, "recovered")]


def test_column_that_never_moved_has_its_first_move_told() -> None:
    watched = Watched()
    assert watched.feed([5.0] * 900) == []
    assert (2, "raised") in watched.feed([5.05] * 100)


@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), float("-inf"), 1e308, 10**400, Decimal("NaN"), Decimal("1e400"), "text", None, b"x",
     [1], {"a": 1}],
    ids=str,
)  # fmt: skip
def test_value_that_would_blind_a_detector_leaves_it_as_it_was(bad: Any) -> None:
    watched = Watched(detector="mean")
    watched.feed(normal(1, 1200))
    state = watched.engine.dirty["m", ""].detector.dump()
    before = json.dumps(state)
    assert watched.feed([bad] * 5) == []
    segment = watched.engine.dirty["m", ""]
    assert json.dumps(segment.detector.dump()) == before
    assert sum(segment.left_out.values()) == 5
    assert (2, "raised") in watched.feed(normal(2, 60, 4.0))


def test_single_outlier_pulls_no_further_than_the_cap() -> None:
    watched = Watched()
    watched.feed(normal(1, 1200))
    assert watched.feed([1e140]) == []
    assert (2, "raised") in watched.feed(normal(2, 60, 4.0))


def test_late_value_is_counted_and_left_out() -> None:
    watched = Watched(late=50)
    watched.feed(normal(1, 1200))
    assert watched.feed([9.0] * 200, at=100.0) == []
    assert watched.engine.dirty["m", ""].left_out == {"late": 200}
    assert (2, "raised") in watched.feed(normal(2, 60, 4.0))


@pytest.mark.parametrize(
    ("fields", "usual", "drifted"),
    [
        ({"detector": "variance"}, lambda n: normal(n, 1500), lambda n: normal(n, 500, 0, 4)),
        ({"detector": "null_rate"}, lambda n: [1] * 1500, lambda n: [None, 1] * 200),
        ({"detector": "shares"}, lambda n: ["a", "b", "c"] * 500, lambda n: ["a", "a", "b"] * 300),
        ({"detector": "unseen"}, lambda n: ["a", "b"] * 400, lambda n: ["new"] * 60),
        ({"detector": "distribution"}, lambda n: normal(n, 2000), lambda n: normal(n, 1000, 0, 3)),
        ({"detector": "distribution", "method": "ks"}, lambda n: normal(n, 2000), lambda n: normal(n, 1000, 1)),
        ({"detector": "threshold", "warning": 10, "critical": 20}, lambda n: [1, 9], lambda n: [11, 25]),
        ({"detector": "threshold", "warning": 2, "critical": 1, "below": True}, lambda n: [5], lambda n: [2, 0.5]),
    ],
)
def test_each_detector_keeps_quiet_and_tells_both_levels(
    fields: dict[str, Any], usual: Callable[[int], list[Any]], drifted: Callable[[int], list[Any]]
) -> None:
    watched = Watched(**fields)
    assert watched.feed(usual(1)) == []
    assert [turn for turn in watched.feed(drifted(2)) if turn[1] == "raised"] == [(1, "raised"), (2, "raised")]


def test_saved_and_loaded_state_decides_the_same() -> None:
    stream = [*normal(1, 900), *normal(2, 200, 1.0), *normal(3, 500)]
    whole, stored = Watched(), Watched()
    expected = whole.feed(stream)
    got: list[tuple[int, str]] = []
    for value in stream:
        got += stored.feed([value])
        states = {key: json.loads(json.dumps(item.dump())) for key, item in stored.engine.dirty.items()}
        stored.engine = Engine([stored.monitor], held(states), {"m": 1})
        stored.engine.dirty = {}
    assert got == expected and expected


def test_freshness_tells_by_the_clock_and_recovers_with_an_event() -> None:
    watched = Watched(detector="freshness", warning=60, critical=120)
    watched.feed([1])
    for now in (30.0, 70.0, 130.0):
        watched.engine.tick([("m", "")], now)
    assert [told.turn.level for told in watched.engine.told] == [1, 2]
    watched.at = 140
    assert watched.feed([1]) == [(2, "recovered"), (1, "recovered")]


def test_volume_tells_of_an_empty_window() -> None:
    watched = Watched(detector="volume", window_seconds=50, learn=5)
    watched.feed([1] * 1000)
    for now in (1050.0, 1100.0, 1150.0):
        watched.engine.tick([("m", "")], now)
    assert [told.turn.level for told in watched.engine.told] == [1, 2]


def test_schema_tells_added_and_removed_columns() -> None:
    monitor = Monitor.of(name="m", topic="t", detector="schema")
    engine = Engine([monitor], lambda keys: {}, {})
    for number in range(20):
        engine.feed([monitor], [Sample({"a": 1, "b": None}, number, number)])
    engine.feed([monitor], [Sample({"a": None, "b": "x", "c": 1}, 30, 30)])
    assert [told.turn.level for told in engine.told] == [1]
    engine.feed([monitor], [Sample({"a": "text", "b": "x"}, 31, 31)])
    assert [told.turn.level for told in engine.told] == [1, 2]
    assert "a: int to str" in engine.told[-1].reading.note


def test_segments_beyond_the_cap_are_told_and_memory_stays_bounded() -> None:
    monitor = Monitor.of(name="m", topic="t", value="v", segment="s", max_segments=50)
    engine = Engine([monitor], lambda keys: {}, {}, memory=10)
    engine.feed([monitor], [Sample({"v": 1, "s": f"s{n}"}, n, n) for n in range(80)])
    assert engine.over == {"m"} and len(engine.dirty) == 50
    engine.saved()
    assert len(engine._segments) == 10


def test_cooldown_holds_a_new_episode_back() -> None:
    watched = Watched(detector="threshold", warning=10, critical=20, cooldown=5)
    assert watched.feed([15, 1]) == [(1, "raised"), (1, "recovered")]
    assert watched.feed([15, 15]) == []
    assert watched.engine.dirty["m", ""].alarm.state == "cooldown"
    assert watched.feed([1, 1, 1, 15]) == [(1, "raised")]


def test_silence_is_a_state_and_ends_no_episode() -> None:
    watched = Watched(detector="threshold", warning=10, critical=20, no_data_after=60)
    watched.feed([15])
    watched.engine.tick([("m", "")], 100.0)
    alarm = watched.engine.dirty["m", ""].alarm
    assert (alarm.state, alarm.raised) == ("no_data", 1)
    assert watched.feed([15]) == []
    assert alarm.state == "warning"
