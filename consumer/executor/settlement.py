"""Carries a verdict out: exactly one move of the state machine, or nothing where the lease is lost."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from consumer import db, moves, outcome, review, steps
from consumer.agents.door import Agent, Input, Tier, answer_text
from consumer.agents.door import Retry as RetryPolicy
from consumer.errors import (
    DataRefused,
    LeaseLost,
    Outage,
    RowcallError,
    StaleRow,
    TransactionConflict,
)
from consumer.executor.commit import GroupCommit
from consumer.executor.holding import Waits, request_of
from consumer.executor.run import Performed, overdue, raised, verdict_of
from consumer.records import Change, ReadRow, payload
from consumer.records.jobs import ClaimedJob, Failed, Lost, Released, Rerun, Retry, Review, Succeeded, Verdict, storable

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
# An agent's SQL may be the victim of a deadlock a few times before its attempt is counted as failed.
_CONFLICT_TRIES = 5


@dataclass(frozen=True, slots=True)
class Settler:
    """Writes outcomes. `system` is the cluster's identity, `patience` how long an outage is waited for, in seconds.

    `policy` and `deadline_seconds` are for agents without their own.
    """

    pool: db.AsyncPool
    group: GroupCommit[moves.Settlement, bool]
    send: outcome.Sender
    policy: RetryPolicy
    system: int
    patience: float
    deadline_seconds: float
    waits: Waits

    async def settle(self, job: ClaimedJob, agent: Agent, performed: Performed, started_at: dt.datetime) -> Verdict:
        """Carry the verdict out and return the one that came to pass."""
        verdict = performed.verdict
        # A person decided about a row: whether it is still that row is tested in the transaction that writes.
        alone = agent.writes or job.approval is not None or performed.stale is not None
        if isinstance(verdict, Succeeded) and alone and performed.message is not None:
            verdict = await self._write(job, agent, performed.message, performed, verdict, started_at)
            if isinstance(verdict, Succeeded):
                return verdict
        try:
            return await self._move(job, agent, verdict, performed)
        except DataRefused as error:
            # The write that ends a run must land.
            refused = Failed(error.code, f"the database refuses how this run ended: {error}")
            return await self._move(job, agent, refused, performed)
        except RowcallError:
            raise
        except Exception as error:  # noqa: BLE001 - an agent's answer that cannot be written down ends its run, no lease
            return await self._move(job, agent, raised(error, job, agent.retry or self.policy), performed)

    async def _move(self, job: ClaimedJob, agent: Agent, verdict: Verdict, performed: Performed) -> Verdict:
        """One move, or nothing where the lease is lost; the verdict that came to pass."""
        if isinstance(verdict, Lost):
            return verdict
        if isinstance(verdict, Review):
            return await self._hold(job, agent, verdict, performed.message)
        if isinstance(verdict, Rerun):
            return await self._rerun(job, agent, verdict)
        settled = await self._timed(job, verdict) if isinstance(verdict, Retry) else verdict
        move = moves.settlement(job, settled, version=agent.version, step=performed.steps + 1)
        if not await self.group.submit(move):
            return _lost(job)
        if isinstance(settled, Retry) and move.status == "FAILED":
            return Failed(settled.code, move.error or settled.error)
        return settled

    async def _timed(self, job: ClaimedJob, retry: Retry) -> Retry:
        """The retry with its time as a delay by the database's clock."""
        until = retry.until
        if until is None:
            return retry
        delay = await self._patiently(job, lambda session: moves.seconds_until(session, until))
        return replace(retry, delay_seconds=max(0.0, delay))

    async def _write(
        self,
        job: ClaimedJob,
        agent: Agent,
        message: Input,
        performed: Performed,
        verdict: Succeeded,
        started_at: dt.datetime,
    ) -> Verdict:
        result = outcome.Outcome(job, agent, message, verdict.answer, performed.steps + 1, started_at)
        # The server ends the transaction at the deadline; this one ends a write that waits for something else.
        policy, seconds = agent.retry or self.policy, agent.deadline_seconds or self.deadline_seconds
        deadline = asyncio.timeout(seconds)
        try:
            try:
                if performed.stale is not None:
                    raise performed.stale
                async with deadline:
                    await self._patiently(
                        job, lambda session: outcome.write(session, result, self.send, system=self.system)
                    )
            except StaleRow as error:
                return await self._stale(job, agent, message, verdict, error)
        except LeaseLost as error:
            return Lost(str(error))
        except RowcallError as error:
            return verdict_of(error, job, agent, policy)
        except TimeoutError as error:
            if not deadline.expired():
                return raised(error, job, policy)
            return overdue("outcome", job, agent, policy, seconds)
        except Exception as error:  # noqa: BLE001 - whatever an agent's write raises ends its own run and nothing else
            return raised(error, job, policy)
        return verdict

    async def _hold(self, job: ClaimedJob, agent: Agent, verdict: Review, message: Input | None) -> Verdict:
        request = await self._patiently(
            job, lambda session: request_of(session, job, agent, message, verdict, self.waits)
        )
        held = await self._patiently(job, lambda session: review.hold(session, job, request))
        match held:
            case "lost":
                return _lost(job)
            case "let_through":
                return Released("a bypass lets the answer through")
        if held == "superseded":
            _log.info("superseded by a newer change", extra={"action": "review_superseded", **job.labels})
        return verdict

    async def _stale(
        self, job: ClaimedJob, agent: Agent, message: Input, verdict: Succeeded, error: StaleRow
    ) -> Verdict:
        answer = answer_text(verdict.answer)
        tier = Tier.LOW.value if job.approval is None else job.approval.tier
        asked = Review(error.code, (str(error),), raw=answer, proposed=answer, tier=tier, stale=error.changed)
        if not isinstance(message, Change) or not message.key:
            return asked
        with db.translated():
            async with self.pool.connection() as session:
                row = await db.read_row(session, message.origin.schema, message.origin.table, message.key)
        if row is None:
            return Rerun(error.code, str(error), payload=None)
        # `before` stays: what woke the agent is the way from there to the row as it stands.
        now = replace(message, after=row)
        if agent.on_stale == "review":
            read = message.after.read if isinstance(message.after, ReadRow) else set(row)
            return replace(asked, now=replace(now, after=ReadRow(row, read & set(row))))
        return Rerun(error.code, str(error), payload.write(now) if agent.wants(now) else None, error.changed)

    async def _rerun(self, job: ClaimedJob, agent: Agent, verdict: Rerun) -> Verdict:
        """Start again on the row as it stands; end the run where the row is gone or wakes the agent no more."""
        retry = Retry(verdict.code, verdict.error, (agent.retry or self.policy).delay(job.attempt))
        move = moves.settlement(job, retry, version=agent.version, step=0)
        if verdict.payload is None:
            move = moves.Settlement(job.id, job.epoch, "CANCELLED", code=verdict.code, error=storable(verdict.error))

        async def write(session: db.Session) -> bool:
            async with db.async_transaction(session):
                moved = (await moves.settle(session, [move]))[0]
                if moved:
                    await review.withdraw(session, job, review.stale_text(verdict.stale))
                if moved and verdict.payload is not None and move.status != "FAILED":
                    await steps.supersede(session, job.id)
                    await outcome.refresh_input(session, job.id, verdict.payload)
            return moved

        if not await self._patiently(job, write):
            return _lost(job)
        if verdict.payload is None:
            return verdict
        return retry if move.status != "FAILED" else Failed(verdict.code, move.error or verdict.error)

    async def _patiently(self, job: ClaimedJob, write: Callable[[db.Session], Awaitable[Result]]) -> Result:
        """Run a transaction again while the database is away or chose it as a victim; the fence makes that safe."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self.patience
        conflicts = 0
        delay = 0.1
        while True:
            try:
                with db.translated():
                    async with self.pool.connection() as session:
                        return await write(session)
            except TransactionConflict:
                conflicts += 1
                if conflicts >= _CONFLICT_TRIES:
                    raise
                await asyncio.sleep(0.01 * conflicts)
            except Outage as error:
                if error.dependency != "database" or error.code != Outage.code or clock() + delay > give_up:
                    raise
                _log.warning("outcome waits: %s", error, extra={"action": "database_outage", **job.labels})
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)


def _lost(job: ClaimedJob) -> Lost:
    return Lost(f"run {job.id} was taken over before it could be settled")
