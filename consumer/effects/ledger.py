"""The ledger itself: one row an effect, under the fence of its run, written before the request leaves."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from consumer import db
from consumer.effects.request import Request
from consumer.records.jobs import ClaimedJob, storable

_SQL = db.queries("effects")
_NAMESPACE: Final = uuid.UUID("6f0a3a3e-5d2c-5b8e-9a52-0c2f6c1d7e44")


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger; `response` is the stored answer of a confirmed effect."""

    id: uuid.UUID
    job_id: int
    step: str
    business_key: str
    state: str
    idempotent: bool
    method: str
    url: str
    request_sha256: bytes
    attempts: int
    response: str | None
    planned_at: dt.datetime
    sent_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an effect. `by` says who knows: server, reconcile, or nobody for UNKNOWN."""

    state: Literal["CONFIRMED", "UNKNOWN", "FAILED"]
    by: str | None
    code: str | None = None
    error: str | None = None
    status: int | None = None
    sha256: bytes | None = None
    response: str | None = None
    truncated: bool = False


def effect_id(job_id: int, delivery: int, step: str, key: str) -> uuid.UUID:
    """The ID of an effect: the same for every attempt of a delivery, and the value of its idempotency header."""
    return uuid.uuid5(_NAMESPACE, f"{job_id}\x1f{delivery}\x1f{step}\x1f{key}")


async def held(session: db.Session, job: ClaimedJob, lease_seconds: float) -> float | None:
    """Hold the run for this transaction and renew its lease; the seconds it lasts, None where the lease is lost."""
    with db.translated():
        given = {"job": job.id, "epoch": job.epoch, "lease": lease_seconds}
        row = await (await session.execute(_SQL["fence"], given)).fetchone()
    return None if row is None else float(row["left_seconds"])


async def plan(session: db.Session, job: ClaimedJob, step: str, request: Request) -> Entry:
    """Find the run's effect of this step and key, or write it down as PLANNED. After `held`, in its transaction.

    What is found SENT was sent by an owner that is gone: it becomes UNKNOWN.
    """
    asked = {"job": job.id, "step": step, "key": request.key, "delivery": job.delivery}
    with db.translated():
        row = await (await session.execute(_SQL["found"], asked)).fetchone()
        if row is not None and row["state"] == "SENT":
            entry = _entry(row)
            lost = Settled("UNKNOWN", None, "effect_interrupted", "the worker that sent it is gone")
            await settle(session, job, entry.id, lost)
            return _entry({**row, "state": "UNKNOWN"})
        if row is not None and row["state"] in ("CONFIRMED", "UNKNOWN"):
            return _entry(row)
        given = asked | {
            "id": effect_id(job.id, job.delivery, step, request.key) if row is None else row["id"],
            "idempotent": request.idempotent,
            "method": request.method,
            "url": storable(request.shown),
            "digest": request.digest,
            "epoch": job.epoch,
        }
        planned = await (await session.execute(_SQL["plan"], given)).fetchone()
    assert planned is not None
    return _entry(planned)


async def send(session: db.Session, job: ClaimedJob, effect: uuid.UUID) -> int:
    """Mark an effect as SENT; how often it has been now. After `held`, in its transaction."""
    with db.translated():
        row = await (await session.execute(_SQL["send"], {"id": effect, "epoch": job.epoch})).fetchone()
    assert row is not None
    return int(row["attempts"])


async def settle(session: db.Session, job: ClaimedJob, effect: uuid.UUID, settled: Settled) -> None:
    """Write what became of an effect. After `held`, in its transaction."""
    with db.translated():
        await session.execute(
            _SQL["settle"],
            {
                "id": effect,
                "epoch": job.epoch,
                "state": settled.state,
                "by": settled.by,
                "code": settled.code,
                "error": None if settled.error is None else storable(settled.error),
                "status": settled.status,
                "digest": settled.sha256,
                "response": settled.response,
                "truncated": settled.truncated,
            },
        )


async def acted(session: db.Session, job: ClaimedJob) -> bool:
    """Whether the run's act has had an effect, or may have had one."""
    with db.translated():
        row = await (await session.execute(_SQL["acted"], (job.id,))).fetchone()
    return bool(row and row["found"])


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(
        id=row["id"],
        job_id=row["job_id"],
        step=row["step"],
        business_key=row["business_key"],
        state=row["state"],
        idempotent=row["idempotent"],
        method=row["method"],
        url=row["url"],
        request_sha256=bytes(row["request_sha256"]),
        attempts=row["attempts"],
        response=row["response"],
        planned_at=row["planned_at"],
        sent_at=row["sent_at"],
    )
