"""commit_to_result_ms_p50, _p99 and commit_to_result_over_polling, on the whole stack.

A row is committed about every 100 ms; Debezium, Kafka, intake, executor and an endpoint that answers at once lead to an
outcome that writes into the row. Both ends are the server's own commit times (track_commit_timestamp): of the
transaction that inserted the row, and of the one that wrote the answer into it. The reference does the same work by
looking at a table of its own every 5 s; its rows are committed at random phases and measured in the same way.
"""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg

from benchmarks.agents import ANSWER
from benchmarks.figures import Measured, NotMeasured, percentile, significant, summary
from benchmarks.services import Services, model, until, workers

POLL_SECONDS: Final = 5.0
WARM_UP: Final = 20

INSERT_ORDER: Final = (
    "INSERT INTO public.orders (customer_id, amount, status) VALUES (1, 120, 'paid')"
    " RETURNING id, pg_current_xact_id()::text"
)
INSERT_POLLED: Final = (
    "INSERT INTO public.bench_polled (customer_id, amount, status) VALUES (1, 120, 'paid')"
    " RETURNING id, pg_current_xact_id()::text"
)
# The last transaction that wrote the row is the outcome's: it put the answer there.
TIMES: Final = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - pg_xact_commit_timestamp(v.xid::xid))::float8 * 1000
FROM unnest(%s::bigint[], %s::text[]) AS v (id, xid) JOIN {table} o USING (id) WHERE o.triage = %s
"""
# Where the time goes, by the job's own row; all stamps are of the server's clock.
STAGES: Final = """
SELECT extract(epoch FROM j.created_at - pg_xact_commit_timestamp(v.xid::xid))::float8 * 1000 AS to_job,
    extract(epoch FROM j.started_at - j.created_at)::float8 * 1000 AS to_claim,
    extract(epoch FROM c.sent_at - j.started_at)::float8 * 1000 AS to_call,
    extract(epoch FROM c.finished_at - c.sent_at)::float8 * 1000 AS call,
    extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - c.finished_at)::float8 * 1000 AS to_outcome
