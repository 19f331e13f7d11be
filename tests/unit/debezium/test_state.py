"""The state file, and telling a process from a later one with the same id."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from debezium import processes
from debezium.errors import StackError
from debezium.processes import Identity, Launch
from debezium.state import Entry, State


def ourselves() -> Identity:
    return Identity(os.getpid(), psutil.Process().create_time())


def test_an_absent_file_is_an_empty_state(tmp_path: Path) -> None:
    assert State.read(tmp_path / "state.json").services == {}


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = State(path, external={"DATABASE_URL": "postgresql://elsewhere"})
    state.record("kafka", Entry(ourselves(), {"main": 20_001, "controller": 20_002}))
    state.record("postgres", Entry(None, {"main": 20_003}))
    again = State.read(path)
    assert again.external == state.external
    assert again.services == state.services
    assert again.services["kafka"].running()
    assert not again.services["postgres"].running()


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    State(path).write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StackError, match=r"state\.json"):
        State.read(path)


def test_an_id_that_belongs_to_another_program_now_is_not_signalled() -> None:
    reused = Identity(os.getpid(), psutil.Process().create_time() - 60)
    assert not reused.alive()
    assert not reused.send(9)


def test_a_process_that_ended_is_not_alive_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = Identity(child.pid, psutil.Process(child.pid).create_time())
    assert identity.alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.alive()
    child.communicate()


def test_a_started_process_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    launch = Launch([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"], {}, tmp_path)
    identity = processes.start(launch, tmp_path, tmp_path / "logs" / "sleeper.log")
    assert identity in processes.marked(tmp_path)
    processes.end(identity, [(15, 5.0)])
    assert not identity.alive()
    assert processes.marked(tmp_path) == []


def test_a_process_that_ignores_the_asking_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    log = tmp_path / "stubborn.log"
    identity = processes.start(Launch([sys.executable, "-c", stubborn], {}, tmp_path), tmp_path, log)
    while "deaf" not in processes.tail(log):
        assert identity.alive()
    processes.end(identity, [(15, 0.2)])
    assert not identity.alive()


def test_a_service_does_not_get_the_launchers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret-of-the-shell")
    log = tmp_path / "environment.log"
    launch = Launch([sys.executable, "-c", "import os; print(dict(os.environ))"], {"GIVEN": "yes"}, tmp_path)
    identity = processes.start(launch, tmp_path, log)
    assert identity.wait(10.0)
    assert "secret-of-the-shell" not in log.read_text()
    assert "'GIVEN': 'yes'" in log.read_text()
