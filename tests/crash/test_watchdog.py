"""The watchdog and what it watches as real processes, on a real Postgres: each silence is told, once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.fixtures.process import Process, eventually

QUICK = {
    "CONNECT_URL": "",
    "ROWCALL_HEALTH_PORT": "0",
    "ROWCALL_AUTO_ACTIVATE": "false",
    "ROWCALL_AGENTS": "tests.agents.silent",
    "ROWCALL_OUTBOX_SLOT": "",
    "ROWCALL_POLL_SECONDS": "0.2",
    "ROWCALL_HEARTBEAT_SECONDS": "0.5",
    "ROWCALL_WATCHDOG_SECONDS": "0.2",
    "ROWCALL_WATCHDOG_GRACE_SECONDS": "2",
    "ROWCALL_WATCHDOG_OUTPUT_SECONDS": "1",
    "ROWCALL_WATCHDOG_STUCK_SECONDS": "8",
    "ROWCALL_WATCHDOG_MISSES": "4",
}


class Scene:
    """Processes on one database."""

    def __init__(self, database: str, folder: Path) -> None:
        self.database = database
        self._folder = folder
        self._started: list[Process] = []

    def start(self, *command: str, **environment: str) -> Process:
        log = self._folder / f"{len(self._started)}-{command[0]}.log"
        given = os.environ | QUICK | {"DATABASE_URL": self.database} | environment
        self._started.append(Process([sys.executable, "-m", "consumer.cli", *command], given, log))
        return self._started[-1]

    def watch(self, **environment: str) -> Process:
        watchdog = self.start("watchdog", "run", **environment)
        eventually("a round", lambda: self.rows("SELECT FROM rowcall.watch_states WHERE subject LIKE 'observer:%%'"))
        return watchdog

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.database, row_factory=dict_row) as session:
            return session.execute(query.encode(), parameters).fetchall()

    def flip(self, subject: str, state: str) -> dict[str, Any]:
        """Wait for the first flip of a subject, by the beginning of its name, to a state."""
        query = "SELECT * FROM rowcall.watch_flips WHERE starts_with(subject, %s) AND new_state = %s ORDER BY id"
        return eventually(f"{subject} {state}", lambda: self.rows(query, subject, state))[0]

    def do(self, statement: str) -> None:
        with psycopg.connect(self.database) as session:
            session.execute(statement.encode())

    def close(self) -> None:
        for process in self._started:
            process.kill()


@pytest.fixture
def scene(database: str, tmp_path: Path) -> Iterator[Scene]:
    opened = Scene(database, tmp_path)
    opened.do("INSERT INTO rowcall.agents (name, version) VALUES ('quiet', 1), ('hung', 1)")
    yield opened
    opened.close()


def test_cron_that_was_never_scheduled_is_told_and_so_is_its_end(scene: Scene) -> None:
    watchdog = scene.watch()
    flip = scene.flip("schedule:every-second", "overdue")
    assert "start `rowcall schedule run`" in flip["message"] and flip["at"] >= flip["due_at"]
    scene.start("schedule", "run")
    scene.flip("schedule:every-second", "up")
    scene.flip("process:watchdog", "up")
    assert json.loads(watchdog.get("/healthz"))["checks"]["watchdog"]["ok"]
    assert watchdog.stop() == 0
    told = [(record["subject"], record["state"]) for record in watchdog.records("watch_flip") if record["told"]]
    assert told.count(("schedule:every-second", "overdue")) == 1 and ("schedule:every-second", "up") in told


def test_connect_that_is_away_is_a_failed_observer(scene: Scene) -> None:
    scene.watch(CONNECT_URL="http://127.0.0.1:1", ROWCALL_WATCHDOG_MISSES="1")
    assert "observer failed" in scene.flip("observer:connectors", "failed")["message"]


def test_run_that_ended_without_output_is_told(scene: Scene) -> None:
    worker = scene.start("execute")
    scene.watch()
    scene.do("INSERT INTO rowcall.agent_jobs (job_type) VALUES ('quiet')")
    flip = scene.flip("output:quiet", "no_output")
    (run,) = scene.rows("SELECT * FROM rowcall.agent_jobs")
    assert (run["status"], flip["run_id"]) == ("SUCCEEDED", run["id"])
    assert worker.stop() == 0
    assert not scene.rows("SELECT FROM rowcall.watch_flips WHERE subject LIKE 'process:executor%%'"
                          " AND new_state = 'overdue'")  # fmt: skip


def test_worker_fleet_that_is_gone_is_told(scene: Scene) -> None:
    workers = [scene.start("execute"), scene.start("execute")]
    scene.watch()
    eventually("workers are up", lambda: len(scene.rows(
        "SELECT FROM rowcall.watch_states WHERE subject LIKE 'process:executor%%' AND state = 'up'")) == 2)  # fmt: skip
    for worker in workers:
        worker.kill()
    scene.do("INSERT INTO rowcall.agent_jobs (job_type) VALUES ('quiet')")
    flip = scene.flip("fleet:executor", "overdue")
    assert "runs of quiet wait and no worker beats any more" in flip["message"]
    assert scene.flip("process:executor", "overdue")["last_beat_at"]
    scene.start("execute")
    scene.flip("fleet:executor", "up")
    assert (
        len(scene.rows("SELECT FROM rowcall.watch_flips WHERE subject = 'fleet:executor' AND new_state = 'overdue'"))
        == 1
    )


def test_frozen_process_is_overdue_and_one_whose_loop_hangs_is_stuck(scene: Scene) -> None:
    scheduler, _ = scene.start("schedule", "run"), scene.start("execute")
    scene.watch()
    scene.flip("process:scheduler", "up")
    os.kill(scheduler.popen.pid, signal.SIGSTOP)
    assert scene.flip("process:scheduler", "overdue")["last_beat_at"]
    os.kill(scheduler.popen.pid, signal.SIGCONT)
    eventually("it is up again", lambda: scene.rows(
        "SELECT FROM rowcall.watch_flips WHERE subject LIKE 'process:scheduler%%'"
        " AND old_state = 'overdue' AND new_state = 'up'"))  # fmt: skip
    scene.do("INSERT INTO rowcall.agent_jobs (job_type, payload) VALUES ('hung', '{\"hang\": 20}')")
    flip = scene.flip("process:executor", "stuck")
    assert "its loop has not turned" in flip["message"]


def test_watchdog_that_was_away_tells_one_gap_and_no_storm(scene: Scene) -> None:
    away = {"ROWCALL_WATCHDOG_GAP_SECONDS": "3"}
    worker = scene.start("execute")
    watchdog = scene.watch(**away)
    scene.flip("process:executor", "up")
    watchdog.kill()
    os.kill(worker.popen.pid, signal.SIGSTOP)
    before = scene.rows("SELECT now() AS at")[0]["at"]
    eventually("the pause", lambda: scene.rows("SELECT now() - %s > interval '6 s' AS over", before)[0]["over"])
    os.kill(worker.popen.pid, signal.SIGCONT)
    scene.start("watchdog", "run", **away)
    gap = scene.flip("watchdog:rounds", "gap")
    assert (gap["at"] - gap["due_at"]).total_seconds() > 6
    eventually("a quiet time is over", lambda: scene.rows(
        "SELECT FROM rowcall.watch_rounds WHERE quiet_until < now() - interval '1 s'"))  # fmt: skip
    told = scene.rows(
        "SELECT subject, new_state FROM rowcall.watch_flips WHERE id >= %s AND new_state <> 'up'", gap["id"]
    )
    assert [row["new_state"] for row in told if row["subject"].startswith(("process", "watchdog"))] == ["gap"]
