"""When the states of detectors are saved."""

from __future__ import annotations

import time

from producers.drift import store
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor


def test_states_wait_for_more_values_unless_something_is_to_be_told() -> None:
    monitor = Monitor.of(name="m", topic="t", value="v", detector="threshold", warning=10, critical=20)
    engine = Engine([monitor], lambda keys: {}, {})
    engine.feed([monitor], [Sample({"v": 1}, 1.0, 1.0)])
    least, most = store.SAVE_SECONDS
    assert not store.due(engine, time.monotonic(), 0.0)
    assert store.due(engine, time.monotonic() - least, 0.0)
    assert not store.due(engine, time.monotonic() - least, 1.0)
    assert store.due(engine, time.monotonic() - 4, 1.0) and store.due(engine, time.monotonic() - most, 60.0)
    engine.feed([monitor], [Sample({"v": 15}, 2.0, 2.0)])
    assert store.due(engine, time.monotonic(), 60.0)


def test_segments_beyond_the_cap_are_told_without_waiting() -> None:
    monitor = Monitor.of(name="m", topic="t", value="v", segment="s", max_segments=1)
    engine = Engine([monitor], lambda keys: {}, {})
    engine.feed([monitor], [Sample({"v": 1, "s": name}, 1.0, 1.0) for name in ("a", "b")])
    assert store.due(engine, time.monotonic(), 60.0)
