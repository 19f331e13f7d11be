"""runs_over_dbos: runs of three named, checkpointed steps with trivial bodies a second, against DBOS' workflows.

Ours is `rowcall execute` on its production path: promotion into lanes, claims by lease, fenced checkpoints, validated
outcome. DBOS runs the same three steps (benchmarks.dbos_peer) on the same durable server, each time in a fresh
database. Both sides first try their ways to be run, once each; the best of each side then meets the other in rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from benchmarks.agents import stepping
from benchmarks.figures import Measured, NotMeasured, Rounds, significant
from benchmarks.services import Child, Services, python, running, until, workers


class Way(NamedTuple):
    """How a side is run: processes, runs in flight (threads) of each, and DBOS' way of starting workflows."""

    processes: int
    flight: int
    mode: str = ""

    def __str__(self) -> str:
        return f"{self.processes} x {self.flight} {self.mode}".strip()


OURS: Final = (Way(1, 128), Way(1, 256), Way(2, 128))
THEIRS: Final = (Way(2, 4, "direct"), Way(1, 8, "direct"), Way(2, 4, "queue"))
SECONDS: Final = 120.0
# On a busy machine rounds take longer: after this time the third is the last.
BUDGET_SECONDS: Final = 120.0
ENOUGH_ROUNDS: Final = 3


def measure(services: Services) -> Measured:
    """Runs a second by both."""
    runs, workflows, rounds = (2000, 200, 2) if services.quick else (8000, 800, 5)
    log = Path(services.directory) / "executor.log"
    began = time.monotonic()
    tried_ours = {way: ours(services, way, runs // 4, log) for way in OURS}
    tried_theirs = {way: theirs(services, way, workflows // 4, log) for way in THEIRS}
    best_ours = max(tried_ours, key=tried_ours.__getitem__)
    best_theirs = max(tried_theirs, key=tried_theirs.__getitem__)
    mine: list[float] = []
    peer: list[float] = []
    while len(mine) < rounds and (len(mine) < ENOUGH_ROUNDS or time.monotonic() - began < BUDGET_SECONDS):
        mine.append(ours(services, best_ours, runs, log))
        peer.append(theirs(services, best_theirs, workflows, log))
    result = Rounds(mine, peer)
    raw = {
        "runs_a_round": {"ours": runs, "dbos": workflows},
        "processes_x_in_flight": {"ours": str(best_ours), "dbos": str(best_theirs)},
        "tried": {
            "ours": {str(way): significant(rate) for way, rate in tried_ours.items()},
            "dbos": {str(way): significant(rate) for way, rate in tried_theirs.items()},
        },
        **result.raw(),
    }
    return Measured({"runs_over_dbos": result.ratio}, raw)


def ours(services: Services, way: Way, runs: int, log: Path) -> float:
    """Runs a second from the commit that queues them to the commit of the last outcome, workers waiting."""
    environment = {"ROWCALL_RUNS_IN_FLIGHT": str(way.flight)}
    with services.database() as url, psycopg.connect(url, autocommit=True) as session:
        session.execute("INSERT INTO rowcall.agents (name, version) VALUES (%s, %s)", (stepping.name, stepping.version))
        with workers("execute", "stepping", {**environment, "DATABASE_URL": url}, log, count=way.processes) as children:
            _queue(session, 50)  # the first runs pay for plans and imports, as DBOS' warm-up does
            _finish(session, children, 50)
            _queue(session, runs)
            began = time.perf_counter()
            _finish(session, children, 50 + runs)
            seconds = time.perf_counter() - began
        row = session.execute(
            "SELECT (SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED' AND result->>'title' = '3'),"
            " (SELECT count(*) FROM rowcall.job_steps)"
        ).fetchone()
    if row != (50 + runs, 4 * (50 + runs)):
        raise NotMeasured(f"{50 + runs} runs left (succeeded, checkpoints) = {row}")
    return runs / seconds


def _queue(session: psycopg.Connection, runs: int) -> None:
    session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, payload) SELECT %s, '{}' FROM generate_series(1, %s)",
        (stepping.name, runs),
    )


def _finish(session: psycopg.Connection, children: Sequence[Child], runs: int) -> None:
    def over() -> bool:
        for child in children:
            child.check()
        # No lane is left when the last run has ended: a look that costs nothing while thousands of runs go by.
        row = session.execute(
            "SELECT NOT EXISTS (SELECT FROM rowcall.lanes) AND NOT EXISTS ("
            "SELECT FROM rowcall.agent_jobs WHERE lane_seq IS NULL AND status = 'PENDING')"
        ).fetchone()
        return bool(row and row[0])

    until(over, f"{runs} runs end", seconds=SECONDS, every=0.02)


def theirs(services: Services, way: Way, workflows: int, log: Path) -> float:
    """Workflows a second from the word to begin to the last result, processes warmed up."""
    each = workflows // way.processes
    with services.database(migrated=False) as url:
        children: list[Child] = []
        with running(children):
            for _ in range(way.processes):
                # One after the other: the first makes DBOS' tables.
                child = Child(
                    python("benchmarks.dbos_peer", str(each), str(way.flight), way.mode), {"BENCH_DATABASE": url}, log
                )
                children.append(child)
                _expect(child, "ready")
            began = time.perf_counter()
            for child in children:
                child.say("go")
            for child in children:
                _expect(child, f"done {each}")
            seconds = time.perf_counter() - began
    return each * way.processes / seconds


def _expect(child: Child, text: str) -> None:
    line = child.line()
    if line != text:
        raise NotMeasured(f"the DBOS process says {line!r}, not {text!r}; see {child.log}")
