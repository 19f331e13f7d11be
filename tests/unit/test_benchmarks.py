"""The pure parts of the benchmarks: rounds become figures, figures meet targets, the document keeps its shape."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.__main__ import main as run_benchmarks
from benchmarks.drift_data import CAR_LOAN
from benchmarks.figures import (
    TARGETS,
    Measured,
    Rounds,
    document,
    missed,
    percentile,
    significant,
    spread,
    summary,
)
from producers.drift.monitors import Monitor, load


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    # The third round met a busy machine: both sides were slow, and their ratio is as good as any other.
    rounds = Rounds(ours=[30.0, 33.0, 3.0], reference=[10.0, 10.0, 1.0])
    assert rounds.ratios == [3.0, 3.3, 3.0]
    assert rounds.ratio == 3.0


def test_one_disturbed_round_does_not_decide() -> None:
    assert Rounds([30.0, 30.0, 1.0], [10.0, 10.0, 10.0]).ratio == 3.0


def test_sides_with_different_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        _ = Rounds([1.0, 2.0], [1.0]).ratio


def test_the_raw_rounds_and_their_spread_are_kept() -> None:
    raw = Rounds([10.0, 12.0], [5.0, 5.0]).raw()
    assert raw["ours_per_s"] == [10.0, 12.0]
    assert raw["reference_per_s"] == [5.0, 5.0]
    assert raw["spread"] == {"ours": 0.182, "reference": 0.0, "ratio": 0.182}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs values"):
        percentile([], 0.5)


def test_the_summary_of_single_measurements_counts_them() -> None:
    found = summary([1.0, 2.0, 3.0, 10.0])
    assert (found["count"], found["min"], found["p50"], found["max"]) == (4, 1.0, 2.0, 10.0)


def test_figures_are_given_with_four_digits() -> None:
    assert significant(0.123456) == 0.1235
    assert significant(123456.0) == 123500.0


def test_no_spread_where_nothing_was_measured_but_zero() -> None:
    assert spread([0.0, 0.0]) == 0.0


def test_the_document_is_one_flat_object_of_numbers_with_its_context() -> None:
    measured = {
        "intake": Measured({"intake_over_fastavro": 0.412345}, {"rounds": 3}),
        "idle": Measured({"idle_cpu_percent": 0.4, "idle_queries_per_s": 1.6}),
    }
    written = json.loads(json.dumps(document(measured, {"cores": 2})))
    assert written.pop("_context") == {"cores": 2, "raw": {"intake": {"rounds": 3}, "idle": {}}}
    assert written == {"intake_over_fastavro": 0.4123, "idle_cpu_percent": 0.4, "idle_queries_per_s": 1.6}


def test_a_figure_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="rss_mb is given twice, the second time by b"):
        document({"a": Measured({"rss_mb": 1.0}), "b": Measured({"rss_mb": 2.0})}, {})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="rss_mb of memory"):
        document({"memory": Measured({"rss_mb": value})}, {})


def test_a_missed_target_is_named_with_what_it_must_reach() -> None:
    assert missed({"runs_over_dbos": 11.9, "rss_mb": 299.0}) == ["runs_over_dbos is 11.9, must be >= 12"]


def test_a_slot_that_fired_twice_misses_the_target_as_one_that_was_lost() -> None:
    for figure in (0.999, 1.001):
        assert missed({"slots_fired_over_due": figure}) == [f"slots_fired_over_due is {figure}, must be == 1"]


@pytest.mark.parametrize(("key", "figure"), [(key, target.value) for key, target in TARGETS.items()])
def test_a_target_that_is_just_met_is_reached(key: str, figure: float) -> None:
    assert missed({key: figure}) == []


def test_every_figure_with_a_target_stands_in_the_manual() -> None:
    manual = (Path(__file__).parents[2] / "docs/measuring.md").read_text("utf-8")
    stated = dict(re.findall(r"^\| `(\w+)` \| ([<>=]= [\d.]+) \|", manual, re.MULTILINE))
    assert stated == {key: str(target) for key, target in TARGETS.items()}


def test_a_figure_without_a_target_is_only_reported() -> None:
    assert missed({"idle_stack_cpu_percent": 99.0}) == []


def test_an_unknown_name_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmarks(["intake", "warp"]) == 2
    assert "no such benchmark: warp; there are: " + ", ".join(BENCHMARKS) in capsys.readouterr().err


def test_the_monitors_to_try_on_the_car_loan_are_of_its_columns_with_the_defaults() -> None:
    _, monitors = load(Path(__file__).parents[2] / "benchmarks/car-loan.toml")
    assert {monitor.value for monitor in monitors} == {*CAR_LOAN.drifting, *CAR_LOAN.clean}
    assert all(monitor == Monitor.of(name=monitor.name, topic="car-loan", value=monitor.value) for monitor in monitors)
