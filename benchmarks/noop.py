"""noop_over_pgqueuer: jobs a second that are claimed and completed and do nothing, against PgQueuer.

Ours are runs of an agent without steps, on the production path: lanes, leases, fences, a validated answer, the
checkpoint of the outcome. PgQueuer (benchmarks.pgqueuer_peer) drains its queue on the same durable server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from benchmarks.agents import resting
from benchmarks.duel import Side, Way, Work, duel, expect, rate
from benchmarks.figures import Measured, NotMeasured
from benchmarks.services import Child, Services, python, running

OURS: Final = (Way(1, 256), Way(1, 512), Way(2, 256))
# In flight: PgQueuer's batch.
THEIRS: Final = (Way(1, 10), Way(1, 100), Way(1, 250), Way(2, 100), Way(2, 250))
WORK: Final = Work("resting", resting, title="rested", checkpoints=1)


def measure(services: Services) -> Measured:
    """Jobs a second by both."""
    jobs, rounds = (4000, 2) if services.quick else (20_000, 5)
    log = Path(services.directory) / "noop.log"
    result, raw = duel(
        Side("ours", OURS, jobs, lambda way, count: rate(services, WORK, way, count, log)),
        Side("pgqueuer", THEIRS, jobs, lambda way, count: theirs(services, way, count, log)),
        rounds,
    )
    return Measured({"noop_over_pgqueuer": result.ratio}, raw)


def theirs(services: Services, way: Way, jobs: int, log: Path) -> float:
    """Jobs a second from the word to begin to the end of the last process."""
    with services.database(migrated=False) as url:
        children: list[Child] = []
        with running(children):
            for number in range(way.processes):
                argv = python("benchmarks.pgqueuer_peer", str(way.flight), str(0 if number else jobs))
                child = Child(argv, {"BENCH_DATABASE": url}, log)
                children.append(child)
                expect(child, "ready")
            began = time.perf_counter()
            for child in children:
                child.say("go")
            done = sum(int(child.line().removeprefix("done ")) for child in children)
            seconds = time.perf_counter() - began
    if done != jobs:
        raise NotMeasured(f"PgQueuer ran {done} of {jobs} jobs; see {log}")
    return jobs / seconds
