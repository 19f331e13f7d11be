"""History as `rowcall drift check` replays it: clocks are looked at as they come due, once, and in bounded memory."""

from __future__ import annotations

from typing import Any

from producers.drift.check import Replay
from producers.drift.engine import Sample
from producers.drift.monitors import Monitor


def replayed(fields: dict[str, Any], times: list[float], until: float) -> tuple[list[tuple[str, str, float]], Replay]:
    monitor = Monitor.of(**{"name": "m", "topic": "t", "cooldown": 0, **fields})
    made = Replay([monitor])
    for number, at in enumerate(times, 1):
        made.feed([monitor], Sample({"v": 50}, at, at), number)
    made.until(until, len(times))
    return [(item["level"], item["turn"], item["at"]) for item in made.found], made


def test_freshness_is_told_when_it_was_due_and_not_when_the_next_message_came() -> None:
    found, _ = replayed({"detector": "freshness", "warning": 60, "critical": 120}, [0.1, 10.7, 500.3], 600.0)
    assert [(level, turn, round(at, 1)) for level, turn, at in found] == [
        ("warning", "raised", 70.7), ("critical", "raised", 130.7), ("critical", "recovered", 500.3),
        ("warning", "recovered", 500.3), ("warning", "raised", 560.3),
    ]  # fmt: skip


def test_empty_windows_of_a_replay_are_counted_up_to_its_end() -> None:
    times = [float(second) for second in range(1, 1000)]
    found, _ = replayed({"detector": "volume", "window_seconds": 50, "learn": 5}, times, 1200.0)
    assert [(level, turn) for level, turn, _ in found] == [("warning", "raised"), ("critical", "raised")]
    assert found[0][2] > 1000


def test_silence_of_a_replay_is_no_data() -> None:
    fields = {"value": "v", "detector": "threshold", "warning": 10, "critical": 100, "no_data_after": 60}
    found, made = replayed(fields, [1.0, 2.0], 100.0)
    assert [(level, turn) for level, turn, _ in found] == [("warning", "raised")]
    assert made._segments["m", ""].alarm.state == "no_data"


def test_replay_keeps_one_clock_a_segment_however_many_messages_come() -> None:
    _, made = replayed(
        {"detector": "freshness", "warning": 60, "critical": 120}, [n / 10 for n in range(1, 5000)], 500.0
    )
    assert len(made._clock) <= 2
