"""Drift over far more segments than memory holds: values a second, and the memory of the process.

100,000 segments, five times those that stay in memory. A process of its own works on them, so that its memory is that
of the detectors alone; it reads values from nowhere, and loads and saves states as `rowcall drift run` does.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from typing import Any, Final

import orjson
import psutil

from benchmarks.drift_speed import learned
from benchmarks.figures import significant
from benchmarks.services import Child, Services, python, running
from consumer import db
from producers.drift import store
from producers.drift.engine import MEMORY_SEGMENTS, Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.process import BATCH

SEGMENTS: Final = 100_000
# Where few segments have most of the values, nine in ten fall on so many.
_BUSY: Final = 10_000
_MONITOR: Final = Monitor.of(name="m", topic="t", value="v", segment="s", max_segments=SEGMENTS)
_MEGABYTE: Final = 1_000_000
_BATCHES: Final = 4
_COPY: Final = b"""
INSERT INTO rowcall.drift_state (monitor, segment, status, episode, samples, due_at, state)
SELECT monitor, 's' || number, status, episode, samples, due_at, state
FROM generate_series(0, %(segments)s - 1) AS number
JOIN rowcall.drift_state ON segment = (number %% %(kinds)s)::text
"""


def beyond_memory(services: Services) -> dict[str, Any]:
    """Rounds of some batches, with values spread evenly over all segments, then with most of them on a few."""
    rounds = 1 if services.quick else 3
    with services.database() as url:
        with contextlib.closing(db.connect(url, name="bench")) as session:
            _fill(session)
        log = services.directory / "drift_many.log"
        with running([Child(python("benchmarks.drift_many", url, str(rounds)), {}, log)]) as (child,):
            found: dict[str, Any] = orjson.loads(child.line())
    return {"segments": SEGMENTS, "in_memory": MEMORY_SEGMENTS, "batch": BATCH, **found}


def _fill(session: db.SyncSession) -> None:
    """States of all segments, each past its baseline: copies of a few."""
    states = learned(_MONITOR, random.Random(1))
    engine = Engine(
        [_MONITOR], lambda keys: {key: orjson.loads(states[int(key[1])]) for key in keys}, {_MONITOR.name: SEGMENTS}
    )
    engine.feed([_MONITOR], [Sample({"v": 0.0, "s": str(number)}, 0.0, 0.0) for number in range(len(states))])
    store.save(session, engine, Topics(), 1.0)
    session.execute(_COPY, {"segments": SEGMENTS, "kinds": len(states)})


def _work(url: str, rounds: int) -> dict[str, Any]:
    chance, process = random.Random(2), psutil.Process()
    with contextlib.closing(db.connect(url, name="bench")) as session:
        engine = Engine([_MONITOR], store.loader(session), store.known(session, [_MONITOR.name]))
        began = process.memory_info().rss
        memory: list[int] = []
        rates: dict[str, list[float]] = {"even": [], "uneven": []}
        for kind, found in rates.items():
            for _ in range(rounds):
                batches = [_values(chance, kind) for _ in range(_BATCHES)]
                found.append(_round(session, engine, batches, memory, process))
    return {
        "per_s_even": [significant(rate) for rate in rates["even"]],
        "per_s_uneven": [significant(rate) for rate in rates["uneven"]],
        "rss_mb_before": significant(began / _MEGABYTE),
        "rss_mb_most": significant(max(memory) / _MEGABYTE),
        "rss_mb_at_the_end": significant(memory[-1] / _MEGABYTE),
    }


def _round(
    session: db.SyncSession,
    engine: Engine,
    batches: list[list[Sample]],
    memory: list[int],
    process: psutil.Process,
) -> float:
    """Values a second; `memory` gets the resident bytes after each batch, when most states are held."""
    began = saved = time.monotonic()
    took = 0.0
    for number, batch in enumerate(batches, 1):
        engine.feed([_MONITOR], batch)
        memory.append(process.memory_info().rss)
        if store.due(engine, saved, took) or number == len(batches):
            starts = time.monotonic()
            store.save(session, engine, Topics(), 1.0)
            saved = time.monotonic()
            took = saved - starts
    return sum(map(len, batches)) / (time.monotonic() - began)


def _values(chance: random.Random, kind: str) -> list[Sample]:
    def segment() -> int:
        return chance.randrange(_BUSY if kind == "uneven" and chance.random() < 0.9 else SEGMENTS)

    return [Sample({"v": chance.gauss(0, 1), "s": f"s{segment()}"}, 1.0, 1.0) for _ in range(BATCH)]


if __name__ == "__main__":
    print(orjson.dumps(_work(sys.argv[1], int(sys.argv[2]))).decode(), flush=True)
