"""Stage: steps. Before it, a run was claimed; after it, its answer is validated.

Writes checkpoints and external-call records, in groups over many runs. Promises: a checkpoint or a call record is
written only for the epoch that owns the run, and a finished step is there for every later attempt.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from consumer import db
from consumer.records.jobs import ClaimedJob

_SQL = db.queries("steps")


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A finished step as found in the database; `output` is stored JSON text."""

    name: str
    kind: str
    number: int
    output: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step that has just finished."""

    job_id: int
    epoch: int
    name: str
    kind: str
    number: int
    output: str
    version: int
    started_at: dt.datetime


@dataclass(frozen=True, slots=True)
class CallSent:
    """An external call that is about to leave."""

    job_id: int
    epoch: int
    step: str
    attempt: int
    kind: str
    endpoint: str
    model: str | None
    idempotency_key: str
    input_sha256: bytes


@dataclass(frozen=True, slots=True)
class CallDone:
    """What came of a call. Tokens are None where the endpoint named none."""

    call_id: int
    duration_ms: int
    status_code: int | None
    error_code: str | None
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    model: str | None
    finish_reason: str | None
    response_sha256: bytes | None
    response: str | None
    validated: bool | None
    validation_error: str | None


def stored(job: ClaimedJob) -> list[StoredStep]:
    """The checkpoints in force that came with the claim, in their order."""
    found = [] if job.stored_steps is None else orjson.loads(job.stored_steps)
    return sorted((StoredStep(**step) for step in found), key=lambda step: step.number)


async def checkpoint(session: db.Session, steps: Sequence[Checkpoint], lease_seconds: float) -> list[bool]:
    """Keep finished steps of many runs and renew their leases; False where the lease is lost."""
    with db.translated():
        cursor = await session.execute(
            _SQL["checkpoint"],
            {
                "ids": [step.job_id for step in steps],
                "epochs": [step.epoch for step in steps],
                "names": [step.name for step in steps],
                "kinds": [step.kind for step in steps],
                "numbers": [step.number for step in steps],
                "outputs": [step.output for step in steps],
                "versions": [step.version for step in steps],
                "started": [step.started_at for step in steps],
                "lease": lease_seconds,
            },
        )
        kept = {(row["id"], row["epoch"]) for row in await cursor.fetchall()}
    return [(step.job_id, step.epoch) in kept for step in steps]


async def call_sent(session: db.Session, calls: Sequence[CallSent]) -> list[int | None]:
    """Record calls before they leave; the record's ID each, None where the lease is lost."""
    with db.translated():
        cursor = await session.execute(
            _SQL["call_sent"],
            {
                "ids": [call.job_id for call in calls],
                "epochs": [call.epoch for call in calls],
                "steps": [call.step for call in calls],
                "attempts": [call.attempt for call in calls],
                "kinds": [call.kind for call in calls],
                "endpoints": [call.endpoint for call in calls],
                "models": [call.model for call in calls],
                "keys": [call.idempotency_key for call in calls],
                "digests": [call.input_sha256 for call in calls],
            },
        )
        written = {
            (row["job_id"], row["lease_epoch"], row["step"], row["attempt"]): row["id"]
            for row in await cursor.fetchall()
        }
    return [written.get((call.job_id, call.epoch, call.step, call.attempt)) for call in calls]


async def call_done(session: db.Session, calls: Sequence[CallDone]) -> list[None]:
    """Complete call records, also late ones."""
    with db.translated():
        await session.execute(
            _SQL["call_done"],
            {
                "ids": [call.call_id for call in calls],
                "durations": [call.duration_ms for call in calls],
                "statuses": [call.status_code for call in calls],
                "codes": [call.error_code for call in calls],
                "errors": [call.error for call in calls],
                "prompt": [call.prompt_tokens for call in calls],
                "completion": [call.completion_tokens for call in calls],
                "models": [call.model for call in calls],
                "reasons": [call.finish_reason for call in calls],
                "digests": [call.response_sha256 for call in calls],
                "responses": [call.response for call in calls],
                "validated": [call.validated for call in calls],
                "validation": [call.validation_error for call in calls],
            },
        )
    return [None] * len(calls)


async def supersede(session: db.Session, job_id: int) -> None:
    """Throw a run's checkpoints away, kept as evidence. Call it inside the transaction that fenced the run."""
    with db.translated():
        await session.execute(_SQL["supersede_steps"], {"id": job_id})
