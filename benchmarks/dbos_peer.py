"""One DBOS process of runs_over_dbos: `python -m benchmarks.dbos_peer COUNT THREADS MODE WORK`, with
the database in BENCH_DATABASE.

A workflow of three @DBOS.step functions with trivial bodies, DBOS' own checkpointing on durable Postgres. MODE `direct`
calls workflows from a pool of THREADS; `queue` enqueues them and lets a DBOS queue of that worker concurrency run them.
With WORK `stored` the workflow ends with a transaction of a DBOS datasource, which writes a row and the step's result
together; with `steps` it does not. Prints `ready`, waits for a line, runs COUNT workflows, prints `done N`. DBOS'
settings are at their fastest: no ping before each use of a connection, no OpenTelemetry, warnings only.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig, SetWorkflowID, SQLAlchemyDatasource
from sqlalchemy import text

WARM_UP = 8
QUEUE = "bench"


@DBOS.step()
def one(value: int) -> int:
    """A step's body that costs nothing."""
    return value


@DBOS.step()
def two(value: int) -> int:
    """The same again."""
    return value


@DBOS.step()
def three(value: int) -> int:
    """And again: a step is known by its name."""
    return value


@DBOS.workflow()
def steps(value: int) -> int:
    """The three steps."""
    return three(two(one(value) + 1) + 1)


def _stored(source: SQLAlchemyDatasource) -> Callable[[int], int]:
    @source.transaction()
    def store(value: int) -> int:
        source.sql_session().execute(text("INSERT INTO public.bench_stored (run) VALUES (:run)"), {"run": value})
        return value

    @DBOS.workflow()
    def stored(value: int) -> int:
        return int(store(three(two(one(value) + 1) + 1)))

    return stored


def _source(threads: int) -> SQLAlchemyDatasource:
    source = SQLAlchemyDatasource.create(
        database_url=os.environ["BENCH_DATABASE"],
        engine_kwargs={"pool_size": threads + 2, "pool_pre_ping": False},
    )
    with source.engine.begin() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS public.bench_stored (id bigserial PRIMARY KEY, run bigint)"))
    return source


def _direct(workflow: Callable[[int], int], count: int, threads: int) -> int:
    def call(value: int) -> int:
        with SetWorkflowID(uuid.uuid4().hex):
            return workflow(value)

    with ThreadPoolExecutor(threads) as pool:
        return sum(1 for result in pool.map(call, range(count)) if result >= 0)


def _queued(count: int) -> int:
    handles = [DBOS.enqueue_workflow(QUEUE, steps, number) for number in range(count)]
    return sum(1 for handle in handles if handle.get_result() >= 0)


def main(count: int, threads: int, mode: str, work: str) -> None:
    """Run COUNT workflows when told to."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": os.environ["BENCH_DATABASE"],
        "sys_db_pool_size": threads + 6,
        "db_engine_kwargs": {"pool_pre_ping": False},
        "log_level": "WARNING",
        "application_version": "1",
        "executor_id": uuid.uuid4().hex,
        "enable_otlp": False,
    }
    DBOS(config=config)
    workflow = _stored(_source(threads)) if work == "stored" else steps
    DBOS.launch()
    if mode == "queue":
        DBOS.register_queue(QUEUE, worker_concurrency=threads, polling_interval_sec=0.02)

    def run(number: int) -> int:
        return _direct(workflow, number, threads) if mode == "direct" else _queued(number)

    run(WARM_UP)
    print("ready", flush=True)
    sys.stdin.readline()
    print(f"done {run(count)}", flush=True)
    sys.stdin.readline()
    DBOS.destroy()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
