"""From what is observed and what is known to the state of a subject. Pure: no clock, no database.

Before it, `observe`; after it, `store` writes what has changed. Promises: nothing is bad before the moment its fault
names; in a quiet time nothing becomes worse; what a person paused is paused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from consumer.watchdog.observation import BAD, Fault, Known, Observation

# A late run is all there is to tell of it until its lease ends, and so is a review that waits for too long until it is
# about to expire; other lateness is the way to overdue.
_LATE_IS_TOLD: Final = frozenset({"run", "review"})
_TOLD: Final = frozenset(BAD) - {"late"}
# Only from here something can be new; afterwards it has been judged once, and is well where nothing is wrong.
_BEGINNING: Final = frozenset({"new", "paused"})


@dataclass(frozen=True, slots=True)
class Decision:
    """The state a subject is in now.

    Args:
        told: whether the new state is one that somebody must know of.
        alert: whether the change is to be told: a state somebody must know of, or the end of one.
        due_at: the moment from which it holds; of a subject without a fault, when it is due next.
    """

    subject: str
    old: str
    new: str
    told: bool
    alert: bool
    due_at: dt.datetime | None
    last_beat_at: dt.datetime | None
    run_id: int | None
    message: str

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.old != self.new


def decide(seen: Observation, known: Known, now: dt.datetime, *, quiet: bool = False) -> Decision:
    """The state of a subject at the moment `now`; in a `quiet` time it gets no worse."""
    fault = worst(seen.faults, now)
    if known.paused or seen.paused:
        fault, new = None, "paused"
    elif fault is not None:
        new = known.state if quiet or _still(seen, known, fault) else fault.state
    else:
        new = "up" if seen.heard or known.state not in _BEGINNING else "new"
    told = new in _TOLD or (new == "late" and seen.kind in _LATE_IS_TOLD)
    return Decision(
        subject=seen.subject,
        old=known.state,
        new=new,
        told=told,
        alert=told or (known.told and new == "up"),
        due_at=seen.due_at if fault is None else fault.at,
        last_beat_at=seen.last_beat_at,
        run_id=None if fault is None else fault.run_id,
        message=_message(seen, known, fault, new),
    )


def _still(seen: Observation, known: Known, fault: Fault) -> bool:
    """Whether it stays what somebody was told: late is less and is not told, so its end would not be either."""
    return fault.state == "late" and seen.kind not in _LATE_IS_TOLD and known.told and known.state in _TOLD


def worst(faults: Iterable[Fault], now: dt.datetime) -> Fault | None:
    """The fault that counts: the worst of those whose moment has come, and of these the earliest."""
    come = [fault for fault in faults if fault.at <= now]
    return min(come, key=lambda fault: (BAD.index(fault.state), fault.at), default=None)


def next_moment(found: Iterable[Observation], now: dt.datetime) -> dt.datetime | None:
    """When the next fault will be one; None where none is foreseen."""
    return min((fault.at for seen in found for fault in seen.faults if fault.at > now), default=None)


def _message(seen: Observation, known: Known, fault: Fault | None, new: str) -> str:
    if fault is not None:
        return fault.message
    if new == "up" and known.state in BAD:
        return f"{seen.subject} is well again: {seen.note or f'it was {known.state}'}"
    return seen.note
