"""Runs as people see and move them: list, show, retry, cancel.

Retry is the only way out of FAILED and CANCELLED: the same row with the next delivery, all attempts again and its
checkpoints kept, queued behind what its key has now; the dedup row of the delivery is written in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumer import db
from consumer.errors import DataRefused, OperatorError
from consumer.operate.act import (
    Act,
    Row,
    audit,
    close_reviews,
    every,
    held_job,
    in_transaction,
    job_busy,
    move,
    one,
    refuse_retired,
    send,
)

STATUSES: Final = (
    "PENDING",
    "RUNNING",
    "WAITING_RETRY",
    "WAITING_REVIEW",
    "WAITING_EVENT",
    "PARKED",
    "SUCCEEDED",
    "FAILED",
    "REJECTED",
    "CANCELLED",
)


@dataclass(frozen=True, slots=True)
class Moved:
    """What an act did to a run: the state it left, the one it is in, and its delivery."""

    job_id: int
    before: str
    after: str
    delivery: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run with all that hangs on it; each row as its query in operate.sql names its columns."""

    job: Row
    steps: Sequence[Row]
    calls: Sequence[Row]
    reviews: Sequence[Row]
    dead_letters: Sequence[Row]
    coalesced: Sequence[Row]
    outbox: Sequence[Row]
    audit: Sequence[Row]


def list_jobs(
    session: db.SyncSession,
    *,
    status: str | None = None,
    agent: str | None = None,
    event: str | None = None,
    limit: int = 50,
) -> list[Row]:
    """Runs, newest first; columns of the query `list_jobs`.

    Raises:
        OperatorError: for a state there is not.
    """
    if status is not None and status.upper() not in STATUSES:
        raise OperatorError(f"there is no state {status}; the states are {', '.join(STATUSES)}")
    wanted = {"status": status and status.upper(), "agent": agent, "event": event, "limit": limit}
    return every(session, "list_jobs", wanted)


def show(session: db.SyncSession, job_id: int) -> RunReport:
    """Everything that is known about one run.

    Raises:
        OperatorError: when there is none of this ID.
    """
    with db.transaction(session):
        job = one(session, "job", (job_id,))
        if job is None:
            raise OperatorError(f"there is no job {job_id}")
        by_id = (job_id,)
        return RunReport(
            job=job,
            steps=every(session, "steps_of", by_id),
            calls=every(session, "calls_of", by_id),
            reviews=every(session, "reviews_of", by_id),
            dead_letters=every(session, "dead_letters_of", {"event": job["event_id"], "agent": job["agent"]}),
            coalesced=every(session, "coalesced_of", by_id),
            outbox=every(session, "outbox_of", by_id),
            audit=every(session, "audit_of", (_subject(job_id),)),
        )


def retry(session: db.SyncSession, job_id: int, act: Act, *, from_start: bool = False) -> Moved:
    """Queue a run again: a FAILED or CANCELLED one as a new delivery, a PARKED or WAITING_RETRY one at once.

    `from_start` throws the checkpoints away (they stay as superseded evidence), and with them the version of the agent
    that made them; without it a run resumes after its last one. A run that its agent parked when it failed keeps its
    place before later ones of its key, and gets all its attempts anew, as a new delivery.

    Raises:
        OperatorError: the state allows no retry, the agent is retired, another run holds the dedupe_key now, or the
            run's outcome is being written.
    """
    try:
        return in_transaction(session, lambda: _retry(session, job_id, act, from_start), busy=job_busy(job_id))
    except DataRefused as error:
        raise _taken(session, job_id, error) from error


def cancel(session: db.SyncSession, job_id: int, act: Act) -> Moved:
    """End a run that has not ended. A worker that has it under way writes nothing any more.

    Raises:
        OperatorError: when it has ended already, or its outcome is being written.
    """
    return in_transaction(session, lambda: _cancel(session, job_id, act), busy=job_busy(job_id))


