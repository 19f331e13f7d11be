"""The stage of the demo: a fresh local stack, its tables, its connectors, and workers as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from consumer import activate, connect, db, migrate
from consumer.agents import AGENTS
from consumer.errors import Outage
from consumer.kafka import Brokers
from consumer.operate.capture import await_capture
from consumer.settings import Settings, load
from debezium import stack as local_stack

# A lease short enough that the audience sees it run out.
LEASE_SECONDS = 6
_MONITOR = """\
# What orders cost, from the row changes that Debezium sends. `rowcall drift check` shows what else may stand here.
[monitor.order-amounts]
topic = "cdc.public.orders"
value = "amount"
operations = ["c"]
start = "earliest"
"""
_CONNECTORS_READY_SECONDS = 60
_STOP_SECONDS = 20


@dataclass
class Scene:
    """What the acts work with."""

    stack: local_stack.StackInfo
    settings: Settings
    environment: Mapping[str, str]
    session: db.SyncSession
    logs: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    detector: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one `rowcall worker`."""
        worker = self._start(f"worker-{len(self.workers) + 1}", "worker")
        self.workers.append(worker)
        return worker

    def start_detector(self) -> None:
        """Start `rowcall drift run` over the small orders."""
        self.detector = self._start("drift", "drift", "run")

    def _start(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{log}.log").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "consumer.cli", *command],
                env=dict(self.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL: the worker has no chance to say good-bye."""
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def check_workers(self) -> None:
        """Raise when a worker or the detector ended by itself.

        Raises:
            Outage: with the last lines of its log.
        """
        for name, process in self._processes().items():
            if process.poll() not in (None, -signal.SIGKILL):
                tail = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-5:]
                raise Outage(f"{name} ended: " + " | ".join(tail), dependency=name)

    def close(self) -> None:
        """Stop the workers and the detector, then the stack."""
        processes = self._processes().values()
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.session.close()
        local_stack.stop(self.stack.directory)

    def _processes(self) -> dict[str, subprocess.Popen[bytes]]:
        found = {f"worker-{number}": worker for number, worker in enumerate(self.workers, 1)}
        return found if self.detector is None else {**found, "drift": self.detector}


def open_scene(directory: Path) -> Scene:
    """Start everything fresh in `directory`; an earlier demo's data there is thrown away."""
    if directory.exists():
        local_stack.stop(directory, remove=True)
    stack = local_stack.start(directory, model=True, attached=True)
    environment = {
        **os.environ,
        **stack.environment(),
        "ROWCALL_LEASE_SECONDS": str(LEASE_SECONDS),
        "ROWCALL_BEAT_SECONDS": "2",
        "ROWCALL_POLL_SECONDS": "1",
        # At the end nothing is worth waiting for: what is under way goes back to the queue of a stack that stops.
        "ROWCALL_DRAIN_SECONDS": "1",
        "ROWCALL_HEALTH_PORT": "0",
        # One slot a core: the embedded model computes on the same two cores as everything else.
        "ROWCALL_RUNS_IN_FLIGHT": "2",
        # A busy machine takes minutes for an answer; a tiny model that finds no end is cut off, and a person decides.
        "MODEL_TIMEOUT_SECONDS": "300",
        "MODEL_MAX_TOKENS": "300",
        "ROWCALL_DRIFT": str(directory / "drift.toml"),
        # A tiny model plans here: whatever it would do about a critical drift waits for a person.
        "ROWCALL_LEAST_TIERS": "drift-remediate=high",
    }
    settings = load({name: text for name, text in environment.items() if not name.endswith("_FILE")})
    session = db.connect(settings.database_url.get_secret_value(), name="demo")
    logs = directory / "demo-logs"
    logs.mkdir(parents=True, exist_ok=True)
    (directory / "drift.toml").write_text(_MONITOR)
    scene = Scene(stack, settings, environment, session, logs)
    try:
        _prepare(scene)
    except BaseException:
        scene.close()
        raise
    return scene


def _prepare(scene: Scene) -> None:
    migrate.migrate(scene.session)
    tables = db.queries("example_tables")
    with db.transaction(scene.session):
        scene.session.execute(tables["create"])
        scene.session.execute(tables["seed"])
    client = connect.ConnectClient(scene.settings.connect_url)
    folder = Path(str(resources.files("debezium").joinpath("connectors")))
    values = {**scene.environment, **connect.database_variables(scene.settings.database_url.get_secret_value())}
    files = connect.load(folder, values)
    connect.apply(client, files)
    await_capture(scene.session, client, files, seconds=_CONNECTORS_READY_SECONDS)
    activate.activate(scene.session, Brokers(scene.settings), AGENTS)
