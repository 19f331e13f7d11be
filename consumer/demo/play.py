"""The demo from curtain to curtain."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from consumer.demo.acts import all_succeeded, await_all, commit_orders, kill_a_worker, kill_connect
from consumer.demo.drift import drift
from consumer.demo.scene import Scene, open_scene
from consumer.demo.verdict import Verdict, await_results, count
from consumer.demo.watch import Watch

INTERRUPTED: Final = 130


def play(directory: Path, *, orders: int, console: Console | None = None) -> int:
    """Play every act; 0 when every order came out with exactly one result, 130 after Ctrl-C.

    Raises:
        RowcallError, StackError: a part of the stack failed; says which and why.
    """
    console = console or Console()
    console.print(
        "[bold]Rowcall demo[/bold]: rows committed in Postgres wake an agent; its validated answer is written back.\n"
        "The model here is SmolLM2-135M, embedded and tiny: it shows the path, not judgement, and needs 5–60 s an "
        "order.\nFor a real one, set MODEL_BASE_URL, MODEL_NAME and MODEL_API_KEY.",
        soft_wrap=True,
        highlight=False,
    )
    try:
        with _said_at_once(console):
            verdict = _staged(directory, console, orders)
    except KeyboardInterrupt:
        console.print("demo stopped; nothing is left running")
        return INTERRUPTED
    for fault in verdict.faults:
        console.print(f"[red]✗[/red] {fault}", soft_wrap=True, highlight=False)
    if verdict.faults:
        faults = f"{len(verdict.faults)} count{'s are' if len(verdict.faults) > 1 else ' is'} not as promised"
        console.print(f"demo failed: {faults}; logs are in {directory}", soft_wrap=True, highlight=False)
        return 1
    console.print(f"demo ok: {verdict.summary}", soft_wrap=True, highlight=False)
    return 0


@contextmanager
def _said_at_once(console: Console) -> Iterator[None]:
    """Answer Ctrl-C before the stopping begins, which takes seconds and is not cut short by a second Ctrl-C."""

    def stopping(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.print("stopping the demo's workers and services…")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stopping)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _staged(directory: Path, console: Console, orders: int) -> Verdict:
    scene = open_scene(directory)
    try:
        return _acts(scene, console, orders)
    finally:
        scene.close()


def _acts(scene: Scene, console: Console, orders: int) -> Verdict:
    with Watch(console) as watch:
        scene.start_detector()
        scene.start_worker()
        watch.say(f"{orders} paid orders are committed")
        commit_orders(scene, orders)
        await_all(scene, watch, all_succeeded, "the first orders")
        kept = kill_a_worker(scene, watch)
        kill_connect(scene, watch, orders=3)
        await_all(scene, watch, all_succeeded, "the orders around Connect's death")
        watch.say("waiting for the notices: each triage wakes a second agent, whose runs are runs too")
        await_results(scene)
        drifted = drift(scene, watch)
        watch.say("counting results in the database and on the topics")
        return count(scene, kept, drifted)
