"""`rowcall execute` as a process that dies or freezes around an effect: where EFFECTS_AT says, at hit EFFECTS_HITS.

    python -m tests.agents.effects_worker execute

before_plan: the row is written and not committed. after_plan: PLANNED is committed. after_sent: SENT is committed, no
byte has left. after_act: the other system has acted and answered, nothing is recorded. after_confirm: CONFIRMED is
committed, the next step has not begun. EFFECTS_FREEZE=1 stops the process there (SIGSTOP) instead, once; before_word is
for that: SENT is committed, and the worker has not yet looked at its clock.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

from consumer import db, effects
from consumer.cli import main
from consumer.effects import Entry, Settled
from consumer.executor.http_step import HttpStep
from consumer.executor.outside import Outside
from consumer.http import outward

WHERE = os.environ.get("EFFECTS_AT", "")
_SIGNAL = signal.SIGSTOP if os.environ.get("EFFECTS_FREEZE") else signal.SIGKILL
_left = [int(os.environ.get("EFFECTS_HITS", "1"))]

_plan, _planned, _settle = effects.plan, HttpStep._planned, HttpStep._settle
_trace, _send, _written = outward._Journey.trace, outward.Outward.send, Outside.written


def here() -> None:
    """The end, at the hit that was asked for."""
    _left[0] -= 1
    if _left[0] == 0:
        os.kill(os.getpid(), _SIGNAL)


async def plan(session: db.Session, *arguments: Any) -> Entry:
    """Written, not committed."""
    entry = await _plan(session, *arguments)
    here()
    return entry


async def planned(self: HttpStep) -> Entry:
    """Committed."""
    entry = await _planned(self)
    here()
    return entry


async def trace(self: outward._Journey, event: str, details: Any) -> None:
    """The connection stands and SENT is committed."""
    await _trace(self, event, details)
    if event == outward._LEAVING:
        here()


async def written(self: Outside, *arguments: Any, patient: bool = True) -> Any:
    """SENT is committed: the only write that is not patient."""
    result = await _written(self, *arguments, patient=patient)
    if not patient:
        here()
    return result


async def send(self: outward.Outward, request: outward.Outgoing, leaving: outward.Leaving) -> outward.Incoming:
    """The answer is there."""
    came = await _send(self, request, leaving)
    if request.method == "POST":
        here()
    return came


async def settle(self: HttpStep, entry: Entry, settled: Settled, *arguments: Any) -> None:
    """Confirmed."""
    await _settle(self, entry, settled, *arguments)
    if settled.state == "CONFIRMED":
        here()


PATCHES = {
    "before_plan": (effects, "plan", plan),
    "after_plan": (HttpStep, "_planned", planned),
    "before_word": (Outside, "written", written),
    "after_sent": (outward._Journey, "trace", trace),
    "after_act": (outward.Outward, "send", send),
    "after_confirm": (HttpStep, "_settle", settle),
}

if WHERE:
    patch.object(*PATCHES[WHERE]).start()

if __name__ == "__main__":
    sys.exit(main())
