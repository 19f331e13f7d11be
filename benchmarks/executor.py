"""runs_over_dbos and runs_tx_over_dbos: runs of three named, checkpointed steps with trivial bodies a second, against
DBOS' workflows; the second with a row of the agent's own, written in the outcome transaction.

DBOS runs the same steps (benchmarks.dbos_peer) on the same durable server, each time in a fresh database; its row is
written by a transaction of its datasource, its own way to write one exactly once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from benchmarks.agents import stepping, storing
from benchmarks.duel import OURS, Side, Way, Work, duel, expect, rate
from benchmarks.figures import Measured
from benchmarks.services import Child, Services, python, running

THEIRS: Final = (Way(2, 4, "direct"), Way(1, 8, "direct"), Way(2, 4, "queue"))
STEPS: Final = Work("stepping", stepping, title="3", checkpoints=4)
STORED: Final = Work(
    "storing",
    storing,
    title="3",
    checkpoints=4,
    tables="CREATE TABLE public.bench_stored (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run bigint NOT NULL)",
    written="SELECT count(DISTINCT run) FROM public.bench_stored",
)


def measure(services: Services) -> Measured:
    """Runs a second by both, with and without a row of their own."""
    runs, workflows, rounds = (2000, 200, 2) if services.quick else (8000, 800, 5)
    log = Path(services.directory) / "executor.log"
    plain, raw = duel(
        Side("ours", OURS, runs, lambda way, count: rate(services, STEPS, way, count, log)),
        Side("dbos", THEIRS, workflows, lambda way, count: theirs(services, way, count, log)),
        rounds,
    )
    # A transaction for each outcome: fewer runs take the same time.
    stored, raw_stored = duel(
        Side("ours", OURS, runs // 4, lambda way, count: rate(services, STORED, way, count, log)),
        Side("dbos", THEIRS[:2], workflows // 2, lambda way, count: theirs(services, way, count, log, "stored")),
        rounds,
    )
    raw["external_calls"] = "the steps call nothing outside, so no call records are written (README, decisions)"
    figures = {"runs_over_dbos": plain.ratio, "runs_tx_over_dbos": stored.ratio}
    return Measured(figures, {**raw, "with_a_row_of_its_own": raw_stored})


def theirs(services: Services, way: Way, workflows: int, log: Path, work: str = "steps") -> float:
    """Workflows a second from the word to begin to the last result, processes warmed up."""
    each = workflows // way.processes
    with services.database(migrated=False) as url:
        children: list[Child] = []
        with running(children):
            for _ in range(way.processes):
                # One after the other: the first makes DBOS' tables.
                child = Child(
                    python("benchmarks.dbos_peer", str(each), str(way.flight), way.mode, work),
                    {"BENCH_DATABASE": url},
                    log,
                )
                children.append(child)
                expect(child, "ready")
            began = time.perf_counter()
            for child in children:
                child.say("go")
            for child in children:
                expect(child, f"done {each}")
            seconds = time.perf_counter() - began
    return each * way.processes / seconds
