"""The real services the benchmarks run on, fresh databases in them, and our own processes beside them.

One stack for a whole run, in a folder of its own, attached to this process: nothing is left behind however it ends.
Only Postgres is started until a benchmark needs the rest, so that idle services disturb no measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
from psycopg import sql

from benchmarks.agents import ANSWER
from benchmarks.figures import NotMeasured
from consumer import db, migrate
from debezium import ports, processes
from debezium import stack as local_stack
from debezium.paths import cache_directory
from debezium.reporting import Reporter
from debezium.service import StackSettings
from debezium.stack import StackInfo

# When a transaction was committed, by the server itself: the two ends of the latency figures.
SETTINGS: Final = StackSettings(postgres={"track_commit_timestamp": "on"})
DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")
TEMPLATE: Final = "bench_template"


class Services:
    """Starts what a benchmark asks for. `quick` shortens every measurement: for trying things, not for figures."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.directory = cache_directory() / "bench" / uuid.uuid4().hex[:12]
        self.durability: dict[str, str] = {}
        self._template: str | None = None
        self._connected = False

    def close(self) -> None:
        """Stop and remove the stack."""
        if self.directory.exists():
            local_stack.stop(self.directory, remove=True)

    def postgres(self) -> StackInfo:
        """Postgres alone, checked to be durable."""
        return self._start(("postgres",))

    def stack(self) -> StackInfo:
        """All services."""
        return self._start(local_stack.DEFAULT_SERVICES)

    def connected(self) -> StackInfo:
        """All services, the stack's own database migrated with the example tables, and both connectors streaming."""
        info = self.stack()
        if self._connected:
            return info
        with contextlib.closing(db.connect(info.database_url, name="bench")) as session:
            migrate.migrate(session)
            tables = db.queries("example_tables")
            for statement in (tables["create"], tables["seed"]):
                session.execute(statement)
            command([*rowcall("connectors", "apply")], info.environment())
            count = "SELECT count(*) AS n FROM pg_replication_slots WHERE active"
            until(lambda: session.execute(count).fetchone() == {"n": 2}, "both connectors stream", seconds=60)
        self._connected = True
        return info

    def _start(self, services: Sequence[str]) -> StackInfo:
        reporter = Reporter(quiet=True)
        info = local_stack.start(self.directory, services=services, settings=SETTINGS, attached=True, reporter=reporter)
        if not self.durability:
            self.durability = durable(info.database_url)
        return info

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """URL of a fresh database, dropped at the end; with our tables unless `migrated` is False."""
        server = self.postgres().database_url
        template = self._migrated(server) if migrated else "template1"
        name = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(with_database(server, "postgres"), autocommit=True) as session:
            _run(session, "CREATE DATABASE {} TEMPLATE {}", name, template)
            # What earlier rounds left to be written must not fall into this one.
            session.execute("CHECKPOINT")
        try:
            yield with_database(server, name)
        finally:
            with psycopg.connect(with_database(server, "postgres"), autocommit=True) as session:
                _run(session, "DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _migrated(self, server: str) -> str:
        if self._template is None:
            with psycopg.connect(with_database(server, "postgres"), autocommit=True) as session:
                _run(session, "CREATE DATABASE {}", TEMPLATE)
            with contextlib.closing(db.connect(with_database(server, TEMPLATE), name="template")) as template:
                migrate.migrate(template)
            self._template = TEMPLATE
        return self._template


def _run(session: psycopg.Connection, statement: LiteralString, *names: str) -> None:
    session.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def durable(url: str) -> dict[str, str]:
    """The settings that make a commit durable.

    Raises:
        NotMeasured: when one of them is off; a rate without them is no figure.
    """
    with psycopg.connect(url) as session:
        rows = session.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [list(DURABLE)]
        ).fetchall()
    found = {name: str(value) for name, value in rows}
    off = [name for name in DURABLE if found.get(name) != "on"]
    if off:
        raise NotMeasured(f"Postgres runs with {', '.join(off)} off")
    return found


