"""The local stack as the command line, the tests, the demo and the benchmarks use it: start, status, stop, and faults.

`start` composes `launch` (which runs the services) under the stack's lock and a watchdog; everything else reads the
state file. Promises: several stacks run side by side in different directories; nothing is left running when a start
fails or an attached launcher dies; a stopped stack started again has its data and, if still free, its ports.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from debezium import accounts, processes
from debezium.cache import Cache
from debezium.connect import Connect
from debezium.errors import NotRunning, UnknownService
from debezium.guard import Guard
from debezium.kafka import Kafka
from debezium.launch import Launcher
from debezium.model import MODEL_API_KEY, MODEL_NAME, Model
from debezium.paths import StackPaths, cache_directory
from debezium.postgres import Postgres, binaries, client_environment
from debezium.registry import Registry
from debezium.reporting import Reporter
from debezium.service import EXTERNAL_NAMES, Scene, Service, StackSettings
from debezium.state import Entry, State

DEFAULT_SERVICES = ("postgres", "kafka", "registry", "connect")
SERVICES: Mapping[str, Service] = {s.name: s for s in (Postgres(), Kafka(), Registry(), Connect(), Model())}
# Writers before what they write to: Connect commits to Kafka and reads Postgres, the registry stores in Postgres.
STOP_ORDER = (("connect", "model"), ("kafka", "registry"), ("postgres",))

_guards: dict[Path, Guard] = {}


@dataclass(frozen=True)
class ServiceInfo:
    """One service of a stack; `health` is `ready`, `not answering` or `stopped`."""

    pid: int | None
    port: int
    log: Path
    health: str


@dataclass(frozen=True)
class StackInfo:
    """Where a stack's services are. An address is empty (the model's: None) if the stack has no such service."""

    database_url: str
    kafka_bootstrap_servers: str
    schema_registry_url: str
    connect_url: str
    model_base_url: str | None
    directory: Path
    services: Mapping[str, ServiceInfo]
    model_name: str = MODEL_NAME
    model_api_key: str = MODEL_API_KEY

    def environment(self) -> dict[str, str]:
        """The variables by which a program of this project finds the stack."""
        values = {
            "DATABASE_URL": self.database_url,
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers,
            "SCHEMA_REGISTRY_URL": self.schema_registry_url,
            "CONNECT_URL": self.connect_url,
        }
        if self.model_base_url:
            values["MODEL_BASE_URL"] = self.model_base_url
            values["MODEL_NAME"] = self.model_name
            values["MODEL_API_KEY"] = self.model_api_key
        return {name: value for name, value in values.items() if value}


def start(
    directory: Path,
    *,
    services: Collection[str] = DEFAULT_SERVICES,
    model: bool = False,
    external: Mapping[str, str] | None = None,
    settings: StackSettings | None = None,
    attached: bool = False,
    reporter: Reporter | None = None,
) -> StackInfo:
    """Start the stack in `directory`, or what is missing of it, and return when it is ready.

    A service whose variable is in `external` (`DATABASE_URL`, …) is not started; the others use the given one.
    `attached` ties the stack to this process: it is stopped when this process ends, however it ends. A stack that
    already ran whole stays as it was: tied to whoever started it, or to nobody.

    Raises:
        UnknownService: a name in `services` is none.
        StackError: a service could not be started; everything this call started is stopped again.
    """
    unknown = set(services) - set(SERVICES)
    if unknown:
        raise UnknownService(f"no such service: {', '.join(sorted(unknown))}; there are: {', '.join(SERVICES)}")
    reporter = reporter or Reporter()
    began = time.monotonic()
    with _locked(directory) as paths:
        state = State.read(paths.state_file)
        if settings is not None:
            state.settings = dataclasses.asdict(settings)
        state.external = _foreign(_scene(paths, state, reporter, {}), external or {})
        scene = _scene(paths, state, reporter, state.external)
        state.write()
        wanted = [*services, *(["model"] if model else [])]
        missing = [
            service
            for name, service in SERVICES.items()
            if name in wanted and EXTERNAL_NAMES[name] not in state.external and not _running(state, name)
        ]
        if missing:
            _start_guarded(paths, scene, state, missing, attached, reporter)
            reporter.line(f"stack ready in {time.monotonic() - began:.1f} s: {paths.directory}")
        return _info(scene, state)


def status(directory: Path) -> StackInfo:
    """What the stack in `directory` consists of now, each service asked whether it answers.

    Raises:
        NotRunning: no stack was ever started there.
    """
    paths = _existing(directory)
    state = State.read(paths.state_file)
    return _info(_scene(paths, state, Reporter(quiet=True), state.external), state)


def stop(directory: Path, *, remove: bool = False) -> list[str]:
    """Stop every process of the stack in order, each with time to end; with `remove`, delete its data as well.

    Returns the names of the services that ran, in the order in which they were stopped. A directory without a stack is
    no error: there is nothing to stop.
    """
    directory = directory.expanduser().absolute()
    if not directory.exists():
        return []
    with _locked(directory) as paths:
        stopped = _stop_all(paths, State.read(paths.state_file))
        guard = _guards.pop(paths.directory, None)
        if guard is not None:
            guard.release()
        if remove:
            for folder in paths.owned:
                if folder.exists():
                    shutil.rmtree(folder)
        return stopped


def kill(directory: Path, service: str, number: int = signal.SIGKILL) -> None:
    """Send a signal to a service, by default SIGKILL: for tests of faults. Returns when a killed service is gone.

    Raises:
        NotRunning: the service does not run.
        UnknownService: there is no such service.
    """
    _known(service)
    entry = State.read(_existing(directory).state_file).services.get(service)
    if entry is None or entry.identity is None or not entry.identity.send(number):
        raise NotRunning(f"{service} does not run in {directory}")
    if number == signal.SIGKILL:
        entry.identity.wait(10.0)


def stop_service(directory: Path, service: str) -> None:
    """Stop one service in order and leave the others. Raises UnknownService or NotRunning as `kill`."""
    _known(service)
    with _locked(_existing(directory).directory) as paths:
        _stop_one(State.read(paths.state_file), service)


def restart(directory: Path, service: str, reporter: Reporter | None = None) -> StackInfo:
    """Start one service again on the same ports and data, stopping it first if it runs.

    Raises:
        UnknownService: there is no such service.
        NotRunning: the stack has never had it.
        StackError: it does not come up.
    """
    _known(service)
    with _locked(_existing(directory).directory) as paths:
        state = State.read(paths.state_file)
        if service not in state.services:
            raise NotRunning(f"{service} was never started in {directory}")
        _stop_one(state, service)
        reporter = reporter or Reporter(quiet=True)
        scene = _scene(paths, state, reporter, state.external)
        Launcher(scene, state, reporter).start(SERVICES[service], keep_ports=True)
        return _info(scene, state)


def logs(directory: Path, service: str, follow: bool = False, lines: int = 100) -> Iterator[str]:
    """The last lines of a service's log; with `follow`, what is added to it until the caller stops asking.

    Raises:
        UnknownService: there is no such service.
        NotRunning: it has no log.
    """
    _known(service)
    log = _existing(directory).log(service)
    if not log.exists():
        raise NotRunning(f"{service} was never started in {directory}")
    return _read(log, follow, lines)


def psql(directory: Path) -> tuple[Path, dict[str, str]]:
    """Postgres' own client, and the variables by which it finds the stack's database.

    Raises:
        NotRunning: no stack was ever started there.
        MissingPackage: the package with Postgres' programs is not installed.
    """
    paths = _existing(directory)
    state = State.read(paths.state_file)
    scene = _scene(paths, state, Reporter(quiet=True), state.external)
    return binaries(scene) / "psql", client_environment(scene.database_url)


def _read(log: Path, follow: bool, lines: int) -> Iterator[str]:
    with log.open(errors="replace") as file:
        file.seek(0, os.SEEK_END)
        yield from processes.tail(log, lines).splitlines()
        while follow:
            added = file.readline()
            if added:
                yield added.rstrip("\n")
            else:
                time.sleep(0.2)


def _start_guarded(
    paths: StackPaths, scene: Scene, state: State, missing: list[Service], attached: bool, reporter: Reporter
) -> None:
    started = {service.name for service in missing}
    guard = Guard(paths.directory)
    try:
        Launcher(scene, state, reporter).bring_up(missing)
    except BaseException:
        # Ctrl-C included. What ran before this call is left alone.
        _stop_all(paths, state, started)
        guard.release()
        raise
    if attached:
        replaced = _guards.pop(paths.directory, None)
        if replaced is not None:
            replaced.release()
        _guards[paths.directory] = guard
    else:
        guard.release()


def _stop_all(paths: StackPaths, state: State, only: Collection[str] = tuple(SERVICES)) -> list[str]:
    stopped = []
    for wave in STOP_ORDER:
        names = [name for name in wave if name in only and name in state.services]
        stopped += [name for name in names if _running(state, name)]
        with ThreadPoolExecutor(len(wave)) as pool:
            for finished in [pool.submit(_stop_one, state, name) for name in names]:
                finished.result()
    if set(only) == set(SERVICES):
        # A launcher that was killed between starting a process and writing it down left one nobody knows.
        for stray in processes.marked(paths.directory):
            processes.end(stray, [(signal.SIGTERM, 5.0)])
    return stopped


def _stop_one(state: State, name: str) -> None:
    entry = state.services[name]
    if entry.identity is not None:
        # A stopped process (SIGSTOP in a test) does not act on SIGTERM until it goes on.
        entry.identity.send(signal.SIGCONT)
        processes.end(entry.identity, SERVICES[name].stop_steps)
        state.record(name, Entry(None, entry.ports))


def _scene(paths: StackPaths, state: State, reporter: Reporter, external: Mapping[str, str]) -> Scene:
    return Scene(
        paths=paths,
        settings=StackSettings(**state.settings),
        cache=Cache(cache_directory(), reporter),
        account=accounts.postgres_account(),
        external=external,
        ports={name: entry.ports for name, entry in state.services.items()},
    )


def _foreign(own: Scene, given: Mapping[str, str]) -> dict[str, str]:
    """The given addresses less those of this very stack, which a shell may still have from the last start."""
    addresses = _addresses(own)
    return {name: value for name, value in given.items() if value and addresses.get(name) != value}


def _addresses(scene: Scene) -> dict[str, str]:
    found: dict[str, Callable[[], str]] = {
        "postgres": lambda: scene.database_url,
        "kafka": lambda: scene.kafka_bootstrap_servers,
        "registry": lambda: scene.schema_registry_url,
        "connect": lambda: scene.connect_url,
        "model": lambda: scene.model_base_url,
    }
    return {
        EXTERNAL_NAMES[name]: address()
        for name, address in found.items()
        if name in scene.ports or EXTERNAL_NAMES[name] in scene.external
    }


def _info(scene: Scene, state: State) -> StackInfo:
    addresses = _addresses(scene)
    services = {}
    for name, entry in state.services.items():
        health = "stopped"
        if entry.running():
            health = "ready" if SERVICES[name].ready(scene) else "not answering"
        pid = entry.identity.pid if entry.identity is not None and health != "stopped" else None
        services[name] = ServiceInfo(pid, entry.ports["main"], scene.paths.log(name), health)
    return StackInfo(
        database_url=addresses.get("DATABASE_URL", ""),
        kafka_bootstrap_servers=addresses.get("KAFKA_BOOTSTRAP_SERVERS", ""),
        schema_registry_url=addresses.get("SCHEMA_REGISTRY_URL", ""),
        connect_url=addresses.get("CONNECT_URL", ""),
        model_base_url=addresses.get("MODEL_BASE_URL"),
        directory=scene.paths.directory,
        services=services,
        model_name=scene.external.get("MODEL_NAME", MODEL_NAME),
        model_api_key=scene.external.get("MODEL_API_KEY", MODEL_API_KEY),
    )


def _running(state: State, name: str) -> bool:
    return name in state.services and state.services[name].running()


def _known(service: str) -> None:
    if service not in SERVICES:
        raise UnknownService(f"no such service: {service}; there are: {', '.join(SERVICES)}")


def _existing(directory: Path) -> StackPaths:
    paths = StackPaths.of(directory, accounts.postgres_account())
    if not paths.state_file.exists():
        raise NotRunning(
            f"no stack was started in {paths.directory}; start one with `rowcall dev up`, or name another "
            "directory with --directory or ROWCALL_STACK_DIR"
        )
    return paths


@contextmanager
def _locked(directory: Path) -> Iterator[StackPaths]:
    paths = StackPaths.of(directory, accounts.postgres_account())
    paths.directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(paths.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield paths
    finally:
        os.close(descriptor)
