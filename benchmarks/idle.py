"""idle_cpu_percent, idle_queries_per_s and idle_stack_cpu_percent: what waiting costs.

A `rowcall worker` with a subscribed, assigned topic and nothing to do, in a database of its own, while the stack with
its two connectors runs beside it. CPU is user and system time of the process, in percent of one core. Queries are
counted by the server itself, statement by statement in its log (BEGIN and COMMIT count too), by application name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil
import psycopg

from benchmarks.figures import Measured, NotMeasured, significant
from benchmarks.services import Child, Services, workers
from debezium.stack import StackInfo

SETTLE_SECONDS: Final = 6.0
"""After readiness: the group's first rebalance and the first looks for work are over."""
ROUNDS: Final = 3
# What the executor, intake and watches call themselves (application_name), as log_line_prefix writes it.
_OURS: Final = "] rowcall "
_STATEMENT: Final = (" LOG:  statement: ", " LOG:  execute ")


def measure(services: Services) -> Measured:
    """One worker over half a minute, in rounds for the spread."""
    seconds = 4.0 if services.quick else 10.0
    info = services.connected()
    with services.database() as url:
        _log_statements(url)
        environment = {**info.environment(), "DATABASE_URL": url, "KAFKA_GROUP": "bench-idle"}
        environment["ROWCALL_OUTBOX_SLOT"] = "rowcall_outbox"  # the default: its watch is part of waiting
        log = Path(services.directory) / "idle.log"
        with workers("worker", "asking", environment, log) as children:
            time.sleep(SETTLE_SECONDS)
            rounds = [_round(children[0], info, seconds) for _ in range(ROUNDS)]
    cpu, stack, queries = zip(*rounds, strict=True)
    figures = {
        "idle_cpu_percent": sum(cpu) / ROUNDS,
        "idle_queries_per_s": sum(sum(kinds.values()) for kinds in queries) / ROUNDS / seconds,
        "idle_stack_cpu_percent": sum(sum(parts.values()) for parts in stack) / ROUNDS,
    }
    return Measured(
        figures,
        {
            "seconds": seconds * ROUNDS,
            "cpu_percent_by_round": [significant(value) for value in cpu],
            "stack_cpu_percent_by_round": stack,
            "queries_by_round": [dict(sorted(kinds.items(), key=lambda item: -item[1])[:12]) for kinds in queries],
        },
    )


def _log_statements(url: str) -> None:
    """From now on, sessions of this database have every statement logged."""
    with psycopg.connect(url, autocommit=True) as session:
        row = session.execute("SELECT current_database()").fetchone()
        assert row is not None
        session.execute(f"ALTER DATABASE {row[0]} SET log_statement = 'all'".encode())


def _round(child: Child, info: StackInfo, seconds: float) -> tuple[float, dict[str, float], dict[str, int]]:
    """(worker's CPU in percent of a core, each service's, statements by text) over so many seconds."""
    child.check()
    worker = psutil.Process(child.pid)
    trees = {name: service.pid for name, service in info.services.items() if service.pid is not None}
    log = info.services["postgres"].log
    start = log.stat().st_size
    before_worker, before = _cpu([worker]), {name: _tree(pid) for name, pid in trees.items()}
    began = time.perf_counter()
    time.sleep(seconds)
    after_worker, after = _cpu([worker]), {name: _tree(pid) for name, pid in trees.items()}
    elapsed = time.perf_counter() - began
    child.check()
    stack = {name: significant((after[name] - before[name]) / elapsed * 100, 3) for name in trees}
    return (after_worker - before_worker) / elapsed * 100, stack, _statements(log, start)


def _tree(pid: int) -> float:
    """CPU seconds of a process and what runs below it now."""
    root = psutil.Process(pid)
    return _cpu([root, *root.children(recursive=True)])


def _cpu(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # a backend that has just ended
        total += times.user + times.system
    return total


def _statements(log: Path, start: int) -> dict[str, int]:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    found: dict[str, int] = {}
    for line in lines:
        mark = next((mark for mark in _STATEMENT if mark in line), None)
        if mark is not None and _OURS in line:
            text = line.partition(_OURS)[2].replace(mark, ": ", 1)[:90]
            found[text] = found.get(text, 0) + 1
    if not found:
        raise NotMeasured("no statement of the worker is in the server's log, though it asks every few seconds")
    return found