def _retry(session: db.SyncSession, job_id: int, act: Act, from_start: bool) -> Moved:
    job = held_job(session, job_id)
    before, delivery = job["status"], job["delivery"]
    if before in ("FAILED", "CANCELLED", "WAITING_RETRY", "PARKED"):
        refuse_retired(session, job["agent"])
    if from_start:
        # Before the move: the place among the lanes follows from what is approved.
        send(session, "supersede_steps", {"id": job_id})
    if before in ("FAILED", "CANCELLED"):
        move(session, job_id, "PENDING", attempts=-job["attempt_count"])
        delivery = _deliver_again(session, job)
    elif before in ("WAITING_RETRY", "PARKED"):
        move(session, job_id, "PENDING", attempts=-job["attempt_count"] if job["reason"] == "failed" else 0)
        if from_start or job["reason"] == "failed":
            # What it calls outside now must not be taken for a repetition of what failed.
            delivery = _deliver_again(session, job)
    else:
        raise OperatorError(_no_retry(job))
    audit(session, act, "retry", _subject(job_id), before=before, delivery=delivery, from_start=from_start)
    return Moved(job_id, before, "PENDING", delivery)


def _deliver_again(session: db.SyncSession, job: Row) -> int:
    event = {
        "agent": job["agent"],
        "event": job["event_id"],
        "occurred": job["occurred_at"],
        "delivery": job["delivery"],
    }
    row = one(session, "next_delivery", event)
    assert row is not None
    event["next"] = row["delivery"]
    if job["event_id"] is not None and one(session, "deliver_dated", event) is None:
        send(session, "deliver_undated", event)
    send(session, "set_delivery", {"id": job["id"], "next": event["next"]})
    return int(row["delivery"])


def _cancel(session: db.SyncSession, job_id: int, act: Act) -> Moved:
    job = held_job(session, job_id)
    if job["status"] in ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"):
        raise OperatorError(f"job {job_id} has ended already ({job['status']}); there is nothing to cancel")
    text = f"cancelled by {act.name}" + (f": {act.why}" if act.why else "")
    move(session, job_id, "CANCELLED", code="cancelled", error=text, delay=None)
    close_reviews(session, [job_id], act)
    audit(session, act, "cancel", _subject(job_id), before=job["status"])
    return Moved(job_id, job["status"], "CANCELLED", job["delivery"])


def _no_retry(job: Row) -> str:
    number, status = job["id"], job["status"]
    match status:
        case "PENDING":
            return f"job {number} is PENDING already and due at {job['run_after']:%Y-%m-%d %H:%M:%S%z}"
        case "RUNNING":
            return f"job {number} is RUNNING under a lease of worker {job['owner']}. Cancel it first, or wait"
        case "WAITING_REVIEW":
            return (
                f"job {number} waits for a decision. Find its review with `rowcall jobs show {number}`, then approve \
or reject it with `rowcall reviews`"
            )
        case "WAITING_EVENT":
            return f"job {number} waits for an event. Cancel it first to run it again"
    return f"job {number} is {status}, which is final. Queue a new run with `rowcall enqueue {job['agent']}`"


def _taken(session: db.SyncSession, job_id: int, error: DataRefused) -> OperatorError:
    """Why the database refused the retry: almost always a dedupe_key that another run took meanwhile."""
    job = one(session, "job", (job_id,))
    assert job is not None
    key = {"tenant": job["tenant"], "agent": job["agent"], "dedupe_key": job["dedupe_key"]}
    holder = one(session, "holder", key) if job["dedupe_key"] is not None else None
    if holder is not None:
        return OperatorError(
            f"job {job_id} cannot run again: its dedupe_key {job['dedupe_key']!r} is held by job {holder['id']} "
            f"({holder['status']}). Cancel that one first if this one should run",
            code="dedupe_key_taken",
        )
    return OperatorError(f"job {job_id} cannot run again, the database refuses it: {error}")


def _subject(job_id: int) -> str:
    return f"job {job_id}"
