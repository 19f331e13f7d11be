"""Moments of faults, from rows as the database gives them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumer.watchdog.decide import worst
from consumer.watchdog.judge import process
from consumer.watchdog.observation import Rules

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def row(*, age: float, interval: float, progress_age: float, **fields: Any) -> dict[str, Any]:
    return {
        "subject": "executor", "instance": "one", "state": "RUNNING", "run_id": None, "progress": 1,
        "now": NOW, "started_at": NOW,
        "at": NOW - dt.timedelta(seconds=age), "interval": interval,
        "progress_at": NOW - dt.timedelta(seconds=progress_age),
    } | fields  # fmt: skip


def state(found: dict[str, Any]) -> str:
    fault = worst(process(found, Rules(), NOW).faults, NOW)
    return "up" if fault is None else fault.state


@given(st.floats(1, 7200), st.floats(0, 1))
def test_a_process_that_beats_in_its_own_time_and_makes_progress_is_up(interval: float, share: float) -> None:
    age = interval * share
    assert state(row(age=age, interval=interval, progress_age=age)) == "up"


@given(st.floats(1, 50), st.floats(61, 7200))
def test_a_process_that_beats_without_progress_is_stuck(interval: float, progress_age: float) -> None:
    assert state(row(age=interval / 2, interval=interval, progress_age=progress_age)) == "stuck"


@given(st.floats(1, 7200), st.floats(3.1, 1000))
def test_a_silent_process_is_overdue_whatever_else_is_wrong_with_it(interval: float, missed: float) -> None:
    age = interval * missed + 2.1
    assert state(row(age=age, interval=interval, progress_age=age + 5000)) == "overdue"
