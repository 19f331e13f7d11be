"""The acts: orders are committed, a worker is killed between answer and commit, Connect is killed while rows stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.demo.scene import Scene
from consumer.demo.watch import Watch
from consumer.errors import OperatorError, Outage
from consumer.operate.act import Act
from consumer.operate.deciding import approve, reject
from debezium import stack as local_stack

_SQL = db.queries("demo")
_AMOUNTS = (149, 310, 990, 125, 2400, 560, 180, 4200)
# Since the last change of any run: the model takes most of a minute for one answer on a busy machine.
_PATIENCE_SECONDS = 240
# Rows between two flushes of Connect's offsets (1 s): enough that a kill finds some not yet flushed.
_BURST = 400
_BURSTS = 6
USUAL: Final = 30.0
"""What a small order costs."""

_AGENTS: Final = ["order-triage", "triage-notice"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What the kill of the worker left behind: the run, its model calls before and after, how often it was claimed."""

    run: int
    calls_before: int
    calls_after: int
    claims_before: int
    claims_after: int


def commit_orders(scene: Scene, count: int) -> list[int]:
    """Commit `count` orders worth a look; their IDs."""
    ids = []
    for number in range(count):
        values = {"customer": number % 8 + 1, "amount": _AMOUNTS[number % len(_AMOUNTS)]}
        row = scene.session.execute(_SQL["add_order"], values).fetchone()
        ids.append(int(row["id"]) if row else 0)
    return ids


def commit_small_orders(scene: Scene, count: int, middle: float) -> None:
    """Commit orders that no agent wants; `middle` is what one costs on average, with a spread of 4."""
    scene.session.execute(_SQL["add_small_orders"], {"customer": 1, "count": count, "middle": middle})


def runs(scene: Scene) -> list[dict[str, Any]]:
    """The triaged orders and their runs, as they stand."""
    return list(scene.session.execute(_SQL["runs"]).fetchall())


def await_all(scene: Scene, watch: Watch, done: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
    """Show the runs until `done` says yes; decides reviews on the way, as a person would.

    Raises:
        Outage: when nothing has moved for _PATIENCE_SECONDS; names what was waited for.
    """
    seen: list[dict[str, Any]] = []
    give_up = 0.0
    while True:
        scene.check_workers()
        rows = runs(scene)
        watch.show(rows)
        if done(rows):
            return
        _decide_reviews(scene, watch)
        if rows != seen:
            seen, give_up = rows, time.monotonic() + _PATIENCE_SECONDS
        if time.monotonic() > give_up:
            raise Outage(
                f"waited for {what}, and no run has moved for {_PATIENCE_SECONDS} s; see {scene.logs}",
                dependency="demo",
            )
        time.sleep(0.25)


def all_succeeded(rows: list[dict[str, Any]]) -> bool:
    """Whether every order has its run, ended by success or by a person's rejection.

    Raises:
        OperatorError: a run failed for good, which the demo does not expect.
    """
    for row in rows:
        if row["status"] in ("FAILED", "CANCELLED"):
            raise OperatorError(f"run {row['job']} ended {row['status']}: {row['last_error']}")
    return bool(rows) and all(row["status"] in ("SUCCEEDED", "REJECTED") for row in rows)


def kill_a_worker(scene: Scene, watch: Watch) -> Kept:
    """Kill a worker after the model's answer was kept and before its outcome was committed; another one resumes."""
    blocker = db.connect(scene.settings.database_url.get_secret_value(), name="demo holds a row")
    try:
        (order,) = commit_orders(scene, 1)
        with db.transaction(blocker):
            blocker.execute(_SQL["lock_order"], {"order": order})
            await_all(scene, watch, lambda _: _outcome_waits(scene), "an outcome to wait for the held row")
            before = _run_of(scene, order)
            watch.say(
                f"run {before['job']} has its answer and is inside its outcome transaction (the demo holds the row): "
                "SIGKILL to its worker"
            )
            for worker in scene.workers:
                if worker.poll() is None:
                    scene.kill_worker(worker)
    finally:
        blocker.close()
    scene.start_worker()
    watch.say("a new worker takes over when the lease of the dead one has run out")
    await_all(scene, watch, all_succeeded, "the run to be resumed")
    after = _run_of(scene, order)
    return Kept(after["job"], before["calls"], after["calls"], before["claims"], after["claims"])


def kill_connect(scene: Scene, watch: Watch, orders: int) -> list[int]:
    """Kill Connect while rows stream, so that it sends some of them again; returns the large orders among them."""
    ids: list[int] = []
    watch.say(f"{_BURST * _BURSTS:,} small orders stream by: their changes are read, and wake nobody")
    for burst in range(_BURSTS):
        commit_small_orders(scene, _BURST, USUAL)
        if burst % max(1, _BURSTS // orders) == 0 and len(ids) < orders:
            ids += commit_orders(scene, 1)
        time.sleep(0.15)
    local_stack.kill(scene.stack.directory, "connect")
    watch.say("Connect killed with SIGKILL while rows were streaming; it starts again from its last flushed offset")
    local_stack.restart(scene.stack.directory, "connect")
    ids += commit_orders(scene, 1)
    return ids


def _run_of(scene: Scene, order: int) -> dict[str, Any]:
    return next(row for row in runs(scene) if row["order"] == order)


def _outcome_waits(scene: Scene) -> bool:
    row = scene.session.execute(_SQL["waits_for_row"]).fetchone()
    return bool(row and row["waiting"])


def _decide_reviews(scene: Scene, watch: Watch) -> None:
    act = Act("demo")
    for row in scene.session.execute(_SQL["open_reviews"], {"agents": _AGENTS}).fetchall():
        reason = "; ".join(row["reasons"])
        try:
            if row["proposed"]:
                approve(scene.session, row["id"], act)
                watch.say(f"run {row['job_id']} was held for a person ({reason}): approved")
            else:
                reject(scene.session, row["id"], Act("demo", "it proposes no answer"))
                watch.say(f"run {row['job_id']} was held for a person ({reason}): rejected")
        except OperatorError as error:
            watch.say(f"review {row['id']}: {error}")
