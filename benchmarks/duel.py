"""Rowcall against a peer at the same work: each at the best of its ways to be run, then in rounds that alternate.

`rate` measures Rowcall: `rowcall execute` on its production path (promotion into lanes, claims by lease, fenced
checkpoints, validated outcome) from the commit that queues the runs to the commit of the last outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from benchmarks.figures import NotMeasured, Rounds, significant
from benchmarks.services import Child, Services, until, workers
from consumer.agents.door import Agent

SECONDS: Final = 120.0
# On a busy machine rounds take longer: after this time the third is the last.
BUDGET_SECONDS: Final = 120.0
ENOUGH_ROUNDS: Final = 3
WARM_UP: Final = 50
"""The first runs pay for plans and imports, as the peers' own warm-ups do."""


class Way(NamedTuple):
    """How a side is run: processes, runs in flight (threads, batch) of each, and what else the peer can vary."""

    processes: int
    flight: int
    mode: str = ""

    def __str__(self) -> str:
        return f"{self.processes} x {self.flight} {self.mode}".strip()


OURS: Final = (Way(1, 128), Way(1, 256), Way(2, 128))


@dataclass(frozen=True, slots=True)
class Work:
    """What each run of Rowcall does, and what must stand in the database afterwards.

    Args:
        agents: the set of benchmarks.agents that the workers load.
        agent: the one that runs.
        title: the answer of each run.
        checkpoints: rows of job_steps for each run.
        tables: what to create first.
        written: a query whose one number must be the number of runs.
    """

    agents: str
    agent: Agent
    title: str
    checkpoints: int
    tables: str = ""
    written: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its ways, how many runs a round has, and runs a second of one way for so many runs."""

    name: str
    ways: Sequence[Way]
    runs: int
    rate: Callable[[Way, int], float]

    def tried(self) -> dict[Way, float]:
        """Every way once, with a quarter of a round."""
        return {way: self.rate(way, self.runs // 4) for way in self.ways}


def duel(ours: Side, theirs: Side, rounds: int) -> tuple[Rounds, dict[str, Any]]:
    """The rounds of the two at their best, and everything about them for `_context`."""
    began = time.monotonic()
    sides = (ours, theirs)
    tried = {side.name: side.tried() for side in sides}
    best = {name: max(rates, key=rates.__getitem__) for name, rates in tried.items()}
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    done = 0
    while done < rounds and (done < ENOUGH_ROUNDS or time.monotonic() - began < BUDGET_SECONDS):
        for side in sides:
            rates[side.name].append(side.rate(best[side.name], side.runs))
        done += 1
    result = Rounds(rates[ours.name], rates[theirs.name])
    raw = {
        "runs_a_round": {side.name: side.runs for side in sides},
        "processes_x_in_flight": {name: str(way) for name, way in best.items()},
        "tried": {name: {str(way): significant(rate) for way, rate in rates.items()} for name, rates in tried.items()},
        **result.raw(),
    }
    return result, raw


def rate(services: Services, work: Work, way: Way, runs: int, log: Path) -> float:
    """Rowcall's runs a second, workers waiting.

    Raises:
        NotMeasured: a run did not end as it should.
    """
    environment = {"ROWCALL_RUNS_IN_FLIGHT": str(way.flight)}
    with services.database() as url, psycopg.connect(url, autocommit=True) as session:
        activate(session, work)
        with workers(
            "execute", work.agents, {**environment, "DATABASE_URL": url}, log, count=way.processes
        ) as children:
            _queue(session, work, WARM_UP)
            _finish(session, children, WARM_UP)
            _queue(session, work, runs)
            began = time.perf_counter()
            _finish(session, children, WARM_UP + runs)
            seconds = time.perf_counter() - began
        _check(session, work, WARM_UP + runs)
    return runs / seconds


def activate(session: psycopg.Connection, work: Work) -> None:
    """Make the agent known, and its tables."""
    session.execute("INSERT INTO rowcall.agents (name, version) VALUES (%s, %s)", (work.agent.name, work.agent.version))
    if work.tables:
        session.execute(work.tables.encode())


def _check(session: psycopg.Connection, work: Work, runs: int) -> None:
    row = session.execute(
        "SELECT (SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED' AND result->>'title' = %s),"
        " (SELECT count(*) FROM rowcall.job_steps)",
        (work.title,),
    ).fetchone()
    if row != (runs, work.checkpoints * runs):
        raise NotMeasured(f"{runs} runs left (succeeded, checkpoints) = {row}")
    if work.written and (found := session.execute(work.written.encode()).fetchone()) != (runs,):
        raise NotMeasured(f"{runs} runs wrote {found}")


def _queue(session: psycopg.Connection, work: Work, runs: int) -> None:
    session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, payload) SELECT %s, '{}' FROM generate_series(1, %s)",
        (work.agent.name, runs),
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


def expect(child: Child, text: str) -> None:
    """Its next line must be `text`.

    Raises:
        NotMeasured: it is another.
    """
    line = child.line()
    if line != text:
        raise NotMeasured(f"the peer says {line!r}, not {text!r}; see {child.log}")
