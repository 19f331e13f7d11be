"""Bypasses: a time in which an agent's answers of the medium tier are let through, each recorded as decided by it.

Promises: never the high tier, never an answer that breaks schema or rules, never longer than a shift, always with a
reason and a name in the audit.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from consumer import db
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, every, in_transaction, one, send

# The same bound stands in the table.
LONGEST: Final = dt.timedelta(hours=8)


@dataclass(frozen=True, slots=True)
class Bypass:
    """A bypass that was granted, and when it ends by itself."""

    id: int
    agent: str
    tier: str
    until: dt.datetime


def bypass(session: db.SyncSession, agent: str, act: Act, *, tier: str, time: dt.timedelta) -> Bypass:
    """Let the agent's answers of the tier through for `time`. Reviews that are open already wait for a person.

    Raises:
        OperatorError: another tier than medium, too long a time, no reason, or no such agent.
    """
    if tier != "medium":
        why = (
            "a high-tier answer has no effect before its approval" if tier == "high" else "only medium waits for review"
        )
        raise OperatorError(f"the tier {tier} cannot be bypassed: {why}", code="tier_too_high")
    if not dt.timedelta() < time <= LONGEST:
        raise OperatorError(f"a bypass lasts up to {LONGEST.total_seconds() / 3600:g} hours; {time} was asked for")
    if act.why is None or not act.why.strip():
        raise OperatorError("a bypass needs a reason: --reason TEXT", code="reason_missing")

    def work() -> Bypass:
        found = one(session, "hold_agent_state", (agent,))
        if found is None or found["state"] == "RETIRED":
            raise OperatorError(f"the database knows no agent {agent!r} that is not retired")
        given = {"agent": agent, "tier": tier, "seconds": time.total_seconds(), "reason": act.why, "actor": act.name}
        row = one(session, "grant_bypass", given)
        assert row is not None
        audit(session, act, "bypass", f"agent {agent}", bypass=row["id"], tier=tier, until=row["until"].isoformat())
        return Bypass(row["id"], agent, tier, row["until"])

    return in_transaction(session, work, busy=f"agent {agent} is being changed")


def end_bypass(session: db.SyncSession, bypass_id: int, act: Act) -> None:
    """End a bypass before its time. What it has let through stays so.

    Raises:
        OperatorError: there is none of this ID, or it has ended.
    """

    def work() -> None:
        row = one(session, "lock_bypass", (bypass_id,))
        if row is None:
            raise OperatorError(f"there is no bypass {bypass_id}")
        if row["ended_at"] is not None:
            raise OperatorError(
                f"bypass {bypass_id} was ended by {row['ended_by']} at {row['ended_at']:%Y-%m-%d %H:%M:%S%z}",
                code="decided_already",
            )
        if row["over"]:
            raise OperatorError(f"bypass {bypass_id} is over since {row['until']:%Y-%m-%d %H:%M:%S%z}")
        send(session, "end_bypass", {"id": bypass_id, "actor": act.name})
        audit(session, act, "end_bypass", f"agent {row['agent']}", bypass=bypass_id)

    in_transaction(session, work, busy=f"answers pass by bypass {bypass_id}")


def list_bypasses(session: db.SyncSession, *, agent: str | None = None, limit: int = 50) -> list[Row]:
    """Bypasses, newest first, with how many answers each has let through."""
    return every(session, "bypasses", {"agent": agent, "limit": limit})
