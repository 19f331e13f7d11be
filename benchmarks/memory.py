"""rss_mb: the resident memory of a worker that holds 1,000 runs, all waiting for the model's answer, intake running.

The runs come from 1,000 real rows through the whole stack; the scripted endpoint keeps silent for a minute. The figure
is the largest value seen while all of them wait.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import psutil
import psycopg

from benchmarks.figures import Measured, NotMeasured, significant
from benchmarks.services import Services, model, until, workers

SILENCE_SECONDS: Final = 60.0
MEGABYTE: Final = 1_000_000
WAITING: Final = "SELECT count(*) FROM rowcall.external_calls WHERE state = 'sent'"


def measure(services: Services) -> Measured:
    """Memory of one worker."""
    runs = 200 if services.quick else 1000
    info = services.connected()
    log = Path(services.directory) / "memory.log"
    with (
        model(SILENCE_SECONDS, services.directory) as endpoint,
        psycopg.connect(info.database_url, autocommit=True) as session,
    ):
        environment = {**info.environment(), "MODEL_BASE_URL": endpoint, "ROWCALL_RUNS_IN_FLIGHT": str(runs)}
        with workers("worker", "asking", environment, log) as (worker,):
            process = psutil.Process(worker.pid)
            idle = process.memory_info().rss / MEGABYTE
            began = time.monotonic()
            session.execute(
                "INSERT INTO public.orders (customer_id, amount, status)"
                " SELECT 1, 100 + number, 'paid' FROM generate_series(1, %s) AS number",
                (runs,),
            )
            until(lambda: session.execute(WAITING).fetchone() == (runs,), f"{runs} runs wait", seconds=45)
            seconds = time.monotonic() - began
            samples = []
            for _ in range(20):
                samples.append(process.memory_info().rss / MEGABYTE)
                time.sleep(0.1)
            waiting = session.execute(WAITING).fetchone()
            worker.check()
            # It would drain for a minute; the runs are nobody's any more.
            worker.signal(signal.SIGKILL)
    if waiting != (runs,):
        raise NotMeasured(f"only {waiting} of {runs} runs were still waiting when memory was read")
    raw = {
        "runs_waiting": runs,
        "idle_mb": significant(idle),
        "samples_mb": [significant(value) for value in samples],
        "seconds_until_all_wait": significant(seconds),
    }
    return Measured({"rss_mb": max(samples)}, raw)
