"""Decisions about reviews: approve, approve with edits, reject, ask for another attempt; alike ones in a group.

Approving sets the answer on the run and queues it again: a worker resumes it at WRITE_RESULT, for only a worker runs
agent code. Promises: the first decision wins and any later one is told who decided and when; a decision is about the
request with the digest that the person saw; a run is decided once, in one transaction with its review and its audit
row. Lock order: the run, then its review, then its lane.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.agents.door import Agent
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, decide, every, held_job, in_transaction, job_busy, move, one, send
from consumer.operate.edits import answer_json, check, edited
from consumer.records.approval import digest_of

EFFECT_UNKNOWN: Final = "effect_unknown"
# The row was another one than the steps saw: another attempt begins from the first step.
_WHOLE: Final = ("stale_row", "approval_stale")


class _Unset:
    """No answer given; None is one."""


UNSET: Final = _Unset()


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision did."""

    review_id: int
    job_id: int
    state: str
    edited: bool = False


@dataclass(frozen=True, slots=True)
class Alike:
    """Open reviews that ask for the same decision: (review, digest), the longest waiting first."""

    agent: str
    code: str
    tier: str
    requests: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class GroupDecided:
    """What became of each review of a group; `refused` has review → why it was left alone."""

    group: str
    decided: tuple[Decided, ...]
    refused: Mapping[int, str]


def approve(
    session: db.SyncSession,
    review_id: int,
    act: Act,
    *,
    answer: Any = UNSET,
    edits: Mapping[str, Any] | None = None,
    digest: str | None = None,
    agent: Agent | None = None,
) -> Decided:
    """Let a run write its answer, or `answer` in its place, or the proposed one with some fields edited.

    Args:
        answer: any JSON value, None included.
        edits: field → value; a dot goes into a nested object.
        digest: of the request that the person saw; the decision is refused where it is another one by now.
        agent: checks an answer given here by schema and rules; the worker checks it in any case.

    Raises:
        OperatorError: decided already, changed since, nothing proposed and nothing given, the answer breaks schema or
            rules, or it is about an effect whose outcome is unknown.
    """

    def work() -> Decided:
        return _approve(session, review_id, act, _Wish(answer, edits, digest), agent)

    return in_transaction(session, work, busy=_busy(session, review_id))


def reject(session: db.SyncSession, review_id: int, act: Act, *, digest: str | None = None) -> Decided:
    """Throw the answer away; its run ends as REJECTED and writes nothing. The act must give a reason.

    Raises:
        OperatorError: decided already, changed since, or no reason is given.
    """
    reason = _reason(act, "a rejection")

    def work() -> Decided:
        review = _held_review(session, review_id, digest)
        job_id = review["job_id"]
        decide(session, review_id, "REJECTED", act)
        move(session, job_id, "REJECTED", code="rejected", error=f"rejected by {act.name}: {reason}", delay=None)
        audit(session, act, "reject", f"job {job_id}", review=review_id, digest=review["digest"])
        return Decided(review_id, job_id, "REJECTED")

    return in_transaction(session, work, busy=_busy(session, review_id))


def again(session: db.SyncSession, review_id: int, act: Act, *, digest: str | None = None) -> Decided:
    """Ask for another attempt: the run goes back to its model call, and the agent is told the reason.

    The checkpoint of the call, and of steps after it, stays as superseded evidence; earlier steps are not repeated.

    Raises:
        OperatorError: decided already, changed since, no reason is given, or it is about an effect whose outcome is
            unknown.
    """
    _reason(act, "another attempt")

    def work() -> Decided:
        review = _held_review(session, review_id, digest)
        job_id = review["job_id"]
        _refuse_unknown_effect(review)
        decide(session, review_id, "AGAIN", act)
        send(session, "throw_answer", {"id": job_id, "whole": review["code"] in _WHOLE})
        move(session, job_id, "PENDING", attempts=-1)
        audit(session, act, "again", f"job {job_id}", review=review_id, digest=review["digest"])
        return Decided(review_id, job_id, "AGAIN")

    return in_transaction(session, work, busy=_busy(session, review_id))


def alike(session: db.SyncSession, review_id: int, *, limit: int = 1000) -> Alike:
    """The open reviews that ask for the same decision as this one, itself included.

    Alike are requests of the same agent and version, held for the same cause and of the same tier, whose answers make
    the same choices: equal values in fields of few values (Literal, Enum, bool), whatever stands in the others.

    Raises:
        OperatorError: for one that must be decided by itself: of the high tier, of none that is known, or decided.
    """
    row = one(session, "review", (review_id,))
    if row is None:
        raise OperatorError(f"there is no review {review_id}")
    if row["state"] != "OPEN":
        raise _decided_already(review_id, row)
    _refuse_alone(row, review_id)
    rows = every(session, "alike", {"id": review_id, "limit": limit})
    return Alike(row["agent"], row["code"], row["tier"], tuple((found["id"], found["digest"]) for found in rows))


