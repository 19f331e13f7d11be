"""The commands as real processes: what cannot go on says so in one line, what is told to stop drains."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from consumer import db, migrate
from debezium import ports

AGENTS = """
import asyncio, os, time
from pydantic import BaseModel
from consumer.agents.door import Agent

class Answer(BaseModel):
    n: int

slow = Agent(name="slow", version=1, answer=Answer)
stuck = Agent(name="stuck", version=1, answer=Answer)
AGENTS = [slow, stuck]

@slow.run
async def wait(ctx, event):
    await asyncio.sleep(event.data["seconds"])
    return Answer(n=1)

@stuck.run
async def block(ctx, event):
    time.sleep(event.data["seconds"])
    return Answer(n=1)
"""
NOWHERE = {
    "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "SCHEMA_REGISTRY_URL": "http://127.0.0.1:1",
    "CONNECT_URL": "http://127.0.0.1:1",
    "MODEL_BASE_URL": "http://127.0.0.1:1/v1",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A clean environment with agents of its own, and every neighbour out of reach."""
    (tmp_path / "cli_agents.py").write_text(AGENTS)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    own = {"PYTHONPATH": str(tmp_path), "ROWCALL_AGENTS": "cli_agents", "ROWCALL_HEALTH_PORT": "0", "USER": "ada"}
    return kept | NOWHERE | own


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "consumer.cli", *arguments]


def run(environment: dict[str, str], *arguments: str, timeout: float = 60, **more: str) -> Any:
    return subprocess.run(
        command(*arguments), env=environment | more, capture_output=True, text=True, timeout=timeout, check=False
    )


