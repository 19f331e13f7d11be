"""Launchers of the local stack that die, are interrupted, or leave a stack running; and who may run Postgres."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from debezium import postgres, processes, stack
from debezium.reporting import Reporter
from tests.fixtures.process import eventually

QUIET = Reporter(quiet=True)


def test_nothing_is_left_when_an_attached_launcher_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "debezium.cli", "up", "--attached", "--services", "postgres,kafka"]
    launcher = subprocess.Popen([*command, "--directory", str(tmp_path), "--env"], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline().startswith("export DATABASE_URL=")
    assert len(processes.marked(tmp_path)) >= 2
    launcher.kill()
    launcher.communicate()
    eventually("every process has ended", lambda: not processes.marked(tmp_path))
    assert {service.health for service in stack.status(tmp_path).services.values()} == {"stopped"}
    stack.stop(tmp_path, remove=True)


def test_nothing_is_left_when_a_launcher_is_interrupted_while_it_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "debezium.cli", "up", "--directory", str(tmp_path)]
    # A shell starts its background jobs, and with them perhaps these tests, deaf to Ctrl-C.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)
    eventually("services are being started", lambda: len(processes.marked(tmp_path)) >= 2)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode != 0
    eventually("every process has ended", lambda: not processes.marked(tmp_path))
    stack.stop(tmp_path, remove=True)


def test_a_detached_stack_outlives_its_launcher_until_it_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "debezium.cli", "up", "--services", "postgres", "--env"]
    environment = os.environ | {"ROWCALL_STACK_DIR": str(tmp_path)}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    address = re.fullmatch(r"export DATABASE_URL=(\S+)\n", shown.stdout)
    assert address is not None
    with psycopg.connect(address[1]) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    stack.stop(tmp_path)
    assert not processes.marked(tmp_path)
    again = stack.start(tmp_path, services=("postgres",), attached=True, reporter=QUIET)
    try:
        assert again.database_url == address[1]
        with psycopg.connect(again.database_url) as connection:
            connection.execute("SELECT id FROM kept")
    finally:
        stack.stop(tmp_path, remove=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as another user")
def test_a_package_under_a_closed_folder_is_copied_where_postgres_can_go(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    site = Path(postgres.__file__).parents[1]
    spec = importlib.util.find_spec(postgres.PACKAGE)
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    shutil.copytree(package, closed / package.name, ignore=shutil.ignore_patterns("pginstall", "include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs")
    cache = Path("/var/tmp") / f"rowcall-test-{os.getpid()}"
    environment = os.environ | {"PYTHONPATH": f"{closed}:{site}", "ROWCALL_CACHE": str(cache)}
    command = [sys.executable, "-m", "debezium.cli"]
    place = ["--directory", str(closed / "stack")]
    try:
        subprocess.run([*command, "up", "--services", "postgres", *place], env=environment, check=True, timeout=60)
        shown = subprocess.run(
            [*command, "status", "--env", *place], env=environment, check=True, capture_output=True, text=True
        )
        with psycopg.connect(shown.stdout.split("=", 1)[1].strip()) as connection:
            where = connection.execute("SELECT current_setting('data_directory')").fetchone()
        assert where is not None and where[0].startswith(str(cache))
    finally:
        subprocess.run([*command, "down", "--remove", *place], env=environment, check=True, timeout=60)
        shutil.rmtree(cache)
