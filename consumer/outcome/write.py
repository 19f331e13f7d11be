"""The outcome transaction of a run whose agent writes: fence, agent's SQL, outbox, checkpoint, move; one commit."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from consumer import db
from consumer.agents.door import Agent, Input
from consumer.errors import LeaseLost
from consumer.outcome.transaction import Emission, OutcomeTransaction
from consumer.records import Change
from consumer.records.jobs import ClaimedJob

_SQL = db.queries("outcome")
# Turns emissions into outbox rows on the session it is given; composed in by the executor.
Sender = Callable[[db.Session, ClaimedJob, Sequence[Emission]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be written for one run."""

    job: ClaimedJob
    agent: Agent
    message: Input
    answer: BaseModel
    step_number: int
    started_at: dt.datetime


async def system_identifier(session: db.Session) -> int:
    """The identity of the Postgres cluster, which tells its transactions from another's."""
    with db.translated():
        row = await (await session.execute(_SQL["system_identifier"])).fetchone()
    return int(row["system_identifier"]) if row else 0


async def write(session: db.Session, outcome: Outcome, send: Sender, *, system: int) -> None:
    """Commit the agent's SQL, its outbox rows, the result and the run's state together.

    Raises:
        LeaseLost: another owner has the run; everything was rolled back.
        StaleRow: a row the agent read has changed; everything was rolled back.
        AgentError: the agent's SQL is not allowed.
        DataRefused: the database refuses the agent's SQL.
    """
    job = outcome.job
    fence = {"id": job.id, "epoch": job.epoch, "system": system}
    async with db.transaction_with(session, _SQL["fence"], fence) as fenced:
        if fenced is None:
            raise LeaseLost(f"run {job.id} is not ours any more (epoch {job.epoch})")
        transaction = OutcomeTransaction(session, check_stale=outcome.agent.on_stale != "write")
        try:
            if job.approval is not None and isinstance(outcome.message, Change):
                # The decision is about the row that the person saw, whichever way the agent writes.
                await transaction.hold_as_seen(outcome.message)
            await outcome.agent.put(transaction, outcome.message, outcome.answer)
        finally:
            await transaction.close()
        await send(session, job, transaction.emissions)
        finish = {
            "id": job.id,
            "epoch": job.epoch,
            "number": outcome.step_number,
            "version": outcome.agent.version,
            "started": outcome.started_at,
            "output": _counts(transaction, outcome.agent) if outcome.agent.writes else None,
            "result": outcome.answer.model_dump_json(),
        }
        if await (await session.execute(_SQL["finish"], finish)).fetchone() is None:
            raise LeaseLost(f"run {job.id} was taken away inside its outcome (epoch {job.epoch})")


def _counts(transaction: OutcomeTransaction, agent: Agent) -> str:
    """What the write did, for the watchdog: a run may succeed and leave nothing behind, where its agent allows that."""
    counts = {"rows": transaction.touched, "emitted": len(transaction.emissions)}
    return json.dumps(counts if agent.empty_output == "alert" else counts | {"empty_output": agent.empty_output})


async def refresh_input(session: db.Session, job_id: int, payload: str) -> None:
    """Put the row as it stands into the run's payload, for a rerun. Inside the transaction that settles the run."""
    with db.translated():
        await session.execute(_SQL["refresh_input"], {"id": job_id, "payload": payload})
