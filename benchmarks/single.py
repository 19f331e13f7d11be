"""run_ms_p50: one run at a time, three durable steps, from the INSERT that queues it to the commit of its outcome.

The end is the server's own commit time (track_commit_timestamp) of the transaction that wrote the outcome; the start is
this process' clock before the INSERT is sent. Both are clocks of this machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.agents import stepping
from benchmarks.duel import activate
from benchmarks.executor import STEPS
from benchmarks.figures import Measured, percentile, significant, summary
from benchmarks.services import Services, until, workers

WARM_UP: Final = 30
ENDED: Final = (
    "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM rowcall.agent_jobs"
    " WHERE id = %s AND status = 'SUCCEEDED'"
)


def measure(services: Services) -> Measured:
    """One after the other; each begins when the one before was seen to have ended."""
    runs = 60 if services.quick else 400
    log = Path(services.directory) / "single.log"
    with services.database() as url, psycopg.connect(url, autocommit=True) as session:
        activate(session, STEPS)
        with workers("execute", STEPS.agents, {"DATABASE_URL": url}, log):
            for _ in range(WARM_UP):
                _one(session)
            times = [_one(session) for _ in range(runs)]
    third = runs // 3
    parts = [significant(percentile(times[start : start + third], 0.5)) for start in (0, third, 2 * third)]
    return Measured({"run_ms_p50": percentile(times, 0.5)}, {"ms": summary(times), "p50_by_third_ms": parts})


def _one(session: psycopg.Connection) -> float:
    began = time.time()
    row = session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, payload) VALUES (%s, '{}') RETURNING id", (stepping.name,)
    ).fetchone()
    assert row is not None
    # A look every 5 ms disturbs little, and the end does not depend on when it is seen.
    ended = until(lambda: session.execute(ENDED, row).fetchone(), f"run {row[0]} ends", seconds=30, every=0.005)
    return (float(ended[0]) - began) * 1000
