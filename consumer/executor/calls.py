"""One request of an agent to the outside: its call record before the first byte leaves, its answer after."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from consumer import effects
from consumer.effects import Departure, Kept, Request
from consumer.errors import LeaseLost
from consumer.executor.outside import Outside
from consumer.http.outward import HttpFailed, Outgoing
from consumer.records.jobs import ClaimedJob, storable
from consumer.steps import CallDone, CallSent

# Writes what must be there before the request leaves; gives the record's ID, and for how many seconds the lease holds.
Mark = Callable[[CallSent], Awaitable[tuple[int, float]]]


@dataclass(slots=True)
class OutsideCall:
    """A request under way. `call_id` is None until it leaves."""

    job: ClaimedJob
    step: str
    attempt: int
    request: Request
    departure: Departure
    idempotency_key: str
    call_id: int | None = None
    _began: float = field(default_factory=time.monotonic)

    async def send(self, outside: Outside, mark: Mark, *, body_limit: int) -> Kept:
        """Send it once; the answer is without secrets.

        Raises:
            HttpFailed: no status came back.
            LeaseLost: the run was taken over before it left; nothing was sent.
        """

        async def leaving() -> None:
            asked = time.monotonic()
            self.call_id, left = await mark(self._sent())
            # A process that was frozen meanwhile must not send when another has the run.
            if time.monotonic() >= asked + left:
                raise LeaseLost(f"run {self.job.id}: its lease ran out before the call of step {self.step!r} left")

        outgoing = Outgoing(
            self.request.method,
            self.departure.url,
            self.departure.headers,
            self.request.content,
            outside.deadline(self.request),
            body_limit,
        )
        self._began = time.monotonic()
        came = await outside.outward.send(outgoing, leaving)
        return effects.kept(self.departure, came.status, came.headers, came.content, whole=came.whole)

    def answered(self, kept: Kept, *, code: str | None, error: str | None = None) -> CallDone | None:
        """Its record with an answer; None where it never left."""
        text = storable_body(kept)
        return self._done(kept.answer.status, code, error, kept.sha256, text)

    def failed(self, error: HttpFailed) -> CallDone | None:
        """Its record without an answer; None where it never left."""
        return self._done(None, error.code, self.departure.masked(str(error)), None, None)

    def _done(
        self, status: int | None, code: str | None, error: str | None, digest: bytes | None, text: str | None
    ) -> CallDone | None:
        if self.call_id is None:
            return None
        return CallDone(
            call_id=self.call_id,
            duration_ms=round((time.monotonic() - self._began) * 1000),
            status_code=status,
            error_code=code,
            error=None if error is None else storable(error),
            prompt_tokens=None,
            completion_tokens=None,
            model=None,
            finish_reason=None,
            response_sha256=digest,
            response=text,
            validated=None,
            validation_error=None,
        )

    def _sent(self) -> CallSent:
        return CallSent(
            self.job.id, self.job.epoch, self.step, self.attempt, "http",
            storable(f"{self.request.method} {self.request.endpoint}"), None, self.idempotency_key, self.request.digest,
        )  # fmt: skip


def recorded(call: CallDone | None) -> list[CallDone]:
    """The record as a group; none where the request never left."""
    return [] if call is None else [call]


async def mark_sent(calls: Callable[[CallSent], Awaitable[int | None]], call: CallSent) -> tuple[int, float]:
    """The record of a call that has no effect; its lease is not looked at again.

    Raises:
        LeaseLost: another owner has the run.
    """
    call_id = await calls(call)
    if call_id is None:
        raise LeaseLost(f"run {call.job_id}: the lease was lost before a call of step {call.step!r}")
    return call_id, float("inf")


def storable_body(kept: Kept) -> str:
    """The start of a body as the call record keeps it."""
    text = kept.answer.content[: effects.EFFECT_BODY].decode("utf-8", "ignore")
    return text.replace("\x00", "\ufffd")
