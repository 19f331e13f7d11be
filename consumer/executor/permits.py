"""A run's way to the model: the permit before each call, the true use after it. The executor's side of `limits`.

Runs that ask together are answered by one statement. A wait holds no connection; one that would be too long gives the
run back without burning an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from consumer import db, limits
from consumer.errors import BudgetSpent, LeaseLost, RetryLater, RowcallError
from consumer.executor.commit import GroupCommit
from consumer.llm import CallFinished, CallStarted
from consumer.records.jobs import ClaimedJob
from consumer.settings import Settings
from consumer.telemetry import CALLS_ADMITTED

_log = logging.getLogger(__name__)
# Cap verdict → error code and why the run is parked; None fails it.
_CAPS: Final[dict[str, tuple[str, str | None]]] = {
    "spent": ("budget_spent", "budget"),
    "root_cap": ("budget_root", "budget_root"),
    "run_cap": ("budget_run", None),
    "too_large": ("budget_call", None),
}
# What no call uses: an endpoint that reports more does not count, and the sums of budgets must hold what it says.
_MOST_TOKENS: Final = 10**12


class Permits:
    """The permits of one endpoint, for all runs of a worker."""

    def __init__(self, pool: db.AsyncPool, settings: Settings, *, patience: float) -> None:
        self._pool = pool
        self._endpoint = limits.Endpoint.of(settings)
        self._longest_wait = settings.rate_wait_seconds
        self._longest_pause = settings.model_max_retry_after_seconds
        # Set when a budget was found spent: its alert should not wait for the next keeping.
        self.something_spent = False
        self._wanted: GroupCommit[limits.CallWanted, limits.Admission] = GroupCommit(
            pool, lambda session, calls: limits.admit_calls(session, calls, self._endpoint),
            name="model permits", patience=patience,
        )  # fmt: skip
        self._used: GroupCommit[limits.CallUsed, None] = GroupCommit(
            pool, limits.settle_calls, name="model use", patience=patience
        )

    async def enter(self, job: ClaimedJob, call: CallStarted) -> int | None:
        """Wait for the call's turn and reserve what it may use; the reservation, or None where nothing counts it.

        Raises:
            LeaseLost: the run has another owner.
            BudgetSpent: it may not be made.
            RetryLater: its turn comes later than a run may wait with its worker.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._longest_wait
        wanted = limits.wanted(
            job.id, job.epoch, self._endpoint, input_bytes=call.input_bytes, max_tokens=call.max_tokens
        )
        while True:
            admission = await self._wanted.submit(wanted)
            if admission.verdict == "go":
                CALLS_ADMITTED.add(agent=job.agent, verdict="go")
                return admission.reservation
            if admission.verdict == "lost":
                raise LeaseLost(f"run {job.id}: the lease was lost before a model call")
            if admission.verdict != "wait":
                raise self._refused(job, admission)
            if loop.time() + admission.seconds > give_up:
                CALLS_ADMITTED.add(agent=job.agent, verdict="late")
                text = f"no model call for {admission.seconds:.1f} s: {admission.detail}"
                late = RetryLater(text, delay_seconds=admission.seconds)
                late.code = "rate_limited"
                raise late
            CALLS_ADMITTED.add(agent=job.agent, verdict="wait")
            await asyncio.sleep(admission.seconds)

    async def leave(self, reservation: int | None, call: CallFinished) -> None:
        """Settle what the call has used, and tell all workers of a pause the endpoint asked for."""
        if call.pause_seconds is not None:
            await self._pause(min(call.pause_seconds, self._longest_pause))
        if reservation is not None:
            await self._used.submit(self._use(reservation, call))

    def _use(self, reservation: int, call: CallFinished) -> limits.CallUsed:
        if call.prompt_tokens is not None or call.completion_tokens is not None:
            prompt, completion = call.prompt_tokens or 0, call.completion_tokens or 0
            if prompt + completion > _MOST_TOKENS:
                return limits.CallUsed(reservation, None, None)
            return limits.CallUsed(reservation, prompt + completion, self._endpoint.money(prompt, completion))
        # A refused request costs nothing; one that vanished, or was answered without a count, may have cost it all.
        refused = call.status is not None and call.status >= 400
        return limits.CallUsed(reservation, 0 if refused else None, 0 if refused else None)

    def _refused(self, job: ClaimedJob, admission: limits.Admission) -> BudgetSpent:
        code, reason = _CAPS[admission.verdict]
        CALLS_ADMITTED.add(agent=job.agent, verdict="spent" if admission.verdict == "spent" else "capped")
        self.something_spent = self.something_spent or admission.verdict == "spent"
        return BudgetSpent(admission.detail or admission.verdict, code=code, reason=reason)

    async def _pause(self, seconds: float) -> None:
        try:
            with db.translated():
                async with self._pool.connection() as session:
                    await limits.pause_endpoint(session, self._endpoint, seconds)
        except RowcallError as error:
            # Only a courtesy to the other workers: this one waits all the same.
            _log.warning("the endpoint's pause is not shared: %s", error, extra={"action": "pause_not_shared"})
