"""The launcher's own rules, on small programs: order, taken ports, early ends, interruption."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from debezium import ports, probes, processes
from debezium.cache import Cache
from debezium.errors import ServiceFailed, StackError
from debezium.launch import Launcher
from debezium.paths import StackPaths
from debezium.processes import Launch
from debezium.reporting import Reporter
from debezium.service import Scene, StackSettings
from debezium.state import Entry, State

SERVER = (
    "import http.server as h, sys; "
    "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()"
)


class Program:
    """A service that is one small Python program."""

    port_names = ("main",)
    stop_steps = ((15, 5.0),)

    def __init__(self, name: str, source: str = SERVER, needs: tuple[str, ...] = ()) -> None:
        self.name = name
        self.needs = needs
        self.seen: dict[str, bool] = {}
        self._source = source

    def fetch(self, scene: Scene) -> None:
        pass

    def prepare(self, scene: Scene) -> None:
        self.seen = {name: probes.listens(scene.port(name)) for name in self.needs}

    def launch(self, scene: Scene) -> Launch:
        argv = [sys.executable, "-c", self._source, str(scene.port(self.name))]
        return Launch(argv, {}, scene.paths.directory)

    def ready(self, scene: Scene) -> bool:
        return probes.answers(scene.port(self.name), "/")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    cache = Cache(tmp_path / "cache", Reporter(quiet=True))
    return Scene(StackPaths(tmp_path, tmp_path), StackSettings(ready_timeout_s=20), cache, None, {})


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state.json")


def launcher(scene: Scene, state: State) -> Launcher:
    return Launcher(scene, state, Reporter(quiet=True))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> object:
    yield
    for left in processes.marked(tmp_path):
        processes.end(left, [])


def test_a_service_waits_for_those_it_needs(scene: Scene, state: State) -> None:
    later = Program("later", needs=("earlier",))
    launcher(scene, state).bring_up([later, Program("earlier")])
    assert later.seen == {"earlier": True}
    assert all(entry.running() for entry in state.services.values())


def test_a_taken_port_is_exchanged_for_another(scene: Scene, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ports.choose()
    with socket.create_server((ports.HOST, taken)):
        # As when another program takes the port between the choice and the start.
        choices = iter([taken, ports.choose()])
        monkeypatch.setattr(ports, "choose", lambda *_: next(choices))
        launcher(scene, state).start(Program("web"), keep_ports=False)
    assert state.services["web"].ports["main"] != taken
    assert state.services["web"].running()


def test_a_restart_does_not_move_to_another_port(scene: Scene, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("debezium.launch.PORT_WAIT_S", 0.1)
    port = ports.choose()
    state.record("web", Entry(None, {"main": port}))
    with socket.create_server((ports.HOST, port)), pytest.raises(StackError, match=f"port {port} of web is taken"):
        launcher(scene, state).start(Program("web"), keep_ports=True)


def test_a_service_that_ends_shows_its_log(scene: Scene, state: State) -> None:
    with pytest.raises(ServiceFailed, match="the reason it gave") as raised:
        launcher(scene, state).bring_up([Program("broken", "raise SystemExit('the reason it gave')")])
    assert raised.value.service == "broken"


def test_a_service_that_is_never_ready_is_reported(scene: Scene, state: State) -> None:
    scene.settings = StackSettings(ready_timeout_s=0.3)
    with pytest.raises(ServiceFailed, match="not ready after"):
        launcher(scene, state).bring_up([Program("silent", "import time; time.sleep(60)")])


def test_the_failure_is_reported_and_not_the_waiting_it_ended(scene: Scene, state: State) -> None:
    services = [
        Program("slow", "import time; time.sleep(60)"),
        Program("broken", "raise SystemExit('the reason it gave')"),
        Program("later", needs=("broken",)),
    ]
    with pytest.raises(ServiceFailed) as raised:
        launcher(scene, state).bring_up(services)
    assert raised.value.service == "broken"
    assert "later" not in state.services
