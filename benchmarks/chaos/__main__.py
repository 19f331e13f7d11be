"""`python -m benchmarks.chaos`: load and faults for CHAOS_SECONDS (600), then the verdict in build/chaos.json.

Exit codes: 0 when nothing was lost or doubled and every fault was survived; 1 otherwise, with the orders named; 2 for a
CHAOS_SECONDS that is no number; 3 when the chaos itself could not be carried out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import machine
from benchmarks.chaos.evidence import Journal, Log, repeated_calls
from benchmarks.chaos.faults import FAULTS, Fault, rota
from benchmarks.chaos.scene import RECEIVER_SECONDS, WORKERS, Scene, opened
from benchmarks.chaos.verdict import Verdict, judge
from benchmarks.figures import NotMeasured
from benchmarks.services import Services

OUTPUT: Final = Path(__file__).parents[2] / "build" / "chaos.json"
IN_FLIGHT: Final = 100
"""Runs under way, at least, when a fault strikes."""
AIM_SECONDS: Final = 90.0
RECOVERY_SECONDS: Final = 120.0
SETTLE_SECONDS: Final = 180.0
"""Without any progress for so long after the load, what is missing is lost."""
# Seconds of load for a round of all faults: ten minutes have six of each.
ROUND_SECONDS: Final = 100.0
# Outcomes outstanding at which the load is eased, so that a busy machine ends in time.
BEHIND: Final = 3000


class Chaos:
    """One run of it on an open scene."""

    def __init__(self, scene: Scene, seconds: float) -> None:
        self._scene = scene
        self._seconds = seconds
        self._journal = Journal(scene.journal)
        self._log = Log(scene.settings)
        self._began = time.monotonic()
        self._said = 0.0
        self.faults: list[Fault] = []
        self.context: dict[str, Any] = {}

    def run(self) -> Verdict:
        """Load, strike, settle, judge."""
        self._scene.load.start()
        self._scene.workers.start()
        if self._await_effect(0, AIM_SECONDS) is None:
            raise NotMeasured(
                f"no row took effect within {AIM_SECONDS:g} s, before any fault; ends of workers by exit code: "
                f"{dict(self._scene.workers.ends)}, the last lines of one:\n{self._scene.workers.last_words()}"
            )
        self._began = time.monotonic()
        kinds = rota(max(1, round(self._seconds / ROUND_SECONDS)))
        for number, kind in enumerate(kinds):
            self._pass_time(self._began + self._seconds * number / len(kinds))
            self._strike(kind, f"{number + 1}/{len(kinds)}")
        self._pass_time(self._began + self._seconds)
        self._scene.load.stop()
        self._say(f"load over: {self._scene.load.committed} rows committed; waiting for the last outcomes")
        return self._settle()

    def _strike(self, kind: str, number: str) -> None:
        deadline = time.monotonic() + AIM_SECONDS
        while (in_flight := self._scene.in_flight()) < IN_FLIGHT:
            if time.monotonic() > deadline:
                raise NotMeasured(f"only {in_flight} runs in flight after {AIM_SECONDS:g} s, {IN_FLIGHT} are needed")
            self._pass_time(time.monotonic() + 0.2)
        self._say(f"fault {number} {kind} with {in_flight} runs in flight")
        struck = time.monotonic()
        note = FAULTS[kind](self._scene)
        over = time.monotonic()
        recovered = self._await_effect(self._scene.load.committed, RECOVERY_SECONDS)
        self.faults.append(Fault(kind, struck - self._began, in_flight, over - struck, recovered, note))
        came = "NO RECOVERY" if recovered is None else f"new rows take effect after {recovered:.1f} s"
        self._say(f"      {note}: {over - struck:.1f} s; {came}")

    def _await_effect(self, first: int, seconds: float) -> float | None:
        """Seconds until an order from `first` on is acted on by the receiver; None when none is in time."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            self._pass_time(time.monotonic() + 0.1)
            if self._journal.last >= first:
                return time.monotonic() - began
        return None

    def _pass_time(self, until: float) -> None:
        while True:
            self._journal.read()
            behind = self._scene.load.committed - len(self._journal.acted)
            self._scene.load.ease(behind > BEHIND)
            if time.monotonic() - self._said > 10:
                self._said = time.monotonic()
                self._say(f"committed {self._scene.load.committed}, acted on {len(self._journal.acted)}")
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(0.2, left))

    def _settle(self) -> Verdict:
        """Wait while outcomes still come, then judge what is there."""
        committed = set(range(self._scene.load.committed))
        seen, moved = -1, time.monotonic()
        while True:
            self._pass_time(time.monotonic() + 3)
            outcomes = {"row": self._log.ledger(), "event": self._log.results(), "effect": self._journal.acted}
            in_log = self._log.orders()
            verdict = judge(committed | in_log, {**outcomes, "capture": Counter(in_log)})
            count = sum(len(found) for found in outcomes.values()) + len(in_log)
            if count > seen:
                seen, moved = count, time.monotonic()
            if not verdict.lost or time.monotonic() - moved > SETTLE_SECONDS:
                break
        # A second outcome would come a lease later at most: look once more.
        time.sleep(self._scene.settings.lease_seconds + RECEIVER_SECONDS)
        self._journal.read()
        outcomes = {"row": self._log.ledger(), "event": self._log.results(), "effect": self._journal.acted}
        in_log = self._log.orders()
        verdict = judge(committed | in_log, {**outcomes, "capture": Counter(in_log)})
        self._describe(verdict)
        return verdict

    def _describe(self, verdict: Verdict) -> None:
        calls, repeats = repeated_calls(self._scene.calls)
        load = self._scene.load
        self.context = {
            "rows_committed": load.committed,
            "transactions_repeated_by_the_load": load.repeated,
            "outcomes": verdict.detail,
            "records_sent_again": self._log.resent,
            "effect_requests": {"received": self._journal.requests, "of_them_repeated": self._journal.repeats},
            "model_calls": {"received": calls, "of_them_repeated": repeats},
            "worker_ends": {str(code): count for code, count in self._scene.workers.ends.items()},
            "faults_by_kind": Counter(fault.kind for fault in self.faults),
            "in_flight_least": min(fault.in_flight for fault in self.faults),
            "faults": [fault.raw() for fault in self.faults],
        }

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)