class Child:
    """A process of ours: started, watched, and ended with its whole session."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.argv = list(argv)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **processes.import_path(), **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self.process.pid

    def check(self) -> None:
        """Raises NotMeasured with its last lines when it has ended."""
        if self.process.poll() is not None:
            shown = " ".join([Path(self.argv[0]).name, *self.argv[1:]])
            last = processes.tail(self.log, 15)
            raise NotMeasured(f"`{shown}` ended with {self.process.returncode}:\n{last}")

    def line(self) -> str:
        """Its next line on standard output; NotMeasured when it ends instead."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            self.process.wait(10)
            self.check()
        return text.strip()

    def say(self, text: str) -> None:
        """One line on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds: float = 15.0) -> None:
        """Wait for its end; SIGKILL after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def running(children: Sequence[Child]) -> Iterator[Sequence[Child]]:
    """Ends the children at the end, all at once."""
    try:
        yield children
    finally:
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            child.wait()


def python(module: str, *arguments: str) -> list[str]:
    """The command for a module of ours."""
    return [sys.executable, "-m", module, *arguments]


def rowcall(*arguments: str) -> list[str]:
    """The installed command, as an operator runs it."""
    command = Path(sys.executable).parent / "rowcall"
    if not command.exists():
        raise NotMeasured(f"{command} is not installed")
    return [str(command), *arguments]


def command(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command to its end; NotMeasured with its output when it fails."""
    done = subprocess.run(
        argv, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise NotMeasured(f"`{Path(argv[0]).name} {' '.join(argv[1:])}` failed:\n{done.stdout}{done.stderr}")


@contextmanager
def model(delay_seconds: float, directory: Path) -> Iterator[str]:
    """A scripted model endpoint in a process of its own; what MODEL_BASE_URL must be.

    It gives the answer that benchmarks.agents expect, after `delay_seconds`.
    """
    script = directory / f"model-{delay_seconds:g}.json"
    reply = {"answer": ANSWER, "delay_seconds": delay_seconds}
    script.write_text(json.dumps({"rules": [{"replies": [reply]}]}))
    child = Child(python("tests.scripted_model", "--script", str(script)), {}, directory / "model.log")
    with running([child]):
        yield f"http://127.0.0.1:{child.line().removeprefix('listening on ')}/v1"


def until(condition: Callable[[], Any], what: str, *, seconds: float, every: float = 0.05) -> Any:
    """The first true answer of `condition`.

    Raises:
        NotMeasured: naming `what`, when it does not come in time.
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise NotMeasured(f"not within {seconds:g} s: {what}")
        time.sleep(every)
    return answer


@contextmanager
def workers(
    command: str, agents: str, environment: Mapping[str, str], log: Path, *, count: int = 1
) -> Iterator[list[Child]]:
    """`rowcall <command>`, `count` processes, given when they say that they are ready.

    Args:
        command: `worker`, `intake` or `execute`.
        agents: the set of benchmarks.agents they load.
        environment: where the services are, and settings that differ from their defaults.
    """
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(ports.choose(taken=frozenset(chosen)))
    common = {
        "ROWCALL_AGENTS": "benchmarks.agents",
        "BENCH_AGENTS": agents,
        "ROWCALL_LOG_LEVEL": "WARNING",
        # Where no connector runs there is no slot to wait for; no benchmark sends anything through the outbox.
        "ROWCALL_OUTBOX_SLOT": "",
    }
    children = [
        Child(rowcall(command), {**common, **environment, "ROWCALL_HEALTH_PORT": str(port)}, log) for port in chosen
    ]
    with running(children):
        for child, port in zip(children, chosen, strict=True):
            _await_ready(child, port, f"rowcall {command}")
        yield children


def _await_ready(child: Child, port: int, what: str) -> None:
    said = "nothing"

    def ready() -> bool:
        nonlocal said
        child.check()
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5)
        except httpx.TransportError:
            return False
        said = answer.text
        return answer.is_success

    try:
        until(ready, f"{what} is ready", seconds=60)
    except NotMeasured as error:
        raise NotMeasured(f"{error}; /readyz says {said}") from error