class Process:
    """A running `rowcall`; its log lines as they come."""

    def __init__(self, environment: dict[str, str], log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self._popen = subprocess.Popen(command(*arguments), env=environment, stdout=file, stderr=file)

    def records(self) -> list[dict[str, Any]]:
        """The structured records so far."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for(self, action: str, seconds: float = 30) -> dict[str, Any]:
        """The first record with this action."""
        found = eventually(lambda: [item for item in self.records() if item["action"] == action], seconds)
        return dict(found[0])

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON body of the health server."""
        port = self.wait_for("health")["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self._popen.send_signal(number)

    def exit_code(self, seconds: float = 30) -> int:
        """Wait for its end."""
        return self._popen.wait(seconds)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()


@contextmanager
def process(environment: dict[str, str], *arguments: str) -> Iterator[Process]:
    started = Process(environment, Path(environment["PYTHONPATH"]) / f"{arguments[0]}.log", *arguments)
    try:
        yield started
    finally:
        started.end()


def eventually(look: Callable[[], Any], seconds: float = 30) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def one_line(done: Any) -> str:
    """What the command said on stderr, besides log records: exactly one line."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("rowcall: ")
    assert "Traceback" not in done.stderr
    return str(lines[0])


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


@pytest.mark.parametrize("name", ["worker", "intake", "execute"])
def test_a_worker_on_an_empty_database_says_what_to_run(
    environment: dict[str, str], empty_database: str, name: str
) -> None:
    done = run(environment, name, DATABASE_URL=empty_database)
    assert done.returncode == 78
    assert "rowcall migrate" in one_line(done)


def test_a_worker_of_an_older_version_refuses_a_newer_schema(environment: dict[str, str], database: str) -> None:
    with db.connect(database, name="test") as session:
        session.execute(
            "INSERT INTO rowcall.schema_migrations (version, name, sha256) VALUES (9999, 'from_tomorrow', 'x')"
        )
    for name in ("worker", "migrate"):
        done = run(environment, name, DATABASE_URL=database)
        assert done.returncode == 78
        assert "9999" in one_line(done)


def test_many_migrations_at_once_make_one_schema(environment: dict[str, str], empty_database: str) -> None:
    env = environment | {"DATABASE_URL": empty_database}
    running = [
        subprocess.Popen(command("migrate"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [item.communicate(timeout=60) for item in running]
    assert [item.returncode for item in running] == [0, 0, 0], said
    count = len(migrate.migrations())
    assert "".join(out for out, _ in said).count("applied") == count
    with db.connect(empty_database, name="test") as session:
        migrate.check(session)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (lambda url: with_login(url, urlsplit(url).username or "postgres", "wrong-password-1"), "password"),
        (lambda url: "postgresql://rowcall:wrong-password-1@no-such-host.invalid/rowcall", "resolve"),
        (lambda url: f"{url}_not_there", "does not exist"),
    ],
    ids=["password", "dns", "database"],
)
def test_a_database_that_refuses_ends_the_worker_at_once(
    environment: dict[str, str], database: str, url: Callable[[str], str], said: str
) -> None:
    done = run(environment, "worker", DATABASE_URL=url(database))
    assert done.returncode == 78
    assert said in one_line(done)
    assert "wrong-password-1" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", ["worker", "agents"])
def test_agents_that_do_not_import_are_named(environment: dict[str, str], database: str, name: str) -> None:
    (Path(environment["PYTHONPATH"]) / "broken_agents.py").write_text("import no_such_package\n")
    arguments = [name, *(["list"] if name == "agents" else [])]
    done = run(environment, *arguments, DATABASE_URL=database, ROWCALL_AGENTS="broken_agents")
    assert done.returncode == 78
    line = one_line(done)
    assert "broken_agents" in line and "no_such_package" in line


def test_a_taken_health_port_is_named(environment: dict[str, str], database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(environment, "worker", DATABASE_URL=database, ROWCALL_HEALTH_PORT=str(port))
    assert done.returncode == 78
    assert str(port) in one_line(done) and "ROWCALL_HEALTH_PORT" in one_line(done)


def test_a_kafka_option_that_is_none_ends_the_worker(environment: dict[str, str], database: str) -> None:
    done = run(environment, "worker", DATABASE_URL=database, KAFKA_OPTIONS="no.such.option=1")
    assert done.returncode == 78
    assert "KAFKA_OPTIONS" in one_line(done)


def test_a_command_without_a_database_says_so_and_ends_with_69(environment: dict[str, str]) -> None:
    url = f"postgresql://rowcall@127.0.0.1:{ports.choose()}/rowcall"
    done = run(environment, "jobs", "list", DATABASE_URL=url)
    assert done.returncode == 69
    assert "does not answer" in one_line(done)


def test_a_worker_waits_for_a_database_that_is_away(environment: dict[str, str]) -> None:
    url = f"postgresql://rowcall@127.0.0.1:{ports.choose()}/rowcall"
    with process(environment | {"DATABASE_URL": url}, "worker") as worker:
        assert "trying again" in worker.wait_for("waiting")["message"]
        assert worker.get("/healthz")[0] == 200
        code, body = worker.get("/readyz")
        assert (code, body["checks"]["process"]["ok"]) == (503, False)
        assert "does not answer" in body["checks"]["schema"]["detail"]
        eventually(lambda: len([item for item in worker.records() if item["action"] == "waiting"]) >= 2)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


@pytest.fixture
def executing(environment: dict[str, str], database: str) -> dict[str, str]:
    """An environment in which the agents are active already, so that nothing needs Kafka."""
    with db.connect(database, name="test") as session:
        session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('slow', 1), ('stuck', 1)")
    return environment | {"DATABASE_URL": database, "ROWCALL_OUTBOX_SLOT": ""}


def queue(environment: dict[str, str], agent: str, seconds: float) -> int:
    done = run(environment, "enqueue", agent, "--payload", json.dumps({"seconds": seconds}), "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["job_id"])


def job(environment: dict[str, str], job_id: int) -> dict[str, Any]:
    with db.connect(environment["DATABASE_URL"], name="test") as session:
        row = session.execute("SELECT * FROM rowcall.agent_jobs WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row


def in_state(environment: dict[str, str], job_id: int, status: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        row = job(environment, job_id)
        return row if row["status"] == status else None

    found: dict[str, Any] = eventually(look)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_lets_its_runs_finish(executing: dict[str, str], number: int) -> None:
    under_way = queue(executing, "slow", 3)
    with process(executing, "execute") as worker:
        in_state(executing, under_way, "RUNNING")
        assert worker.get("/readyz")[0] == 200
        worker.signal(number)
        worker.wait_for("stop_requested")
        code, body = worker.get("/readyz")
        assert (code, body["checks"]["process"]["detail"]) == (503, "draining")
        late = queue(executing, "slow", 0)
        assert worker.exit_code() == 0
        assert worker.records()[-1]["action"] == "stopped"
    assert job(executing, under_way)["status"] == "SUCCEEDED"
    assert job(executing, late)["status"] == "PENDING"


def test_a_run_that_outlasts_the_drain_is_given_back_without_costing_an_attempt(executing: dict[str, str]) -> None:
    long = queue(executing, "slow", 600)
    with process(executing | {"ROWCALL_DRAIN_SECONDS": "0.5"}, "execute") as worker:
        in_state(executing, long, "RUNNING")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    row = job(executing, long)
    assert (row["status"], row["attempt_count"], row["owner"]) == ("PENDING", 0, None)


def test_a_second_signal_ends_the_worker_at_once(executing: dict[str, str]) -> None:
    long = queue(executing, "slow", 600)
    with process(executing, "execute") as worker:
        in_state(executing, long, "RUNNING")
        worker.signal(signal.SIGTERM)
        worker.wait_for("stop_requested")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code(5) == 130
    assert job(executing, long)["status"] == "RUNNING"


def test_a_blocked_event_loop_is_named_with_its_place(executing: dict[str, str]) -> None:
    stuck = queue(executing, "stuck", 4)
    with process(executing, "execute") as worker:
        record = worker.wait_for("loop_blocked")
        assert "cli_agents.py" in record["stack"] and "time.sleep" in record["stack"]
        assert worker.get("/healthz")[0] == 200
        in_state(executing, stuck, "SUCCEEDED")


def test_a_run_can_be_followed_and_moved_by_commands(executing: dict[str, str]) -> None:
    job_id = queue(executing, "slow", 0)
    assert f"job {job_id}: PENDING → CANCELLED" in run(executing, "jobs", "cancel", str(job_id)).stdout
    again = run(executing, "jobs", "cancel", str(job_id))
    assert (again.returncode, again.stdout) == (1, "")
    assert "ended already" in one_line(again)
    assert "delivery 2" in run(executing, "jobs", "retry", str(job_id), "--reason", "by mistake").stdout
    with process(executing, "execute"):
        in_state(executing, job_id, "SUCCEEDED")
    shown = json.loads(run(executing, "jobs", "show", str(job_id), "--json").stdout)
    assert (shown["job"]["status"], shown["job"]["result"]) == ("SUCCEEDED", {"n": 1})
    assert [(entry["actor"], entry["action"]) for entry in shown["audit"]] == [("ada", "cancel"), ("ada", "retry")]
    assert re.search(rf"{job_id}\b.*SUCCEEDED", run(executing, "jobs", "list", "--agent", "slow").stdout)
    assert [row["id"] for row in json.loads(run(executing, "jobs", "list", "--json").stdout)] == [job_id]
    assert "no reviews" in run(executing, "reviews", "list").stdout
    assert "no dead letters" in run(executing, "dead-letters", "list").stdout
    assert "slow" in run(executing, "agents", "list").stdout


def test_enqueue_takes_its_payload_from_a_file_and_from_standard_input(executing: dict[str, str]) -> None:
    file = Path(executing["PYTHONPATH"]) / "payload.json"
    file.write_text('{"from": "file"}')
    first = run(executing, "enqueue", "slow", "--payload", f"@{file}", "--json", "--dedupe-key", "k")
    second = subprocess.run(
        command("enqueue", "slow", "--payload", "-", "--dedupe-key", "k"),
        env=executing, input='{"from": "stdin"}', capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    job_id = json.loads(first.stdout)["job_id"]
    assert f"job {job_id} (PENDING) holds this dedupe_key" in second.stdout
    unknown = run(executing, "enqueue", "slwo", "--payload", "{}")
    assert unknown.returncode == 1
    assert "known are: slow, stuck" in one_line(unknown)


def test_doctor_tells_every_fault_apart_and_fails(environment: dict[str, str], empty_database: str) -> None:
    done = run(environment, "doctor", "--json", DATABASE_URL=empty_database, CONNECT_URL="http://no-such-host.invalid")
    assert done.returncode == 1
    failed = {
        row["area"]: row for row in json.loads(done.stdout) if row["level"] == "fail" and row["area"] != "database"
    }
    assert failed["connect"]["what"] == "the host name cannot be resolved"
    assert {failed[area]["what"] for area in ("kafka", "registry", "model")} == {"it does not answer"}
    database = [row for row in json.loads(done.stdout) if row["area"] == "database" and row["level"] == "fail"]
    assert any(row["advice"] == "rowcall migrate" for row in database)
