"""The detectors' process killed at chosen points: each level of an episode is told, under one ID.

It is held at a point by locks of other sessions, as a busy database would hold it, and then killed.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psycopg
from confluent_kafka import Producer

from debezium.stack import StackInfo
from producers.emit import identity
from tests.acceptance.test_drift import ask, told
from tests.fixtures.process import Process, eventually

NORMAL, RAMP = 400, 1000
WARNED, ALARMED = 206, 230  # values of the ramp after which there is a warning, and after which it is critical too
TAKE = """
INSERT INTO rowcall.drift_events (id, topic, schema, key, payload, occurred_at, event_type)
VALUES (%s, '', '', '', '', rowcall.now(), '')
"""


def values() -> list[float]:
    """A normal time, a slow rise that is a warning before it is critical, and normal again."""
    chance = random.Random(1)
    middles = [100.0] * NORMAL + [100 + 0.005 * step for step in range(RAMP)] + [100.0] * 800
    return [middle + chance.gauss(0, 1) for middle in middles]


@dataclass
class Watched:
    """One monitor on a topic of its own."""

    stack: StackInfo
    database: str
    folder: Path
    mark: str

    def __post_init__(self) -> None:
        self.warning, self.critical = f"w-{self.mark}", f"c-{self.mark}"
        file = self.folder / "drift.toml"
        file.write_text(
            f"[topics]\nwarning_topic = '{self.warning}'\ncritical_topic = '{self.critical}'\n"
            f"backlog_topic = 'b-{self.mark}'\n[monitor.amount]\ntopic = 'rows-{self.mark}'\nvalue = 'amount'\n"
            "segment = 'shop'\nlearn = 200\nstart = 'earliest'\n"
        )
        self.environment = dict(os.environ) | self.stack.environment() | {
            "DATABASE_URL": self.database, "ROWCALL_DRIFT": str(file), "ROWCALL_HEALTH_PORT": "0",
        }  # fmt: skip
        self.producer = Producer({"bootstrap.servers": self.stack.kafka_bootstrap_servers})
        self.started: list[Process] = []

    def start(self) -> Process:
        log = self.folder / f"drift-{len(self.started)}.log"
        self.started.append(Process([sys.executable, "-m", "consumer.cli", "drift", "run"], self.environment, log))
        return self.started[-1]

    def send(self, amounts: Sequence[float]) -> None:
        for amount in amounts:
            body = orjson.dumps({"amount": amount, "shop": "a"})
            self.producer.produce(f"rows-{self.mark}", body, "a", headers={"id": str(uuid.uuid4())})
        assert self.producer.flush(30) == 0

    def told(self, level: str) -> list[tuple[str, str]]:
        """(ID without its namespace, turn) of each event on the topic of that level."""
        topic = self.warning if level == "warning" else self.critical
        return [(number.rpartition(":")[2], data["turn"]) for number, data in told(self.stack, topic)]

    def stored(self) -> list[tuple[str, bool]]:
        """(ID, whether it is marked as sent) of each event that has been decided."""
        rows = ask(self.database, "SELECT id, sent_at IS NOT NULL AS sent FROM rowcall.drift_events ORDER BY number")
        return [(str(row["id"]), row["sent"]) for row in rows]


def number_of(level: str, turn: str = "raised") -> str:
    """The ID of that event of the first episode."""
    return str(identity("drift", "amount", "a", 1, level, turn))


class Holder:
    """A session that somebody waits for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = psycopg.connect(url)
        self.pid = self.session.info.backend_pid

    def waiting(self, statement: str) -> int:
        """Wait until a session waits for this one with such a statement; its process ID on the server."""
        query = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)) AND query LIKE %s"
        what = f"{statement} waits"
        return int(eventually(what, lambda: ask(self.url, query, self.pid, f"%{statement}%"), 30)[0]["pid"])

    def close(self) -> None:
        self.session.close()


@contextmanager
def before_commit(url: str, number: str) -> Iterator[Holder]:
    """The transaction that decides the event of this ID waits, with everything written."""
    holder = Holder(url)
    try:
        holder.session.execute(TAKE, (number,))
        yield holder
    finally:
        holder.close()


@contextmanager
def after_commit(url: str, number: str, mode: str, statement: str, begin: Callable[[], object]) -> Iterator[Holder]:
    """That transaction, which `begin` leads to, has ended; its session waits with a statement that `mode` forbids."""
    with before_commit(url, number) as first, ThreadPoolExecutor(1) as pool:
        begin()
        deciding = first.waiting("INSERT INTO rowcall.drift_events")
        second = Holder(url)
        try:
            # It stands in line behind the transaction, and so comes before whatever follows that.
            taken = pool.submit(second.session.execute, f"LOCK TABLE rowcall.drift_events IN {mode} MODE".encode())
            eventually("the lock is asked for", lambda: deciding in _blockers(url, second.pid), 30)
            first.session.rollback()
            taken.result(30)
            second.waiting(statement)
            yield second
        finally:
            first.close()
            second.close()


def _blockers(url: str, pid: int) -> Any:
    return ask(url, "SELECT pg_blocking_pids(%s) AS pids", pid)[0]["pids"]


def kill(holder: Holder, process: Process, statement: str) -> None:
    """End the process; its session on the server ends with it and does not go on with its statement."""
    pid = holder.waiting(statement)
    process.kill()
    ask(holder.url, "SELECT pg_terminate_backend(%s, 10000)", pid)


def test_a_process_killed_before_between_and_after_sending_tells_each_level_under_one_id(
    stack: StackInfo, database: str, tmp_path: Path
) -> None:
    watched, amounts = Watched(stack, database, tmp_path, uuid.uuid4().hex), values()
    warning, critical = number_of("warning"), number_of("critical")
    try:
        # Saved, and not sent.
        process = watched.start()
        unsent = "WHERE sent_at IS NULL"
        with after_commit(
            database, warning, "ACCESS EXCLUSIVE", unsent, lambda: watched.send(amounts[: NORMAL + WARNED])
        ) as holder:
            kill(holder, process, unsent)
        assert (watched.stored(), watched.told("warning")) == ([(warning, False)], [])

        # The warning is sent, the critical level decided and not saved.
        process = watched.start()
        eventually("the warning", lambda: watched.stored() == [(warning, True)])
        with before_commit(database, critical) as holder:
            watched.send(amounts[NORMAL + WARNED : NORMAL + ALARMED])
            kill(holder, process, "INSERT INTO rowcall.drift_events")
        assert (watched.stored(), watched.told("critical")) == ([(warning, True)], [])

        # The brokers have it, and it is not marked as sent.
        with after_commit(database, critical, "SHARE", "SET sent_at", watched.start) as holder:
            assert watched.told("critical") == [(critical, "raised")]
            kill(holder, watched.started[-1], "SET sent_at")
        assert watched.stored() == [(warning, True), (critical, False)]

        process = watched.start()
        eventually("it is sent again", lambda: watched.stored() == [(warning, True), (critical, True)])
        watched.send(amounts[NORMAL + RAMP :])
        eventually("both have recovered", lambda: [sent for _, sent in watched.stored()] == [True] * 4)
        assert watched.told("warning") == [(warning, "raised"), (number_of("warning", "recovered"), "recovered")]
        assert watched.told("critical") == [
            (critical, "raised"), (critical, "raised"), (number_of("critical", "recovered"), "recovered"),
        ]  # fmt: skip
        assert process.stop() == 0
    finally:
        for process in watched.started:
            process.kill()
