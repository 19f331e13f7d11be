"""Brings services up: downloads first, then every service as soon as those it needs are ready.

Called by `debezium.stack`, which holds the stack's lock and owns the state file. Each process is written to the state
file before it is waited for. A service that finds its port taken is started again on another one; any other early end
is an error that shows its log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from debezium import ports, processes
from debezium.errors import ServiceFailed, StackError
from debezium.processes import Identity
from debezium.reporting import Reporter
from debezium.service import Scene, Service
from debezium.state import Entry, State

ATTEMPTS = 5
POLL_S = 0.05
PORT_WAIT_S = 10.0
PORT_TAKEN = ("Address already in use", "Address in use", "BindException", "couldn't bind", "already bound")
# Postgres refuses to start while processes of a killed predecessor still end.
NOT_GONE_YET = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')


class Aborted(StackError):
    """Another service failed, or the launcher was interrupted; this one gave up waiting."""


class Launcher:
    """Starts services of one stack."""

    def __init__(self, scene: Scene, state: State, reporter: Reporter) -> None:
        self._scene = scene
        self._state = state
        self._reporter = reporter
        self._abort = threading.Event()
        self._choosing = threading.Lock()

    def bring_up(self, services: Sequence[Service]) -> None:
        """Start the services, in parallel where one does not need another; return when all are ready.

        Raises:
            CacheError, MissingPackage: something needed cannot be had.
            ServiceFailed: a service ended or was not ready in time.
        """
        for service in services:
            service.fetch(self._scene)
        done = {service.name: threading.Event() for service in services}
        with ThreadPoolExecutor(max(1, len(services))) as pool:
            running = [pool.submit(self._when_needed_are_ready, service, done) for service in services]
            try:
                finished, _ = wait(running, return_when=FIRST_EXCEPTION)
                _raise_first(finished)
            finally:
                # On success nobody listens any more; on a failure or Ctrl-C the other threads give up.
                self._abort.set()

    def _when_needed_are_ready(self, service: Service, done: dict[str, threading.Event]) -> None:
        for name in service.needs:
            while name in done and not done[name].wait(POLL_S):
                self._check_abort(service)
        self.start(service, keep_ports=False)
        done[service.name].set()

    def start(self, service: Service, keep_ports: bool) -> None:
        """Start one service and wait until it is ready; `keep_ports` refuses other ports than last time.

        Raises:
            ServiceFailed: it ended or was not ready in time.
            StackError: its port is taken and must be kept.
        """
        began = time.monotonic()
        log = self._scene.paths.log(service.name)
        refused: frozenset[int] = frozenset()
        for attempt in range(ATTEMPTS):
            self._choose_ports(service, keep_ports, refused)
            service.prepare(self._scene)
            length = log.stat().st_size if log.exists() else 0
            identity = processes.start(service.launch(self._scene), self._scene.paths.directory, log)
            self._state.record(service.name, Entry(identity, self._scene.ports[service.name]))
            if self._await_ready(service, identity):
                self._reporter.line(f"{service.name} ready in {time.monotonic() - began:.1f} s")
                return
            with log.open("rb") as file:
                file.seek(length)
                said = file.read().decode(errors="replace")
            if any(text in said for text in PORT_TAKEN) and not keep_ports:
                refused |= frozenset(self._scene.ports[service.name].values())
            elif any(text in said for text in NOT_GONE_YET):
                time.sleep(1.0 + attempt)
            else:
                break
        raise ServiceFailed(service.name, "ended while it started", log, processes.tail(log))

    def _choose_ports(self, service: Service, keep: bool, refused: frozenset[int]) -> None:
        before = self._state.services.get(service.name, Entry(None, {})).ports
        with self._choosing:
            others = {
                port for name, held in self._scene.ports.items() if name != service.name for port in held.values()
            }
            chosen: dict[str, int] = {}
            for name in service.port_names:
                if keep and name in before:
                    _await_free(service.name, before[name])
                    chosen[name] = before[name]
                else:
                    taken = refused | others | frozenset(chosen.values())
                    chosen[name] = ports.choose(before.get(name), taken)
            self._scene.ports[service.name] = chosen

    def _await_ready(self, service: Service, identity: Identity) -> bool:
        """True when it is ready, False when it ended; raises when it takes too long."""
        limit = self._scene.settings.ready_timeout_s
        deadline = time.monotonic() + limit
        while identity.alive():
            if service.ready(self._scene) and identity.alive():
                return True
            self._check_abort(service)
            if time.monotonic() > deadline:
                log = self._scene.paths.log(service.name)
                raise ServiceFailed(service.name, f"not ready after {limit:.0f} s", log, processes.tail(log))
            time.sleep(POLL_S)
        return False

    def _check_abort(self, service: Service) -> None:
        if self._abort.is_set():
            raise Aborted(f"{service.name} was not waited for")


def _raise_first(finished: set[Future[None]]) -> None:
    problems = [future.exception() for future in finished]
    for problem in sorted((p for p in problems if p is not None), key=lambda p: isinstance(p, Aborted)):
        raise problem


def _await_free(service: str, port: int) -> None:
    deadline = time.monotonic() + PORT_WAIT_S
    while not ports.bindable(port):
        if time.monotonic() > deadline:
            raise StackError(
                f"port {port} of {service} is taken by another program and the rest of the stack knows it there; "
                "stop that program, or stop the whole stack and start it again"
            )
        time.sleep(POLL_S)
