"""Agents that are paused: a pause without an end is a person's and no fault, one with an end the machine's and is one.

Before it, `judge` says what is expected of an agent and its queue; after it, `decide`. Pure. Promises: an agent whose
model calls are refused is one fault however often its pause ends and comes back; its queue goes on being watched.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from consumer.watchdog.observation import Fault, Known, Observation, Rules, moment

Row = Mapping[str, Any]


def agent(
    row: Row, seen: Observation | None, rules: Rules, known: Known | None, now: dt.datetime
) -> Observation | None:
    """What is `seen` of an agent, and its pause; None where nothing is expected of it and nothing was wrong."""
    subject, last = f"agent:{row['name']}", row["success_at"]
    if row["state"] == "PAUSED" and row["paused_until"] is None:
        if seen is not None or known is None:
            return seen
        return Observation(subject, last, paused=True, note=row["state_reason"] or "the agent is paused")
    refused = _refused(row, rules, known, now)
    if seen is not None:
        return replace(seen, faults=(*refused, *seen.faults))
    if not refused and known is None:
        return None
    return Observation(subject, last, faults=refused, note="it is not paused any more")


def queue(row: Row, seen: Observation, known: Known | None) -> Observation | None:
    """What is `seen` of an agent's queue; while a person pauses the agent, nothing is expected of it."""
    if row["by_hand"]:
        return None if known is None else Observation(seen.subject, paused=True, note="a person has paused its agent")
    if not row["refused"]:
        return seen
    why = f"; its agent is paused: {row['refused']}"
    return replace(seen, faults=tuple(replace(fault, message=fault.message + why) for fault in seen.faults))


def _refused(row: Row, rules: Rules, known: Known | None, now: dt.datetime) -> tuple[Fault, ...]:
    """The fault of an agent that the machine has paused, for a time: all its model calls are refused.

    The pause ends by itself and comes back after the next call; in between it is the same fault, until a run succeeds
    or it was not paused for a while.
    """
    if row["state"] == "PAUSED":
        message = (
            f"agent {row['name']} is paused until {moment(row['paused_until'])}, because its model calls are refused: "
            f"{row['state_reason']}; put that right, then `rowcall agents resume {row['name']}`"
        )
        return (Fault("failed", row["updated_at"], message),)
    if known is None or known.state != "failed" or known.due_at is None:
        return ()
    succeeded = row["success_at"] is not None and row["success_at"] > known.due_at
    if succeeded or now > row["updated_at"] + dt.timedelta(seconds=rules.calm):
        return ()
    return (Fault("failed", known.due_at, known.message),)
