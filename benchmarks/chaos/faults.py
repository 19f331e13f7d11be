"""The faults, one function each, and what is written down about every one that struck."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.chaos.scene import LEASE_SECONDS, Scene
from benchmarks.figures import significant
from debezium import stack as local_stack

_FROZEN_SECONDS: Final = LEASE_SECONDS + 3.0
"""Past the lease and past the reclaim that follows it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One that struck; times in seconds, `at` since the load began.

    `recovered` is the time from its end until a row that was committed after it had its effect at the receiver; None
    where that did not happen in time.
    """

    kind: str
    at: float
    in_flight: int
    lasted: float
    recovered: float | None
    note: str = ""

    def raw(self) -> dict[str, Any]:
        """For `_context`."""
        return {
            "kind": self.kind,
            "at": significant(self.at),
            "in_flight": self.in_flight,
            "lasted_s": significant(self.lasted, 3),
            "recovered_s": None if self.recovered is None else significant(self.recovered, 3),
            "note": self.note,
        }


def kill_worker(scene: Scene) -> str:
    """SIGKILL; the service manager starts it again."""
    return f"SIGKILL of worker {scene.workers.kill()}"


def freeze_worker(scene: Scene) -> str:
    """SIGSTOP until others have taken its runs over, then SIGCONT: it wakes up believing that they are its own."""
    pid = scene.workers.freeze()
    time.sleep(_FROZEN_SECONDS)
    scene.workers.thaw(pid)
    return f"worker {pid} stopped for {_FROZEN_SECONDS:g} s with a lease of {LEASE_SECONDS:g} s"


def restart_postgres(scene: Scene) -> str:
    """Every second time at once, without a checkpoint: the server then recovers from its log."""
    at_once = random.random() < 0.5
    if at_once:
        local_stack.kill(scene.stack.directory, "postgres", signal.SIGQUIT)
    local_stack.restart(scene.stack.directory, "postgres")
    return "immediate shutdown and recovery" if at_once else "fast shutdown"


def terminate_backends(scene: Scene) -> str:
    """pg_terminate_backend of every session of the database: workers', the load's and Debezium's."""
    with scene.session() as session:
        row = session.execute(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) AS n FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    return f"{row['n'] if row else 0} sessions ended"


def restart_broker(scene: Scene) -> str:
    """Every second time by SIGKILL."""
    killed = random.random() < 0.5
    if killed:
        local_stack.kill(scene.stack.directory, "kafka")
    local_stack.restart(scene.stack.directory, "kafka")
    return "SIGKILL and start" if killed else "SIGTERM and start"


def kill_connect(scene: Scene) -> str:
    """SIGKILL of Kafka Connect with both connectors, and a start."""
    local_stack.kill(scene.stack.directory, "connect")
    local_stack.restart(scene.stack.directory, "connect")
    return "SIGKILL and start"


FAULTS: Final[Mapping[str, Callable[[Scene], str]]] = {
    "worker_kill": kill_worker,
    "worker_freeze": freeze_worker,
    "postgres_restart": restart_postgres,
    "backends_terminated": terminate_backends,
    "broker_restart": restart_broker,
    "connect_kill": kill_connect,
}


def rota(rounds: int) -> list[str]:
    """Every fault once a round, in another order each round."""
    order: list[str] = []
    for _ in range(rounds):
        names = list(FAULTS)
        random.shuffle(names)
        order += names
    return order
