"""Stage: review. Before it, validation held an answer back; after it, a person decides (see `operate`).

Writes the review and moves the run to WAITING_REVIEW in one transaction. Promises: an answer that was held back is
never dropped and never committed by itself; the waiting run holds its lane, but no lease and no slot.
"""

from __future__ import annotations

from consumer import db
from consumer.moves import Settlement, settle
from consumer.records.jobs import ClaimedJob, Review, storable

_SQL = db.queries("review")


async def hold(session: db.Session, job: ClaimedJob, review: Review) -> bool:
    """Open a review for the run; False where its lease is lost, and then nothing is written."""
    reasons = [storable(reason) for reason in review.reasons]
    move = Settlement(job.id, job.epoch, "WAITING_REVIEW", code=review.code, error=storable("; ".join(reasons)))
    async with db.async_transaction(session):
        moved = await settle(session, [move])
        if not moved[0]:
            return False
        await session.execute(
            _SQL["open_review"],
            {
                "id": job.id,
                "code": review.code,
                "reasons": reasons,
                "raw": None if review.raw is None else _whole(review.raw),
                "proposed": review.proposed,
            },
        )
    return True


def _whole(text: str) -> str:
    """`text` as Postgres takes it, but not cut: a person decides on all of it (the model client bounds its length)."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
