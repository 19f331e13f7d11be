"""Moves of the state machine: from verdicts to the one SQL function that carries them out.

Below the stages, because outcomes, reviews and operators all move runs. Promises: a move of an owner that lost its
lease does nothing and says so; lanes get their next head in the same transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from consumer import db
from consumer.records.jobs import Cancelled, ClaimedJob, Failed, Parked, Released, Retry, Succeeded, storable

_SQL = db.queries("moves")
# A delay an agent asks for: at most 10 years, so that any number it gives is a time Postgres has.
_LONGEST_DELAY: Final = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Settlement:
    """One move. `delay` in seconds from now, `attempts` added to the attempt count, `step_number` of write_result."""

    job_id: int
    epoch: int
    status: str
    result: str | None = None
    code: str | None = None
    error: str | None = None
    reason: str | None = None
    delay: float | None = None
    attempts: int = 0
    step_number: int | None = None
    version: int = 0


def settlement(
    job: ClaimedJob, verdict: Succeeded | Retry | Failed | Cancelled | Parked | Released, *, version: int, step: int
) -> Settlement:
    """The move that a verdict asks for."""
    match verdict:
        case Succeeded(answer):
            return Settlement(
                job.id, job.epoch, "SUCCEEDED", result=answer.model_dump_json(), step_number=step, version=version
            )
        case Retry(code, error, delay, counts):
            if counts and job.attempt >= job.max_attempts:
                text = f"attempt {job.attempt} of {job.max_attempts}: {error}"
                return Settlement(job.id, job.epoch, "FAILED", code=_code(code), error=storable(text))
            return Settlement(
                job.id, job.epoch, "WAITING_RETRY", code=_code(code), error=storable(error), delay=bounded(delay),
                attempts=0 if counts else -1,
            )  # fmt: skip
        case Failed(code, error):
            return Settlement(job.id, job.epoch, "FAILED", code=_code(code), error=storable(error))
        case Cancelled(code, error):
            return Settlement(job.id, job.epoch, "CANCELLED", code=_code(code), error=storable(error))
        case Parked(reason, code, error):
            return Settlement(
                job.id,
                job.epoch,
                "PARKED",
                code=_code(code),
                error=storable(error),
                reason=storable(reason),
                attempts=-1,
            )
        case Released(reason, delay):
            return Settlement(job.id, job.epoch, "PENDING", reason=storable(reason), delay=bounded(delay), attempts=-1)
    assert_never(verdict)


async def seconds_until(session: db.Session, at: dt.datetime) -> float:
    """How long it is till then by the database's clock, in seconds; negative when it is over."""
    with db.translated():
        row = await (await session.execute(_SQL["seconds_until"], (at,))).fetchone()
    return float(row["seconds"]) if row else 0.0


def bounded(delay: float) -> float:
    """A delay in seconds that Postgres can add to a time: 0 for what is negative or no number, at most 10 years."""
    return min(delay, _LONGEST_DELAY) if delay > 0 else 0.0


def _code(code: str) -> str:
    return storable(code)[:100]


async def settle(session: db.Session, moves: Sequence[Settlement]) -> list[bool]:
    """Carry the moves out; False where the lease is lost or the move is not legal any more."""
    with db.translated():
        cursor = await session.execute(
            _SQL["settle"],
            {
                "ids": [move.job_id for move in moves],
                "epochs": [move.epoch for move in moves],
                "statuses": [move.status for move in moves],
                "results": [move.result for move in moves],
                "codes": [move.code for move in moves],
                "errors": [move.error for move in moves],
                "reasons": [move.reason for move in moves],
                "delays": [move.delay for move in moves],
                "attempts": [move.attempts for move in moves],
            },
        )
        moved = {row["id"] for row in await cursor.fetchall()}
    # Where a group holds several epochs of one run, only the last of them can be its owner's.
    last = {move.job_id: move.epoch for move in sorted(moves, key=lambda move: move.epoch)}
    return [move.job_id in moved and move.epoch == last[move.job_id] for move in moves]


async def settle_group(session: db.Session, moves: Sequence[Settlement]) -> list[bool]:
    """`settle`, with the write_result checkpoints of the runs that succeeded, in one transaction."""
    async with db.async_transaction(session):
        moved = await settle(session, moves)
        written = [move for move, done in zip(moves, moved, strict=True) if done and move.step_number is not None]
        if written:
            await session.execute(
                _SQL["write_steps"],
                {
                    "ids": [move.job_id for move in written],
                    "numbers": [move.step_number for move in written],
                    "versions": [move.version for move in written],
                    "epochs": [move.epoch for move in written],
                },
            )
    return moved
