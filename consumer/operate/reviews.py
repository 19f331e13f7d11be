"""Reviews: answers that were held back, and the decision of a person about each.

Approving sets the answer on the run and queues it again: a worker resumes it at WRITE_RESULT, for only a worker runs
agent code. Promises: the first decision wins and any later one is told so; a run is decided once, in one transaction
with its review and its audit row. Lock order: the run, then its review, then its lane.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from consumer import db
from consumer.agents.door import answer_text, read_answer_text
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, every, held_job, in_transaction, job_busy, move, one, send

STATES: Final = ("OPEN", "APPROVED", "REJECTED", "CLOSED")


@dataclass(frozen=True, slots=True)
class ReviewReport:
    """One review: the model's text as received, why it was held, and the answer it proposes, None if unreadable."""

    review: Row
    reasons: Sequence[str]
    raw_answer: str | None
    proposed_answer: Any


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision did."""

    review_id: int
    job_id: int
    state: str
    edited: bool = False


def list_reviews(
    session: db.SyncSession, *, state: str | None = "OPEN", agent: str | None = None, limit: int = 50
) -> list[Row]:
    """Reviews, the longest waiting first; with `state` None decided ones follow.

    Raises:
        OperatorError: for a state there is not.
    """
    if state is not None and state.upper() not in STATES:
        raise OperatorError(f"there is no review state {state}; the states are {', '.join(STATES)}")
    return every(session, "list_reviews", {"state": state and state.upper(), "agent": agent, "limit": limit})


def show_review(session: db.SyncSession, review_id: int) -> ReviewReport:
    """One review, whole.

    Raises:
        OperatorError: when there is none of this ID.
    """
    row = one(session, "review", (review_id,))
    if row is None:
        raise OperatorError(f"there is no review {review_id}")
    proposed = row["proposed_answer"]
    return ReviewReport(
        row, tuple(row["reasons"]), row["raw_answer"], None if proposed is None else json.loads(proposed)
    )


def approve(
    session: db.SyncSession,
    review_id: int,
    act: Act,
    *,
    answer: Any = None,
    schema: type[BaseModel] | None = None,
) -> Decided:
    """Let a run write its answer, or `answer` in its place (any JSON value; None takes the proposed one).

    With `schema`, the agent's answer model, the answer is checked here too; the worker checks it in any case.

    Raises:
        OperatorError: decided already, nothing proposed and nothing given, or the answer breaks the schema.
    """
    return in_transaction(
        session, lambda: _approve(session, review_id, act, answer, schema), busy=_busy(session, review_id)
    )


def reject(session: db.SyncSession, review_id: int, act: Act) -> Decided:
    """Throw the answer away; its run ends as REJECTED and writes nothing.

    Raises:
        OperatorError: when it is decided already.
    """

    def work() -> Decided:
        review = _held_review(session, review_id)
        job_id = review["job_id"]
        send(session, "decide", {"id": review_id, "state": "REJECTED", "actor": act.name, "reason": act.why})
        text = f"rejected by {act.name}" + (f": {act.why}" if act.why else "")
        move(session, job_id, "REJECTED", code="rejected", error=text, delay=None)
        audit(session, act, "reject", f"job {job_id}", review=review_id)
        return Decided(review_id, job_id, "REJECTED")

    return in_transaction(session, work, busy=_busy(session, review_id))


def _approve(session: db.SyncSession, review_id: int, act: Act, answer: Any, schema: type[BaseModel] | None) -> Decided:
    review = _held_review(session, review_id)
    job_id = review["job_id"]
    if review["code"] == "effect_unknown":
        raise OperatorError(
            f"review {review_id} holds no answer: an effect of job {job_id} may have happened. See `rowcall effects "
            f"list --job {job_id}`, then `rowcall effects resolve`"
        )
    text = review["proposed_answer"] if answer is None else _text(answer)
    if text is None:
        raise OperatorError(
            f"review {review_id} proposes no answer ({review['code']}). Give one with --answer, or reject it"
        )
    if schema is not None:
        _check(schema, text)
    send(session, "decide", {"id": review_id, "state": "APPROVED", "actor": act.name, "reason": act.why})
    send(session, "set_answer", {"id": job_id, "answer": text, "actor": act.name})
    # The worker that resumes counts an attempt; approving goes on with the one that was held, so it is given back.
    move(session, job_id, "PENDING", attempts=-1)
    audit(session, act, "approve", f"job {job_id}", review=review_id, edited=answer is not None)
    return Decided(review_id, job_id, "APPROVED", edited=answer is not None)


def _busy(session: db.SyncSession, review_id: int) -> str:
    found = one(session, "job_of_review", (review_id,))
    if found is None:
        raise OperatorError(f"there is no review {review_id}")
    return job_busy(found["job_id"])


def _held_review(session: db.SyncSession, review_id: int) -> Row:
    found = one(session, "job_of_review", (review_id,))
    if found is None:
        raise OperatorError(f"there is no review {review_id}")
    job = held_job(session, found["job_id"])
    review = one(session, "lock_review", (review_id,))
    assert review is not None
    if review["state"] != "OPEN":
        raise OperatorError(
            f"review {review_id} was {review['state']} by {review['decided_by']} at "
            f"{review['decided_at']:%Y-%m-%d %H:%M:%S%z}; the first decision stands",
            code="decided_already",
        )
    if job["status"] != "WAITING_REVIEW":
        raise OperatorError(f"job {job['id']} of review {review_id} is {job['status']} and waits for no decision")
    return review


def _text(answer: Any) -> str:
    try:
        return answer_text(answer)
    except ValueError as error:
        raise OperatorError(f"the answer cannot be stored as JSON: {error}. Give another with --answer") from error


def _check(schema: type[BaseModel], text: str) -> None:
    try:
        read_answer_text(schema, text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors())
        raise OperatorError(
            f"the answer does not fit {schema.__name__}: {wrong}. Give another with --answer"
        ) from error