def explain(scene: Scene, orders: list[int]) -> None:
    """What Rowcall's own tables say about orders that went wrong; for whoever looks for the cause."""
    keys = [str(order) for order in orders[:10]]
    query = (
        "SELECT key_text, id, status, attempt_count, lease_epoch, error_code, last_error, created_at, updated_at"
        " FROM rowcall.agent_jobs WHERE key_text = ANY (%s) ORDER BY id"
    )
    try:
        with scene.session() as session:
            for row in session.execute(query, (keys,)).fetchall():
                print("   ", {name: str(value) for name, value in row.items()}, file=sys.stderr)
            for row in session.execute("SELECT * FROM rowcall.dead_letters LIMIT 10").fetchall():
                print("    dead letter", {name: str(value)[:200] for name, value in row.items()}, file=sys.stderr)
    except psycopg.OperationalError as error:
        print(f"    the database does not answer: {error}", file=sys.stderr)


def main() -> int:
    """Run the chaos and write what came of it."""
    try:
        seconds = float(os.environ.get("CHAOS_SECONDS") or 600)
    except ValueError:
        print("CHAOS_SECONDS must be a number of seconds", file=sys.stderr)
        return 2
    services = Services(quick=False)
    try:
        with opened(services) as scene:
            chaos = Chaos(scene, seconds)
            verdict = chaos.run()
            if not verdict.clean:
                explain(scene, sorted(verdict.lost | verdict.doubled))
    except NotMeasured as error:
        print(f"the chaos could not be carried out: {error}", file=sys.stderr)
        return 3
    finally:
        if not os.environ.get("CHAOS_KEEP"):
            services.close()
    return _written(chaos, verdict, seconds)


def _written(chaos: Chaos, verdict: Verdict, seconds: float) -> int:
    survived = sum(1 for fault in chaos.faults if fault.recovered is not None)
    figures = {"jobs_lost": len(verdict.lost), "jobs_doubled": len(verdict.doubled), "faults_survived": survived}
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    context = {"at": at, "seconds": seconds, "workers": WORKERS, **machine.describe(), **chaos.context}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({**figures, "_context": context}, indent=2) + "\n")
    for name, value in figures.items():
        print(f"{name:20}{value:>8}")
    for name, orders in (("lost", verdict.lost), ("doubled", verdict.doubled)):
        if orders:
            print(f"{name}: orders {sorted(orders)[:20]}", file=sys.stderr)
    print(f"written to {OUTPUT.relative_to(OUTPUT.parents[1])}")
    return 0 if verdict.clean and survived == len(chaos.faults) else 1


if __name__ == "__main__":
    sys.exit(main())
