"""`ctx.http`: one call to the outside as a checkpointed step; an effect goes through the ledger.

No window repeats an effect: PLANNED is committed before anything is done, SENT when the connection stands and before
its first byte, CONFIRMED together with the step's checkpoint. Whatever ends in between leaves SENT or UNKNOWN, which is
sent again only where the agent declares that harmless.
"""

from __future__ import annotations

import datetime as dt
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from consumer import db, effects, steps
from consumer.agents.door import Effect, HttpAnswer, Resolution, StepKind
from consumer.effects import Entry, Kept, Meaning, Request, Settled
from consumer.errors import AgentError, EffectUnknown, HttpBlocked, HttpRefused, HttpRetryable, LeaseLost
from consumer.executor.calls import OutsideCall, mark_sent, recorded
from consumer.executor.outside import Outside
from consumer.http.outward import HttpFailed
from consumer.llm.retry_after import asked_wait
from consumer.records.jobs import ClaimedJob
from consumer.steps import CallDone, CallSent, Checkpoint
from consumer.telemetry import CHECKPOINTS, EFFECTS

_LATER: Final = (408, 425, 429)
# Seconds of a server's own wish that are heeded: a run must not sleep for years on a careless header.
_LONGEST_WAIT: Final = 3600.0
# What a reconcile function may read: an answer that says something, 404 with it.
_TELLING: Final = frozenset(range(200, 500)) - frozenset(_LATER)