def approve_alike(
    session: db.SyncSession, requests: Sequence[tuple[int, str]], act: Act, *, agent: Agent | None = None
) -> GroupDecided:
    """Approve these (review, digest), each by a decision of its own, all under one group ID in the audit.

    One that was decided or has changed since is left alone and named; the others are approved all the same.
    """
    group = uuid.uuid4().hex
    decided, refused = list[Decided](), dict[int, str]()

    def one_of_them(review_id: int, digest: str) -> Decided:
        def work() -> Decided:
            return _approve(session, review_id, act, _Wish(UNSET, None, digest, group), agent)

        return in_transaction(session, work, busy=_busy(session, review_id))

    for review_id, digest in requests:
        try:
            decided.append(one_of_them(review_id, digest))
        except OperatorError as error:
            refused[review_id] = str(error)
    return GroupDecided(group, tuple(decided), refused)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a person wants to be approved; `group` where it is one of many."""

    answer: Any
    edits: Mapping[str, Any] | None
    digest: str | None
    group: str | None = None

    @property
    def own(self) -> bool:
        return self.answer is not UNSET or bool(self.edits)


def _approve(session: db.SyncSession, review_id: int, act: Act, wish: _Wish, agent: Agent | None) -> Decided:
    review = _held_review(session, review_id, wish.digest)
    job_id = review["job_id"]
    _refuse_unknown_effect(review)
    if wish.group is not None:
        _refuse_alone(review, review_id)
    text = review["proposed_answer"] if wish.answer is UNSET else answer_json(wish.answer)
    if text is None:
        raise OperatorError(
            f"review {review_id} proposes no answer ({review['code']}). Give one with --answer, or reject it"
        )
    if wish.edits:
        text = edited(text, wish.edits, agent)
    if agent is not None:
        check(agent, review, text, rules=wish.own)
    digest = digest_of(review["agent"], review["agent_version"], text, review["event_id"], review["key"])
    decide(session, review_id, "APPROVED", act, digest=digest, edited=wish.own, group=wish.group)
    send(session, "set_answer", {"id": job_id, "answer": text, "actor": act.name})
    # The worker that resumes counts an attempt; approving goes on with the one that was held, so it is given back.
    move(session, job_id, "PENDING", attempts=-1)
    detail = {"review": review_id, "edited": wish.own, "digest": review["digest"], "decided_digest": digest}
    audit(session, act, "approve", f"job {job_id}", **detail, **({} if wish.group is None else {"group": wish.group}))
    return Decided(review_id, job_id, "APPROVED", edited=wish.own)


def _busy(session: db.SyncSession, review_id: int) -> str:
    found = one(session, "job_of_review", (review_id,))
    if found is None:
        raise OperatorError(f"there is no review {review_id}")
    return job_busy(found["job_id"])


def _held_review(session: db.SyncSession, review_id: int, digest: str | None) -> Row:
    found = one(session, "job_of_review", (review_id,))
    if found is None:
        raise OperatorError(f"there is no review {review_id}")
    job = held_job(session, found["job_id"])
    review = one(session, "lock_review", (review_id,))
    assert review is not None
    if review["state"] != "OPEN":
        raise _decided_already(review_id, review)
    if job["status"] != "WAITING_REVIEW":
        raise OperatorError(f"job {job['id']} of review {review_id} is {job['status']} and waits for no decision")
    if digest is not None and review["digest"] != digest:
        raise OperatorError(
            f"review {review_id} is another request than the one you saw (its digest is {review['digest']}, yours "
            f"{digest}). Look again: rowcall reviews show {review_id}",
            code="review_changed",
        )
    return review


def _decided_already(review_id: int, review: Row) -> OperatorError:
    newer = f" by job {review['superseded_by']}, a newer change of the row" if review["superseded_by"] else ""
    return OperatorError(
        f"review {review_id} was {review['state']} by {review['decided_by']} at "
        f"{review['decided_at']:%Y-%m-%d %H:%M:%S%z}{newer}; the first decision stands",
        code="decided_already",
    )


def _refuse_unknown_effect(review: Row) -> None:
    if review["code"] == EFFECT_UNKNOWN:
        raise OperatorError(
            f"review {review['id']} is no answer to approve: it is about an effect of job {review['job_id']} whose "
            "outcome is unknown. Find out what became of it and say so with `rowcall effects resolve`",
            code=EFFECT_UNKNOWN,
        )


def _refuse_alone(review: Row, review_id: int) -> None:
    if review["tier"] not in ("low", "medium"):
        tier = "is of the high tier" if review["tier"] == "high" else f"has no known tier ({review['code']})"
        raise OperatorError(f"review {review_id} {tier} and must be decided by itself", code="tier_too_high")


def _reason(act: Act, what: str) -> str:
    if act.why is None or not act.why.strip():
        raise OperatorError(f"{what} needs a reason: --reason TEXT", code="reason_missing")
    return act.why
