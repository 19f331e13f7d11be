"""Stage: review. Before it, validation held an answer back; after it, a person decides (see `operate`).

Writes the review and moves the run to WAITING_REVIEW in one transaction; `tend` denies and escalates what waits too
long. Promises: an answer that was held back is never dropped and never committed by itself; the waiting run holds its
lane, but no lease and no slot; what a bypass lets through is recorded like any decision; an approval that cannot be
carried out any more is withdrawn in the transaction that finds it out. Lock order: bypass, run, review, lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import orjson

from consumer import db
from consumer.errors import EffectUnknown
from consumer.moves import Settlement, settle
from consumer.records.jobs import ClaimedJob, storable

_SQL = db.queries("review")
# Reviews that one look at the clock closes or marks; the next look takes the rest.
TEND_LIMIT: Final = 500

# The one code whose answers a bypass may let through: valid, and of the medium tier.
_BYPASSED: Final = "tier_medium"

Held = Literal["lost", "held", "superseded", "let_through"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a person is asked. `proposed`, `seen`, `changes` and `stale` are JSON text; times in seconds from now.

    `payload` replaces the run's input: the row as it stands, where the request is about that one.
    """

    code: str
    reasons: tuple[str, ...]
    raw: str | None
    proposed: str | None
    tier: str | None
    version: int
    digest: str
    shape: str
    seen: str | None
    seen_digest: str | None
    changes: str | None
    stale: str | None
    expires: float
    escalates: float
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """A review that waited too long."""

    review_id: int
    job_id: int
    agent: str


@dataclass(frozen=True, slots=True)
class Tended:
    """What one look at the clock did."""

    expired: tuple[Late, ...]
    escalated: tuple[Late, ...]
    superseded: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Open reviews by (agent, tier, age), decisions of the last hour by (agent, decision)."""

    open: Mapping[tuple[str, str, str], int]
    decided: Mapping[tuple[str, str], int]


async def hold(session: db.Session, job: ClaimedJob, request: Request) -> Held:
    """Open a review for the run; nothing is written where its lease is lost.

    A bypass of the agent decides at once: then the run is queued again with its answer, as after an approval. An
    approval under which the run resumed is withdrawn, but not for an effect that nobody knows the end of: what was
    approved is still what the run goes on with.
    """
    reasons = [storable(reason) for reason in request.reasons]
    async with db.async_transaction(session):
        bypass = await _bypass(session, job.agent, request)
        if bypass is None:
            move = Settlement(
                job.id, job.epoch, "WAITING_REVIEW", code=request.code, error=storable("; ".join(reasons))
            )
        else:
            # Claiming counts an attempt; this goes on with the one that was held.
            move = Settlement(job.id, job.epoch, "PENDING", delay=0.0, attempts=-1)
        if not (await settle(session, [move]))[0]:
            return "lost"
        if request.code != EffectUnknown.code:
            await withdraw(session, job, request.stale)
        if request.payload is not None:
            await session.execute(_SQL["put_row"], {"id": job.id, "payload": request.payload})
        review_id = await _open(session, job, request, reasons)
        if bypass is not None:
            await session.execute(_SQL["let_through"], {"review": review_id, "bypass": bypass})
            await session.execute(_SQL["refresh_lane"], (job.id,))
            return "let_through"
        row = await (await session.execute(_SQL["supersede"], (job.id,))).fetchone()
        return "superseded" if row and row["superseded"] else "held"


async def withdraw(session: db.Session, job: ClaimedJob, stale: str | None) -> None:
    """Take back the approval that the run resumed under, if it did. Inside the transaction that settles the run."""
    if job.approval is not None:
        with db.translated():
            await session.execute(
                _SQL["withdraw_approval"], {"id": job.id, "review": job.approval.review_id, "stale": stale}
            )
            await session.execute(_SQL["refresh_lane"], (job.id,))


async def tend(session: db.Session) -> Tended:
    """Deny what nobody decided in time, escalate what waits long, supersede what was passed over.

    By the database's clock, and each by one worker at a time; another one finds nothing to do.
    """
    with db.translated():
        row = await (await session.execute(_SQL["supersede_all"])).fetchone()
        expired = await (await session.execute(_SQL["expire"], (TEND_LIMIT,))).fetchall()
        escalated = await (await session.execute(_SQL["escalate"], (TEND_LIMIT,))).fetchall()
    return Tended(
        tuple(Late(**found) for found in expired),
        tuple(Late(**found) for found in escalated),
        int(row["superseded"]) if row else 0,
    )


async def counts(session: db.Session) -> Counts:
    """What waits and what was decided, as the database has it: decisions are made in other processes."""
    with db.translated():
        waiting = await (await session.execute(_SQL["open_counts"])).fetchall()
        decided = await (await session.execute(_SQL["decided_counts"])).fetchall()
    return Counts(
        {(row["agent"], row["tier"], row["age"]): row["n"] for row in waiting},
        {(row["agent"], row["decision"]): row["n"] for row in decided},
    )


def stale_text(changed: Mapping[str, tuple[str, str]]) -> str | None:
    """Column → (as it was seen, as it stands), each as JSON text, in the form reviews keep; None for nothing."""
    if not changed:
        return None
    told = {name: {"seen": orjson.Fragment(seen), "now": orjson.Fragment(now)} for name, (seen, now) in changed.items()}
    return orjson.dumps(told).decode()


async def _bypass(session: db.Session, agent: str, request: Request) -> int | None:
    if request.code != _BYPASSED or request.tier != "medium":
        return None
    row = await (await session.execute(_SQL["active_bypass"], {"agent": agent, "tier": "medium"})).fetchone()
    return None if row is None else int(row["id"])


async def _open(session: db.Session, job: ClaimedJob, request: Request, reasons: list[str]) -> int:
    cursor = await session.execute(
        _SQL["open_review"],
        {
            "id": job.id,
            "code": request.code,
            "reasons": reasons,
            "raw": None if request.raw is None else _whole(request.raw),
            "proposed": request.proposed,
            "tier": request.tier,
            "version": request.version,
            "digest": request.digest,
            "shape": request.shape,
            "seen": request.seen,
            "seen_digest": request.seen_digest,
            "changes": request.changes,
            "stale": request.stale,
            "expires": request.expires,
            "escalates": request.escalates,
        },
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row["id"])


def _whole(text: str) -> str:
    """`text` as Postgres takes it, but not cut: a person decides on all of it (the model client bounds its length)."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