FROM unnest(%s::bigint[], %s::text[]) AS v (id, xid) JOIN public.orders o USING (id)
JOIN rowcall.agent_jobs j ON j.key_text = v.id::text AND j.job_type = 'bench-asking'
JOIN rowcall.external_calls c ON c.job_id = j.id
"""


def measure(services: Services) -> Measured:
    """Both latencies, one after the other."""
    rows, polled_seconds = (40, 12.0) if services.quick else (250, 60.0)
    info = services.connected()
    log = Path(services.directory) / "latency.log"
    with (
        model(0.0, services.directory) as endpoint,
        psycopg.connect(info.database_url, autocommit=True) as session,
    ):
        environment = {**info.environment(), "MODEL_BASE_URL": endpoint}
        with workers("worker", "asking", environment, log):
            _commit_rows(session, INSERT_ORDER, WARM_UP, 0.05)
            _answered(session, "public.orders")
            committed = _commit_rows(session, INSERT_ORDER, rows, 0.1)
            _answered(session, "public.orders")
            ours = _times(session, "public.orders", committed)
            stages = _stages(session, committed)
        polled = _polled(session, info.database_url, endpoint, polled_seconds)
    p50 = percentile(ours, 0.5)
    reference = percentile(polled, 0.5)
    figures = {
        "commit_to_result_ms_p50": p50,
        "commit_to_result_ms_p99": percentile(ours, 0.99),
        "commit_to_result_over_polling": p50 / reference,
    }
    # Thirds of the run in the place of rounds: each row is a measurement of its own.
    third = len(ours) // 3
    parts = [significant(percentile(ours[start : start + third], 0.5)) for start in (0, third, 2 * third)]
    raw = {
        "ours_ms": summary(ours),
        "polling_ms": summary(polled),
        "p50_by_third_ms": parts,
        "stages_ms_p50": stages,
        "poll_seconds": POLL_SECONDS,
        "model": "scripted endpoint on loopback, answers at once",
    }
    return Measured(figures, raw)


def _commit_rows(session: psycopg.Connection, statement: str, count: int, every: float) -> list[tuple[int, str]]:
    """Commit rows one by one, about `every` seconds; (id, transaction) of each."""
    committed = []
    for _ in range(count):
        row = session.execute(statement.encode()).fetchone()
        assert row is not None
        committed.append((row[0], row[1]))
        time.sleep(every * random.uniform(0.7, 1.3))
    return committed


def _answered(session: psycopg.Connection, table: str) -> None:
    query = f"SELECT count(*) FROM {table} WHERE triage IS NULL".encode()

    def over() -> bool:
        row = session.execute(query).fetchone()
        return row == (0,)

    until(over, f"every row of {table} has its answer", seconds=60, every=0.2)


def _times(session: psycopg.Connection, table: str, committed: Sequence[tuple[int, str]]) -> list[float]:
    parameters = ([item[0] for item in committed], [item[1] for item in committed], ANSWER["title"])
    times = [row[0] for row in session.execute(TIMES.format(table=table).encode(), parameters).fetchall()]
    if len(times) != len(committed):
        raise NotMeasured(f"{len(times)} of {len(committed)} rows of {table} have the answer")
    return times


def _stages(session: psycopg.Connection, committed: Sequence[tuple[int, str]]) -> dict[str, float]:
    cursor = session.execute(STAGES.encode(), ([item[0] for item in committed], [item[1] for item in committed]))
    names = [column.name for column in cursor.description or ()]
    rows = cursor.fetchall()
    if len(rows) != len(committed):
        raise NotMeasured(f"{len(committed)} rows gave {len(rows)} runs with a model call, not one each")
    return {
        name: significant(statistics.median(column))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def _polled(session: psycopg.Connection, url: str, endpoint: str, seconds: float) -> list[float]:
    """What an agent takes that looks at the table every POLL_SECONDS and handles what it finds."""
    session.execute("DROP TABLE IF EXISTS public.bench_polled")
    session.execute("CREATE TABLE public.bench_polled (LIKE public.orders INCLUDING ALL)")
    session.execute("CREATE INDEX ON public.bench_polled (id) WHERE triage IS NULL")
    stop = threading.Event()
    failures: list[BaseException] = []
    poller = threading.Thread(target=_guarded(lambda: _poll(url, endpoint, stop), failures), name="polling agent")
    poller.start()
    try:
        committed = _commit_rows(session, INSERT_POLLED, int(seconds / 0.25), 0.25)
        if failures:
            raise NotMeasured(f"the polling agent failed: {failures[0]}")
        _answered(session, "public.bench_polled")
    finally:
        stop.set()
        poller.join(POLL_SECONDS + 10)
    return _times(session, "public.bench_polled", committed)


def _guarded(work: Callable[[], None], failures: list[BaseException]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except (psycopg.Error, httpx.HTTPError, KeyError, ValueError) as error:
            failures.append(error)

    return run


def _poll(url: str, endpoint: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as session, httpx.Client(timeout=30) as client:
        due = time.monotonic()
        while not stop.is_set():
            found = session.execute("SELECT id FROM public.bench_polled WHERE triage IS NULL ORDER BY id").fetchall()
            for (number,) in found:
                request: dict[str, Any] = {
                    "model": "scripted",
                    "messages": [{"role": "user", "content": f"Title this order. {number}"}],
                }
                answer = client.post(f"{endpoint}/chat/completions", json=request).raise_for_status().json()
                content = json.loads(answer["choices"][0]["message"]["content"])
                session.execute("UPDATE public.bench_polled SET triage = %s WHERE id = %s", (content["title"], number))
            due += POLL_SECONDS
            stop.wait(max(0.0, due - time.monotonic()))
