"""Effects as people see and resolve them: what may have happened outside, and a person's word on whether it did.

Promises: nothing is sent or published by resolving; the first word stands; a run that was held for its effects is
queued again when the last of them is resolved, in the same transaction, and a worker goes on with it. Lock order: the
run, then the effect, then its review and lane.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.agents.door import answer_text
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, decide, every, held_job, in_transaction, job_busy, move, one, send
from consumer.records import encode

STATES: Final = ("PLANNED", "SENT", "CONFIRMED", "UNKNOWN", "FAILED")
HELD: Final = "effect_unknown"


@dataclass(frozen=True, slots=True)
class EffectReport:
    """One effect and the requests made for it."""

    effect: Row
    calls: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a word on an effect did: its state, the run's, and the effects for which the run still waits."""

    effect: str
    job_id: int
    state: str
    job_status: str
    waits_for: tuple[str, ...] = ()


def list_effects(
    session: db.SyncSession,
    *,
    state: str | None = None,
    agent: str | None = None,
    job_id: int | None = None,
    limit: int = 50,
) -> list[Row]:
    """Effects, those nobody knows the end of first, then newest first.

    Raises:
        OperatorError: for a state there is not.
    """
    if state is not None and state.upper() not in STATES:
        raise OperatorError(f"there is no state {state}; the states are {', '.join(STATES)}")
    wanted = {"state": state and state.upper(), "agent": agent, "job": job_id, "limit": limit}
    return every(session, "list_effects", wanted)


def show_effect(session: db.SyncSession, effect: str) -> EffectReport:
    """One effect, whole.

    Raises:
        OperatorError: when there is none of this ID.
    """
    found = one(session, "effect", (_id(effect),))
    if found is None:
        raise OperatorError(f"there is no effect {effect}")
    return EffectReport(found, every(session, "calls_of_effect", (_id(effect),)))


def resolve_effect(session: db.SyncSession, effect: str, act: Act, *, happened: bool, answer: Any = None) -> Resolved:
    """Say whether an effect happened; `answer`, any JSON value, is what the agent's call then returns.

    What did not happen is sent by the run when it goes on.

    Raises:
        OperatorError: it is known already, a worker has the run, or an answer is given for what did not happen.
    """
    if answer is not None and not happened:
        raise OperatorError("what did not happen has no answer: --answer goes with --happened")
    found = one(session, "job_of_effect", (_id(effect),))
    if found is None:
        raise OperatorError(f"there is no effect {effect}")
    job_id = found["job_id"]
    return in_transaction(
        session, lambda: _resolve(session, job_id, effect, act, happened, answer), busy=job_busy(job_id)
    )


def _resolve(session: db.SyncSession, job_id: int, effect: str, act: Act, happened: bool, answer: Any) -> Resolved:
    job = held_job(session, job_id)
    row = one(session, "lock_effect", (_id(effect),))
    assert row is not None
    _refuse_known(row)
    if job["status"] == "RUNNING":
        raise OperatorError(
            f"job {job_id} is RUNNING: its worker is about to find out. Cancel it first, or wait until it ends",
            code="busy",
        )
    state = "CONFIRMED" if happened else "FAILED"
    send(
        session,
        "resolve_effect",
        {
            "id": _id(effect),
            "state": state,
            "actor": act.name,
            "status": 200 if happened else None,
            "response": _answer(answer) if happened else None,
        },
    )
    audit(session, act, "resolve_effect", f"job {job_id}", effect=row["id"], step=row["step"], happened=happened)
    waits_for = tuple(item["id"] for item in every(session, "unresolved_effects", (job_id,)))
    review = one(session, "effect_review", (job_id,))
    if review is None or waits_for or job["status"] != "WAITING_REVIEW":
        return Resolved(row["id"], job_id, state, job["status"], waits_for)
    reason = f"effect {row['id']} {'happened' if happened else 'did not happen'}" + (f": {act.why}" if act.why else "")
    decide(session, review["id"], "CLOSED", act, reason=reason)
    # The worker that resumes counts an attempt; going on with the one that was held costs none.
    move(session, job_id, "PENDING", attempts=-1)
    return Resolved(row["id"], job_id, state, "PENDING")


def _refuse_known(row: Row) -> None:
    if row["state"] in ("CONFIRMED", "FAILED"):
        what = "happened" if row["state"] == "CONFIRMED" else "did not happen"
        raise OperatorError(
            f"effect {row['id']} {what}, as {row['resolved_by']} said at {row['settled_at']:%Y-%m-%d %H:%M:%S%z}; "
            "the first word stands",
            code="decided_already",
        )
    if row["state"] == "PLANNED":
        raise OperatorError(f"effect {row['id']} was never sent; there is nothing to resolve")


def _answer(answer: Any) -> str:
    """The stored form of an answer, as `effects.answers` reads it; a status of its own, for no server gave it."""
    text = _json(answer)
    headers = {"content-type": "application/json"}
    return encode({"status": 200, "headers": headers, "truncated": False, "text": text})


def _json(answer: Any) -> str:
    try:
        return answer_text(answer)
    except ValueError as error:
        raise OperatorError(f"the answer cannot be stored as JSON: {error}") from error


def _id(effect: str) -> uuid.UUID:
    try:
        return uuid.UUID(effect)
    except ValueError as error:
        raise OperatorError(f"{effect!r} is no effect's ID; `rowcall effects list` has them") from error
