"""The last act: what orders cost drifts; a report and a remediation are held until a person has approved them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.demo.acts import USUAL, commit_small_orders
from consumer.demo.scene import Scene
from consumer.demo.watch import Watch
from consumer.errors import OperatorError, Outage
from consumer.operate.act import Act
from consumer.operate.deciding import approve, reject

_SQL = db.queries("demo")
_AGENTS: Final = ["drift-investigate", "drift-remediate"]
# Three spreads above what was learnt: sure within a few dozen orders.
_DRIFTED: Final = USUAL + 12
_ORDERS: Final = 300
# From a commit over Connect and the detector; and two answers of the model, which takes minutes on a busy machine.
_TOLD_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Drifted:
    """What the act showed: events by level, what was written before anybody had approved, and after."""

    warnings: int
    criticals: int
    held: int
    written_before: int
    reports: int
    actions: int
    rejected: int


def drift(scene: Scene, watch: Watch) -> Drifted:
    """Let the amounts drift, wait for both agents' reviews, decide them as a person would, and wait for what follows.

    Raises:
        OperatorError: a run failed for good.
        Outage: an event or an answer did not come in time.
    """
    watch.say(f"{_ORDERS} more small orders, and now they cost {_DRIFTED:g} instead of {USUAL:g}: the detector watches")
    commit_small_orders(scene, _ORDERS, _DRIFTED)
    _until(scene, lambda row: row["warnings"] and row["criticals"], _TOLD_SECONDS, "the drift's two events")
    watch.say("drift.warning wakes drift-investigate, drift.critical wakes drift-remediate")
    _until(scene, lambda _: len(_reviews(scene)) == len(_AGENTS), _ANSWER_SECONDS, "the reviews of report and plan")
    before = _counted(scene)
    rejected = 0
    for review in _reviews(scene):
        why = "; ".join(review["reasons"])
        watch.say(f"{review['agent']}, run {review['job_id']}, waits for a person, nothing is done yet: {why}"[:300])
        if review["proposed"]:
            approve(scene.session, review["id"], Act("demo", "seen in the demo"))
        else:
            rejected += 1
            reject(scene.session, review["id"], Act("demo", "it proposes no answer"))
    _until(scene, lambda row: row["ended"] == len(_AGENTS), _TOLD_SECONDS, "what was approved to be written")
    after = _counted(scene)
    return Drifted(
        warnings=after["warnings"],
        criticals=after["criticals"],
        held=len(_AGENTS),
        written_before=before["reports"] + before["actions"],
        reports=after["reports"],
        actions=after["actions"],
        rejected=rejected,
    )


def faults_of(found: Drifted) -> list[str]:
    """What is not as it must be."""
    faults = []
    if (found.warnings, found.criticals) != (1, 1):
        faults.append(f"one drift was told by {found.warnings} warnings and {found.criticals} critical events")
    if found.written_before:
        faults.append(f"{found.written_before} rows were written about the drift before anybody had approved them")
    if found.reports + found.actions != found.held - found.rejected:
        faults.append(f"{found.held - found.rejected} answers were approved, {found.reports + found.actions} written")
    return faults


def _until(scene: Scene, done: Callable[[Mapping[str, Any]], Any], seconds: float, what: str) -> None:
    give_up = time.monotonic() + seconds
    while True:
        row = _counted(scene)
        if row["failed"]:
            raise OperatorError(f"a run about the drift ended: {row['failed']}")
        if done(row):
            return
        scene.check_workers()
        if time.monotonic() > give_up:
            raise Outage(f"waited {seconds:g} s for {what}; see {scene.logs}", dependency="demo")
        time.sleep(0.25)


def _reviews(scene: Scene) -> list[dict[str, Any]]:
    return list(scene.session.execute(_SQL["open_reviews"], {"agents": _AGENTS}).fetchall())


def _counted(scene: Scene) -> Mapping[str, Any]:
    return scene.session.execute(_SQL["drift"], {"agents": _AGENTS}).fetchone() or {}
