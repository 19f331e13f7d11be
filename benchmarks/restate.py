"""runs_over_restate: runs of three named, durable steps with trivial bodies a second, against Restate 1.7.

Restate at its best here: one partition, its service under granian with uvloop, a client process with aiohttp and calls
in flight through the ingress. Each round has a fresh server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import httpx

from benchmarks import restate_server
from benchmarks.duel import OURS, Side, Way, duel, expect, rate
from benchmarks.executor import STEPS
from benchmarks.figures import Measured, NotMeasured
from benchmarks.services import Child, Services, python, running, until
from debezium import ports

THEIRS: Final = (Way(1, 64), Way(2, 64), Way(1, 128))


def measure(services: Services) -> Measured:
    """Runs a second by both."""
    runs, calls, rounds = (2000, 1000, 2) if services.quick else (8000, 4000, 5)
    restate_server.binary()
    log = Path(services.directory) / "restate.log"
    result, raw = duel(
        Side("ours", OURS, runs, lambda way, count: rate(services, STEPS, way, count, log)),
        Side("restate", THEIRS, calls, lambda way, count: theirs(services, way, count, log)),
        rounds,
    )
    raw["restate"] = {"version": restate_server.LOCK["version"], "default-num-partitions": 1}
    return Measured({"runs_over_restate": result.ratio}, raw)


def theirs(services: Services, way: Way, calls: int, log: Path) -> float:
    """Calls a second from the word to begin to the last answer."""
    port = ports.choose(taken=frozenset())
    address = f"http://127.0.0.1:{port}"
    with restate_server.server(Path(services.directory)) as server, running([_served(port, way.processes, log)]):
        until(lambda: _registered(server.admin, address), "Restate knows the service", seconds=60)
        client = Child(python("benchmarks.restate_peer", server.ingress, str(way.flight), str(calls)), {}, log)
        with running([client]):
            expect(client, "ready")
            began = time.perf_counter()
            client.say("go")
            expect(client, f"done {calls}")
            seconds = time.perf_counter() - began
    return calls / seconds


def _served(port: int, processes: int, log: Path) -> Child:
    options = [
        "--interface",
        "asgi",
        "--http",
        "2",
        "--loop",
        "uvloop",
        "--host",
        "127.0.0.1",
        "--log-level",
        "warning",
    ]
    return Child(
        [*python("granian", *options), "--port", str(port), "--workers", str(processes), "benchmarks.restate_peer:app"],
        {},
        log,
    )


def _registered(admin: str, address: str) -> bool:
    answer = httpx.post(f"{admin}/deployments", json={"uri": address}, timeout=10)
    if answer.status_code == 400:
        raise NotMeasured(f"Restate refuses the service: {answer.text[:300]}")
    return answer.is_success