@dataclass(slots=True)
class HttpStep:
    """One call in one attempt of a run. `call_sent` and `call_done` write call records in groups.

    `calls` counts the requests of each step of the attempt.
    """

    outside: Outside
    job: ClaimedJob
    version: int
    name: str
    number: int
    request: Request
    call_sent: Callable[[CallSent], Awaitable[int | None]]
    call_done: Callable[[CallDone], Awaitable[None]]
    keep: Callable[[Checkpoint], Awaitable[None]]
    calls: dict[str, int]
    started_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))

    async def answer(self) -> HttpAnswer:
        """What the call gives: once, whatever happens to the run.

        Raises:
            HttpError: one of its classes. AgentError: an effect of this key was another request.
            LeaseLost: another owner has the run.
        """
        if self.request.safe:
            kept = await self._read(self.request)
            await self.keep(self._checkpoint(kept.answer, StepKind.FETCH_INPUT))
            return kept.answer
        entry = await self._planned()
        if entry.state == "CONFIRMED":
            return await self._confirmed_before(entry)
        if entry.state == "UNKNOWN":
            return await self._undecided(entry, found=True)
        return await self._sent(entry)

    # --- reads ------------------------------------------------------------------------------------------------------

    async def _read(self, request: Request) -> Kept:
        for _ in range(request.redirects + 1):
            kept = await self._asked(request)
            location = kept.answer.headers.get("location")
            if not (300 <= kept.answer.status < 400 and location) or kept.answer.status in request.accept:
                break
            if request.redirects == 0:
                break
            request = request.redirected(location)
        return self._usable(request, kept)

    async def _asked(self, request: Request) -> Kept:
        call = self._call(request, self.job.idempotency_key, effect=False)
        try:
            kept = await call.send(self.outside, self._mark_read, body_limit=self.outside.answer_bytes)
        except HttpFailed as error:
            for done in recorded(call.failed(error)):
                await self.call_done(done)
            # Without the first error, whose text may hold what the server repeated of the request.
            text = f"{request.method} {request.shown}: {call.departure.masked(str(error))}"
            raise HttpRetryable(text, code=error.code) from None
        ok = kept.answer.ok or kept.answer.status in request.accept
        for done in recorded(call.answered(kept, code=None if ok else f"http_{kept.answer.status}")):
            await self.call_done(done)
        return kept

    async def _mark_read(self, call: CallSent) -> tuple[int, float]:
        return await mark_sent(self.call_sent, call)

    def _usable(self, request: Request, kept: Kept) -> Kept:
        status = kept.answer.status
        if kept.answer.truncated:
            raise HttpRefused(
                f"{request.shown} gave more than {self.outside.answer_bytes} bytes, or less than it announced",
                code="http_answer_cut",
                answer=kept.answer,
            )
        if kept.answer.ok or status in request.accept:
            return kept
        if status in _LATER or status >= 500:
            raise self._later(request, kept)
        raise _refused(request, kept)

    # --- effects ----------------------------------------------------------------------------------------------------

    async def _planned(self) -> Entry:
        async def work(session: db.Session, left: float) -> Entry:
            return await effects.plan(session, self.job, self.name, self.request)

        entry = await self.outside.written(self.job, work)
        if entry.state == "PLANNED":
            self._count("planned")
        return entry

    async def _confirmed_before(self, entry: Entry) -> HttpAnswer:
        assert entry.response is not None
        self._refuse_another(entry)
        answer = effects.read_answer(entry.response)
        await self.keep(self._checkpoint(answer, StepKind.AGENT_STEP))
        return answer

    async def _sent(self, entry: Entry, *, again: bool = False) -> HttpAnswer:
        """Send a planned effect, or with `again` one that may have happened and may be repeated."""
        call = self._call(self.request, str(entry.id), effect=True)

        async def mark(record: CallSent) -> tuple[int, float]:
            async def work(session: db.Session, left: float) -> tuple[int, float]:
                await effects.send(session, self.job, entry.id)
                (call_id,) = await steps.call_sent(session, [record])
                if call_id is None:
                    raise LeaseLost(f"run {self.job.id}: the lease was lost before step {self.name!r} was sent")
                return call_id, left

            marked = await self.outside.written(self.job, work, patient=False)
            self._count("sent")
            return marked

        try:
            kept = await call.send(self.outside, mark, body_limit=effects.EFFECT_BODY)
        except HttpFailed as error:
            return await self._without_answer(entry, call, error, again=again)
        except (AgentError, HttpBlocked) as error:
            if call.call_id is not None or not again:
                await self._settle(entry, _not_sent(error.code, str(error), again=again), None)
            raise
        return await self._judged(entry, call, kept, again=again)

    async def _without_answer(self, entry: Entry, call: OutsideCall, error: HttpFailed, *, again: bool) -> HttpAnswer:
        text = f"{self.request.method} {self.request.shown}: {call.departure.masked(str(error))}"
        if error.left:
            await self._settle(entry, Settled("UNKNOWN", None, error.code, text), call.failed(error))
            return await self._undecided(entry, found=False)
        if call.call_id is not None or not again:
            await self._settle(entry, _not_sent(error.code, text, again=again), call.failed(error))
        raise HttpRetryable(text, code=error.code) from None

    async def _judged(self, entry: Entry, call: OutsideCall, kept: Kept, *, again: bool) -> HttpAnswer:
        answer, code = kept.answer, f"http_{kept.answer.status}"
        meaning = effects.meaning(answer.status, answer.headers, self.request.accept)
        if meaning is Meaning.DONE:
            await self._settle(entry, _confirmed(kept, "server"), call.answered(kept, code=None), answer)
            return answer
        text = f"{self.request.method} {self.request.shown} gave {answer.status}: {answer.text[:300]}"
        # What is said to a repetition tells nothing of what went before it.
        state: Any = "UNKNOWN" if again or meaning is Meaning.UNKNOWN else "FAILED"
        settled = Settled(
            state, "server" if state == "FAILED" else None, code, text, answer.status, kept.sha256,
            effects.stored_answer(answer), answer.truncated,
        )  # fmt: skip
        await self._settle(entry, settled, call.answered(kept, code=code, error=text))
        if meaning is Meaning.LATER:
            raise self._later(self.request, kept)
        if state == "FAILED":
            raise _refused(self.request, kept)
        if meaning is Meaning.REFUSED:
            raise self._unknown(entry)
        return await self._undecided(entry, found=False)

    async def _undecided(self, entry: Entry, *, found: bool) -> HttpAnswer:
        """Decide about what may have happened; `found` by a later attempt, or just now."""
        same = entry.request_sha256 == self.request.digest
        if same and entry.idempotent and self.request.idempotent:
            if found:
                return await self._sent(entry, again=True)
            raise HttpRetryable(f"step {self.name!r}: nobody knows whether it happened; sent again", code="http_repeat")
        if self.request.reconcile is None:
            raise self._unknown(entry)
        said: Any = self.request.reconcile(self._effect(entry))
        if inspect.isawaitable(said):
            said = await said
        if not isinstance(said, Resolution):
            raise AgentError(
                f"the reconcile function of step {self.name!r} must return happened(…), did_not_happen() or unknown()"
            )
        if said.verdict == "unknown":
            raise self._unknown(entry)
        if said.verdict == "did_not_happen":
            await self._settle(entry, Settled("FAILED", "reconcile", "effect_not_happened", "reconciled"), None)
            if found:
                return await self._sent(await self._planned())
            raise HttpRetryable(f"step {self.name!r} did not happen; sent again", code="http_repeat")
        answer = _bounded(said.answer or HttpAnswer(200))
        kept = effects.kept(self._departure(str(entry.id)), answer.status, answer.headers, answer.content,
                            whole=not answer.truncated)  # fmt: skip
        await self._settle(entry, _confirmed(kept, "reconcile"), None, kept.answer)
        self._refuse_another(entry)
        return kept.answer

    async def _settle(
        self, entry: Entry, settled: Settled, done: CallDone | None, answer: HttpAnswer | None = None
    ) -> None:
        """One transaction of the owner: the effect, its call record, and with `answer` the step's checkpoint."""

        async def work(session: db.Session, left: float) -> None:
            await effects.settle(session, self.job, entry.id, settled)
            if done is not None:
                await steps.call_done(session, [done])
            if answer is not None:
                checkpoint = self._checkpoint(answer, StepKind.AGENT_STEP)
                await steps.checkpoint(session, [checkpoint], self.outside.lease_seconds)

        try:
            await self.outside.written(self.job, work)
        except LeaseLost:
            # The effect is its new owner's; what this call gave is still worth knowing.
            if done is not None:
                await self.call_done(done)
            raise
        self._count(settled.state.lower())
        if answer is not None:
            CHECKPOINTS.add()

    # --- parts ------------------------------------------------------------------------------------------------------

    def _call(self, request: Request, key: str, *, effect: bool) -> OutsideCall:
        self.calls[self.name] = number = self.calls.get(self.name, 0) + 1
        departure = effects.departure(request, idempotency_key=key if effect else None)
        return OutsideCall(self.job, self.name, number, request, departure, key)

    def _departure(self, key: str) -> effects.Departure:
        return effects.departure(self.request, idempotency_key=key)

    def _checkpoint(self, answer: HttpAnswer, kind: StepKind) -> Checkpoint:
        return Checkpoint(
            self.job.id, self.job.epoch, self.name, kind.value, self.number, effects.stored_answer(answer),
            self.version, self.started_at,
        )  # fmt: skip

    def _effect(self, entry: Entry) -> Effect:
        async def get(url: str, **options: Any) -> HttpAnswer:
            asked = effects.read("GET", url, **({"accept": _TELLING} | options))
            return (await self._read(asked)).answer

        return Effect(
            entry.id, entry.job_id, entry.step, entry.business_key, entry.method, entry.url, max(1, entry.attempts),
            entry.planned_at, entry.sent_at or entry.planned_at, get,
        )  # fmt: skip

    def _refuse_another(self, entry: Entry) -> None:
        if entry.request_sha256 != self.request.digest:
            raise AgentError(
                f"step {self.name!r} with key {self.request.key!r} was done as another request in an earlier attempt "
                f"(effect {entry.id}); what is to be done beside it needs a key of its own",
                code="effect_changed",
            )

    def _unknown(self, entry: Entry) -> EffectUnknown:
        return EffectUnknown(
            f"step {self.name!r}: {entry.method} {entry.url} may have happened, and nobody here knows. Look for its "
            f"{self.request.key_header} {entry.id} there, then `rowcall effects resolve {entry.id} --happened` or "
            "`--did-not-happen`"
        )

    def _later(self, request: Request, kept: Kept) -> HttpRetryable:
        wish = asked_wait(kept.answer.headers, time.time())
        text = f"{request.method} {request.shown} gave {kept.answer.status}: {kept.answer.text[:300]}"
        wait = None if wish is None else min(wish, _LONGEST_WAIT)
        return HttpRetryable(text, code=f"http_{kept.answer.status}", retry_after_seconds=wait)

    def _count(self, state: str) -> None:
        EFFECTS.add(agent=self.job.agent, state=state)


def _confirmed(kept: Kept, by: str) -> Settled:
    answer = kept.answer
    return Settled(
        "CONFIRMED", by, status=answer.status, sha256=kept.sha256, response=effects.stored_answer(answer),
        truncated=answer.truncated,
    )  # fmt: skip


def _not_sent(code: str, text: str, *, again: bool) -> Settled:
    """Nothing left this time; of a repetition that says nothing about what went before."""
    return Settled("UNKNOWN", None, code, text) if again else Settled("FAILED", "worker", code, text)


def _refused(request: Request, kept: Kept) -> HttpRefused:
    text = f"{request.method} {request.shown} gave {kept.answer.status}: {kept.answer.text[:300]}"
    return HttpRefused(text, code=f"http_{kept.answer.status}", answer=kept.answer)


def _bounded(answer: HttpAnswer) -> HttpAnswer:
    if len(answer.content) <= effects.EFFECT_BODY:
        return answer
    return HttpAnswer(answer.status, answer.headers, answer.content[: effects.EFFECT_BODY], truncated=True)
