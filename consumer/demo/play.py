"""The demo from curtain to curtain."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from consumer.demo.acts import all_succeeded, await_all, commit_orders, kill_a_worker, kill_connect
from consumer.demo.scene import Scene, open_scene
from consumer.demo.verdict import count
from consumer.demo.watch import Watch


def play(directory: Path, *, orders: int, console: Console | None = None) -> int:
    """Play every act; 0 when every order came out with exactly one result.

    Raises:
        RowcallError, StackError: a part of the stack failed; says which and why.
    """
    console = console or Console()
    console.print(
        "[bold]Rowcall demo[/bold]: rows committed in Postgres wake an agent; its validated answer is written back.\n"
        "The model here is SmolLM2-135M, embedded and tiny: it shows the path, not judgement. For a real one, set "
        "MODEL_BASE_URL, MODEL_NAME and MODEL_API_KEY."
    )
    scene = open_scene(directory)
    try:
        return _acts(scene, console, orders)
    finally:
        scene.close()


def _acts(scene: Scene, console: Console, orders: int) -> int:
    with Watch(console) as watch:
        scene.start_worker()
        watch.say(f"{orders} paid orders are committed")
        commit_orders(scene, orders)
        await_all(scene, watch, all_succeeded, "the first orders")
        kept = kill_a_worker(scene, watch)
        kill_connect(scene, watch, orders=3)
        await_all(scene, watch, all_succeeded, "the orders around Connect's death")
        watch.say("counting results in the database and on the topics")
        verdict = count(scene, kept)
    for fault in verdict.faults:
        console.print(f"[red]✗[/red] {fault}")
    console.print(f"demo {'failed' if verdict.faults else 'ok'}: {verdict.summary}", soft_wrap=True, highlight=False)
    return 1 if verdict.faults else 0
