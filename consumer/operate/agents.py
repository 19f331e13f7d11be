"""Agents as people stop and start them. Activation is not here: it needs the topics' end offsets."""

from __future__ import annotations

from dataclasses import dataclass

from consumer import db
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, close_reviews, every, in_transaction, one, send


@dataclass(frozen=True, slots=True)
class Retired:
    """An agent that was retired, and how many of its runs were cancelled by it."""

    agent: str
    cancelled: int


def list_agents(session: db.SyncSession) -> list[Row]:
    """The agents the database knows; columns of the query `agents`."""
    return every(session, "agents", None)


def require_agent(session: db.SyncSession, agent: str) -> None:
    """Refuse a name that the database does not know.

    Raises:
        OperatorError: naming those it knows.
    """
    known = [item["name"] for item in list_agents(session)]
    if agent not in known:
        raise OperatorError(f"the database knows no agent {agent!r}; it knows: {', '.join(known) or 'none'}")


def pause(session: db.SyncSession, agent: str, act: Act) -> None:
    """Stop claiming an agent's runs until it is resumed. Its events are still admitted; its runs under way go on.

    Raises:
        OperatorError: when there is no such agent, or it is retired.
    """
    _switch(session, agent, act, "pause", allowed=("ACTIVE", "PAUSED"), state="PAUSED")


def resume(session: db.SyncSession, agent: str, act: Act) -> None:
    """Let a paused agent's runs be claimed again, whoever paused it.

    Raises:
        OperatorError: when there is no such agent, or it is not paused.
    """
    _switch(session, agent, act, "resume", allowed=("PAUSED",), state="ACTIVE")


def retire(session: db.SyncSession, agent: str, act: Act) -> Retired:
    """End an agent: no event wakes it any more, its live runs are cancelled and their keys freed.

    In several transactions of at most 1,000 runs each; stopping in between and repeating it is safe.

    Raises:
        OperatorError: when there is no such agent, or a run's outcome is being written for longer than a moment.
    """
    _switch(session, agent, act, "retire", allowed=("ACTIVE", "PAUSED", "RETIRED"), state="RETIRED")
    total = 0
    busy = f"agent {agent} is retired, but the outcome of a run of it is being written"
    while (cancelled := in_transaction(session, lambda: _cancel_some(session, agent, act), busy=busy)) is not None:
        total += cancelled
    return Retired(agent, total)


def _cancel_some(session: db.SyncSession, agent: str, act: Act) -> int | None:
    """How many were cancelled; None when no run was left. All of a batch may have ended before they were locked."""
    row = one(session, "cancel_some", {"agent": agent, "error": f"agent {agent} was retired by {act.name}"})
    assert row is not None
    if row["live"] == 0:
        return None
    ids = row["moved"]
    if ids:
        close_reviews(session, ids, act)
        audit(session, act, "cancel", f"agent {agent}", runs=len(ids), first=min(ids), last=max(ids))
    return len(ids)


def _switch(
    session: db.SyncSession, agent: str, act: Act, action: str, *, allowed: tuple[str, ...], state: str
) -> None:
    def work() -> None:
        send(session, "lock_against_admission")
        row = one(session, "lock_agent", (agent,))
        if row is None:
            require_agent(session, agent)
            raise OperatorError(f"agent {agent!r} has just appeared; try again")
        if row["state"] not in allowed:
            back = f"; `rowcall agents activate {agent}` brings it back" if row["state"] == "RETIRED" else ""
            raise OperatorError(f"agent {agent} is {row['state']}; it cannot be {action}d{back}")
        send(session, "set_agent_state", {"name": agent, "state": state, "reason": act.why})
        if state == "ACTIVE":
            send(session, "hint")
        audit(session, act, action, f"agent {agent}", before=row["state"])

    in_transaction(session, work, busy=f"agent {agent} is being activated or its events are being admitted")
