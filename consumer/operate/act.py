"""One act of a person: a transaction on one run, with its audit row, repeated when Postgres picks it as a victim."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from consumer import db
from consumer.errors import OperatorError, TransactionConflict
from consumer.records import encode
from consumer.records.jobs import storable

SQL: Final = {**db.queries("operate"), **db.queries("reviews")}
# A conflict means that two sessions met on the same rows; each repeat lets the other one end first.
_TRIES: Final = 5
# Seconds, together with that of one wait for a lock (query `wait_for_locks`): no person waits longer than both.
_PATIENCE: Final = 5.0

Row = Mapping[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, and the reason they give; both stand in the audit row."""

    actor: str
    reason: str | None = None

    def __post_init__(self) -> None:
        if not self.actor.strip():
            raise OperatorError("say who you are: --by NAME")

    @property
    def name(self) -> str:
        """The actor as it is stored."""
        return storable(self.actor.strip())

    @property
    def why(self) -> str | None:
        """The reason as it is stored."""
        return None if self.reason is None else storable(self.reason)


def one(session: db.SyncSession, query: str, parameters: Any) -> Row | None:
    """The first row of a named query."""
    with db.translated():
        return session.execute(SQL[query], parameters).fetchone()


def every(session: db.SyncSession, query: str, parameters: Any) -> list[Row]:
    """All rows of a named query."""
    with db.translated():
        return list(session.execute(SQL[query], parameters))


def send(session: db.SyncSession, query: str, parameters: Any = None) -> None:
    """A named query whose rows do not matter."""
    with db.translated():
        session.execute(SQL[query], parameters)


def in_transaction(session: db.SyncSession, work: Callable[[], _T], *, busy: str) -> _T:
    """`work` in a transaction, repeated while Postgres refuses it as a victim; `busy` says who else may be at it.

    Raises:
        OperatorError: when it is still refused after several tries, or after 5 s for a lock that another session holds.
    """
    started = time.monotonic()
    for tries in range(1, _TRIES + 1):
        try:
            with db.transaction(session):
                send(session, "wait_for_locks")
                return work()
        except TransactionConflict as error:
            if tries == _TRIES or time.monotonic() - started >= _PATIENCE:
                raise OperatorError(f"{busy} right now; try again", code="busy") from error
    raise AssertionError("the last try returns or raises")


def job_busy(job_id: int) -> str:
    """Why a run cannot be held: only its outcome holds it for longer than a moment."""
    return f"job {job_id}'s outcome is being written"


def held_job(session: db.SyncSession, job_id: int) -> Row:
    """The run, locked until the transaction ends.

    Raises:
        OperatorError: when there is none of this ID.
    """
    row = one(session, "lock_job", (job_id,))
    if row is None:
        raise OperatorError(f"there is no job {job_id}")
    return row


def refuse_retired(session: db.SyncSession, agent: str) -> None:
    """Refuse an agent that has ended, and hold off its end until this transaction has; after the run's lock.

    Raises:
        OperatorError: no worker would ever claim a run of it.
    """
    row = one(session, "hold_agent_state", (agent,))
    if row is not None and row["state"] == "RETIRED":
        raise OperatorError(f"agent {agent!r} is retired and runs no more", code="agent_retired")


def move(
    session: db.SyncSession,
    job_id: int,
    status: str,
    *,
    code: str | None = None,
    error: str | None = None,
    delay: float | None = 0.0,
    attempts: int = 0,
) -> None:
    """Move a held run through settle; `delay` in seconds from now, `attempts` is added to its count.

    Raises:
        OperatorError: when the state machine forbids it.
    """
    parameters = {"id": job_id, "status": status, "code": code, "error": error, "delay": delay, "attempts": attempts}
    if one(session, "settle", parameters) is None:
        raise OperatorError(f"job {job_id} may not become {status} from where it is")
    send(session, "hint")


def decide(
    session: db.SyncSession,
    review_id: int,
    state: str,
    act: Act,
    *,
    digest: str | None = None,
    edited: bool = False,
    group: str | None = None,
    reason: str | None = None,
) -> None:
    """Write the decision about a held review; its reason is the act's unless `reason` says more."""
    decision = {"id": review_id, "state": state, "actor": act.name, "reason": act.why if reason is None else reason}
    send(session, "decide", {**decision, "digest": digest, "edited": edited, "group": group})


def close_reviews(session: db.SyncSession, job_ids: list[int], act: Act) -> None:
    """Close the open reviews of runs that ended without a decision."""
    send(session, "close_reviews", {"ids": job_ids, "actor": act.name, "reason": act.why})


def audit(session: db.SyncSession, act: Act, action: str, subject: str, **detail: Any) -> None:
    """The audit row of this act."""
    if act.why is not None:
        detail["reason"] = act.why
    send(session, "audit", {"actor": act.name, "action": action, "subject": subject, "detail": encode(detail)})
