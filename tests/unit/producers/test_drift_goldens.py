"""Numbers that others have published, or that their code gives, through our detectors and their JSON state."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from producers.drift.adwin import Adwin
from producers.drift.detectors import Options
from producers.drift.windows import Distribution

# Neither carries types.
RIVER: Any = importlib.import_module("river.drift")
STATS: Any = importlib.import_module("scipy.stats")


def changes(stream: Sequence[float], delta: float, clock: int, *, anew: bool) -> list[int]:
    """Where a window is cut, saved as JSON and loaded between values; begun anew after each cut, as River does."""
    found, window = [], Adwin(delta, clock)
    for place, value in enumerate(stream):
        if window.update(float(value)):
            found.append(place)
            window = Adwin(delta, clock) if anew else window
        window = Adwin.load(json.loads(json.dumps(window.dump())), delta, clock)
    return found


def distribution(method: str, learn: int, window: int) -> Distribution:
    return Distribution(Options(0.1, 0.01, learn, window, 300.0, 0.5, 0.1, 100, False, method))


def statistic(detector: Distribution, *parts: Any) -> float:
    for value in np.concatenate(parts):
        detector.update(float(value), 0.0)
        again = distribution(detector._options.method, detector._options.learn, detector._options.window)
        again.load(json.loads(json.dumps(detector.dump())))
        detector = again
    found = detector.reading().statistic
    assert found is not None
    return found


@pytest.mark.parametrize(("clock", "expected"), [(32, [127, 223]), (1, [107, 209])])
def test_golden_of_frouros_three_levels_is_rivers(clock: int, expected: list[int]) -> None:
    np.random.seed(31)
    parts = [np.random.normal(middle, spread, 100) for middle, spread in ((0, 0.5), (4, 0.2), (6, 0.5))]
    stream = np.concatenate(parts)
    assert changes(list(stream), 0.002, clock, anew=True) == expected
    oracle, found = RIVER.ADWIN(clock=clock), []
    for place, value in enumerate(stream):
        oracle.update(value)
        if oracle.drift_detected:
            found.append(place)
    assert found == expected


def test_golden_of_capymoas_documentation() -> None:
    np.random.seed(0)
    stream = np.random.randint(2, size=2000)
    for place in range(999, 2000):
        stream[place] = np.random.randint(4, high=8)
    assert changes(list(stream), 0.001, 32, anew=False) == [1023, 1055]


def test_golden_of_frouros_kolmogorov_smirnov_window() -> None:
    np.random.seed(31)
    reference, stream = np.random.normal(1, 1, 100), np.random.normal(1, 1, 100)
    assert statistic(distribution("ks", 100, 10), reference, stream) == pytest.approx(0.27)


@pytest.mark.parametrize("seed", range(5))
def test_kolmogorov_smirnov_is_scipys_with_ties_too(seed: int) -> None:
    chance = np.random.default_rng(seed)
    for digits in (0, 8):
        reference, window = chance.normal(0, 2, 500).round(digits), chance.normal(0.3, 2, 600).round(digits)
        expected = STATS.ks_2samp(reference, window).statistic
        assert statistic(distribution("ks", 500, 600), reference, window) == pytest.approx(expected)


def test_population_stability_index_is_the_textbooks_sum_over_deciles() -> None:
    chance = np.random.default_rng(1)
    reference, window = chance.normal(0, 1, 1000), chance.normal(0.5, 1, 1000)
    edges = np.sort(reference)[[100 * part for part in range(1, 10)]]
    then = np.bincount(np.searchsorted(edges, reference), minlength=10) / 1000
    now = np.bincount(np.searchsorted(edges, window), minlength=10) / 1000
    expected = float(((now - then) * np.log(now / then)).sum())
    assert statistic(distribution("psi", 1000, 1000), reference, window) == pytest.approx(expected)
