"""Where things lie, for root, for a plain user, and under closed folders."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from debezium import paths, ports
from debezium.accounts import Account

STRANGER = Account("stranger", 54_321, 54_321)


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWCALL_CACHE", str(tmp_path))
    assert paths.cache_directory() == tmp_path


def test_roots_cache_is_no_closed_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWCALL_CACHE", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert paths.cache_directory() == Path("/var/cache/rowcall")


def test_a_plain_users_cache_follows_the_desktop_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROWCALL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert paths.cache_directory() == tmp_path / "rowcall"


def test_the_default_stack_is_in_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROWCALL_STACK_DIR", raising=False)
    assert paths.stack_directory() == tmp_path / "build" / "stack"
    monkeypatch.setenv("ROWCALL_STACK_DIR", "/elsewhere")
    assert paths.stack_directory() == Path("/elsewhere")


def test_a_closed_folder_moves_the_database_to_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWCALL_CACHE", "/var/cache/rowcall")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    first = paths.StackPaths.of(closed / "one", STRANGER)
    second = paths.StackPaths.of(closed / "two", STRANGER)
    assert first.directory == closed / "one"
    assert first.postgres_data.is_relative_to("/var/cache/rowcall")
    assert first.postgres_data != second.postgres_data
    assert first.owned == (first.postgres_parent.parent, first.directory)
    assert not set(first.owned) & set(second.owned)


def test_the_database_stays_in_the_stack_when_we_run_it_ourselves(tmp_path: Path) -> None:
    assert paths.StackPaths.of(tmp_path, None).postgres_data.is_relative_to(tmp_path)


def test_the_preferred_port_is_taken_when_free_and_left_when_not() -> None:
    port = ports.choose()
    assert ports.FIRST <= port <= ports.LAST
    assert ports.choose(port) == port
    with socket.create_server((ports.HOST, port)):
        assert not ports.bindable(port)
        assert ports.choose(port) != port


def test_a_taken_port_is_not_chosen() -> None:
    port = ports.choose()
    assert ports.choose(port, frozenset([port])) != port
