"""The demo by itself: what it prints without a terminal, what it counts, and how Ctrl-C ends it."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from consumer.demo import acts, play, scene
from consumer.demo.verdict import Verdict, faults_of
from consumer.demo.watch import Watch
from consumer.errors import Outage

ROW = {
    "order": 3, "job": 5, "event_id": "rc1:0123456789abcdef", "status": "SUCCEEDED", "attempts": 2,
    "title": "Normal order", "last_error": None, "calls": 1, "milliseconds": 4200,
}  # fmt: skip
GOOD = {"orders": 2, "triaged": 2, "runs": 2, "notices": 2, "emitted": 2, "rejected": 0, "dead_letters": 0}


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=60)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_run_is_one_labelled_line_where_there_is_no_terminal(console: Console) -> None:
    with Watch(console) as watch:
        watch.show([ROW])
        watch.show([ROW])
    assert said(console) == (
        "  order 3  event 01234567  run 5  SUCCEEDED (attempt 2)  answer: Normal order  model calls: 1  "
        "4200 ms from commit\n"
    )


def test_whatever_is_missing_at_the_end_is_a_fault() -> None:
    both = {b"1": 1, b"2": 1}
    assert faults_of(GOOD, both) == []
    for what in ("triaged", "runs", "notices"):
        assert faults_of(GOOD | {what: 1}, both) == [f"2 orders, but 1 {what}"]
    assert len(faults_of(GOOD, {b"1": 1})) == len(faults_of(GOOD, {b"1": 1, b"2": 2})) == 1


def stage(monkeypatch: pytest.MonkeyPatch, act: Any) -> list[str]:
    """A scene without services: what is tested is what is said and when it is closed."""
    closed: list[str] = []
    opened = type("Opened", (), {"close": lambda _: closed.append("closed")})()
    monkeypatch.setattr(play, "open_scene", lambda _: opened)
    monkeypatch.setattr(play, "_acts", act)
    return closed


def test_ctrl_c_is_answered_at_once_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, console: Console, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> Verdict:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("not interrupted")

    before = signal.getsignal(signal.SIGINT)
    closed = stage(monkeypatch, interrupted)
    assert play.play(tmp_path, orders=1, console=console) == 130
    lines = said(console).splitlines()
    assert lines[-2:] == ["stopping the demo's workers and services…", "demo stopped; nothing is left running"]
    assert closed == ["closed"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fault_leaves_no_summary(monkeypatch: pytest.MonkeyPatch, console: Console, tmp_path: Path) -> None:
    stage(monkeypatch, lambda *_: Verdict("8 orders, all well", ["2 orders, but 1 notices"]))
    assert play.play(tmp_path, orders=1, console=console) == 1
    lines = said(console).splitlines()
    assert lines[-2] == "✗ 2 orders, but 1 notices"
    assert lines[-1].startswith("demo failed: 1 count")
    assert "all well" not in said(console)


def test_patience_counts_from_the_last_change(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    looks = iter(range(100))
    now = iter(range(0, 100_000, 100))
    monkeypatch.setattr(acts, "runs", lambda _: [ROW | {"attempts": min(next(looks), 10)}])
    monkeypatch.setattr(acts, "_decide_reviews", lambda *_: None)
    monkeypatch.setattr(acts, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _: None))
    nobody = scene.Scene.__new__(scene.Scene)
    nobody.workers, nobody.logs = [], Path("logs")
    with pytest.raises(Outage, match="no run has moved for 240 s"):
        acts.await_all(nobody, Watch(console), lambda _: False, "the end")
    assert 10 < next(looks) < 20
