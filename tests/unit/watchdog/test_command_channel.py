"""The channel `command` with real programs: what they get, and what their ends mean."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from consumer.errors import ConfigurationError, Outage
from consumer.watchdog.channels.command import Command
from tests.fixtures.process import eventually
from tests.unit.watchdog.alerts import alert


def program(folder: Path, body: str) -> list[str]:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


def test_a_program_gets_the_alert_and_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:geheim-geheim@db/x")
    monkeypatch.setenv("MODEL_API_KEY", "geheim-geheim")
    body = f'cat > {tmp_path}/given; env > {tmp_path}/environment; echo "$1" > {tmp_path}/argument'
    arguments = [*program(tmp_path, body), "; echo $HOME `id`"]
    Command("page", arguments, environment={"TOKEN": "t1"}).send(alert(message="a\x00b\n$(id)"))
    given = json.loads((tmp_path / "given").read_text())
    assert (given["subject"], given["state"], given["message"]) == ("agent:order-triage", "overdue", "a b\n$(id)")
    environment = (tmp_path / "environment").read_text()
    assert "ROWCALL_ALERT_SUBJECT=agent:order-triage\n" in environment and "TOKEN=t1\n" in environment
    assert "ROWCALL_ALERT_RUN_ID=\n" in environment and "geheim" not in environment
    assert (tmp_path / "argument").read_text() == "; echo $HOME `id`\n"


def test_a_program_that_reads_nothing_has_still_delivered() -> None:
    Command("page", ["/bin/true"]).send(alert(message="x" * 1_000_000))


def test_exit_75_and_a_signal_are_outages(tmp_path: Path) -> None:
    with pytest.raises(Outage, match=r"tried later.*busy"):
        Command("page", program(tmp_path, "echo busy >&2; exit 75")).send(alert())
    with pytest.raises(Outage, match="signal 9"):
        Command("page", program(tmp_path, "kill -9 $$")).send(alert())


def test_another_code_needs_an_operator_and_keeps_the_end_of_what_was_said(tmp_path: Path) -> None:
    body = (
        "i=0; while [ $i -lt 20000 ]; do echo 'the beginning' >&2; i=$((i+1)); done; echo 'Bearer abcdefghijkl' >&2; "
    )
    with pytest.raises(ConfigurationError, match="exit code 3") as raised:
        Command("page", program(tmp_path, f"{body} echo 'no such pager' >&2; exit 3")).send(alert())
    said = str(raised.value)
    assert "no such pager" in said and "abcdefghijkl" not in said and len(said) < 800


def test_when_time_is_over_everything_it_started_is_killed(tmp_path: Path) -> None:
    body = f"sleep 60 & echo $! > {tmp_path}/child; sleep 60"
    begun = time.monotonic()
    with pytest.raises(Outage, match="longer than 1 s"):
        Command("page", program(tmp_path, body), seconds=1.0).send(alert())
    assert time.monotonic() - begun < 30
    child = int((tmp_path / "child").read_text())
    eventually("the child is gone", lambda: not alive(child), 20)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_child_that_keeps_stderr_open_does_not_hold_the_alert(tmp_path: Path) -> None:
    begun = time.monotonic()
    Command("page", program(tmp_path, f"sleep 40 & echo $! > {tmp_path}/child; exit 0"), seconds=30.0).send(alert())
    assert time.monotonic() - begun < 25
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_what_cannot_be_run_needs_an_operator(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be run"):
        Command("page", [str(tmp_path / "absent")]).send(alert())
    (tmp_path / "text").write_text("words")
    with pytest.raises(ConfigurationError, match="cannot be run"):
        Command("page", [str(tmp_path / "text")]).send(alert())
    (tmp_path / "text").chmod(0o755)
    with pytest.raises(ConfigurationError, match="no program"):
        Command("page", [str(tmp_path / "text")]).send(alert())
