"""What an agent's run works with: implements `consumer.agents.door.Context` on top of checkpoints and call records."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from consumer import db, effects
from consumer.agents.door import Agent, HttpAnswer, Input, Reader, Retry, StepKind, Tier
from consumer.errors import AgentError, EffectUnknown, HttpRetryable, LeaseLost
from consumer.executor.commit import GroupCommit
from consumer.executor.http_step import HttpStep
from consumer.executor.measure import call_ended
from consumer.executor.outside import Outside
from consumer.executor.permits import Permits
from consumer.executor.tries import tried
from consumer.llm import CallFinished, CallStarted, ModelClient, ModelRequest
from consumer.outcome.transaction import faults, refuse_control
from consumer.records import decode, encode
from consumer.records.jobs import ClaimedJob, storable
from consumer.steps import CallDone, CallSent, Checkpoint, StoredStep, stored
from consumer.telemetry import CHECKPOINTS

# rowcall.job_steps has the same bound, prefix included; the reserved name is the outcome's own checkpoint.
_NAME_LIMIT: Final = 196
_RESERVED: Final = "write_result"
_ACT: Final = "act:"

# Characters of one step's output; each checkpoint is written to the log and read again by every later attempt.
STEP_LIMIT: Final = 16 * 1024 * 1024

# Names of steps that began inside the present try of a step around them.
_INSIDE: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("inside", default=None)


@dataclass(frozen=True, slots=True)
class Services:
    """What all runs of a worker share; `own_sources` are the connectors that read this very database.

    Answers of the agents in `least_tiers` count as of that tier at least.
    """

    checkpoints: GroupCommit[Checkpoint, bool]
    calls_sent: GroupCommit[CallSent, int | None]
    calls_done: GroupCommit[CallDone, None]
    model: ModelClient
    permits: Permits
    reader: Reader
    outside: Outside
    own_sources: frozenset[str]
    least_tiers: Mapping[str, Tier]


class PoolReader:
    """Read-only SQL on pooled sessions; implements `consumer.agents.door.Reader`."""

    def __init__(self, pool: db.AsyncPool) -> None:
        self._pool = pool

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """The rows of one SELECT; see the door."""
        refuse_control(query)
        with faults(), db.translated():
            async with self._pool.connection() as session:
                return await db.fetch_all(session, query, parameters)


class RunContext:
    """One attempt of one run."""

    def __init__(self, job: ClaimedJob, agent: Agent, message: Input, services: Services) -> None:
        self._job = job
        self._agent = agent
        self._message = message
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._stored = {step.name: step for step in stored(job)}
        self._used: set[str] = set()
        self.lost = False
        # An effect of this run may have happened; whatever its agent makes of that, the run goes to a person.
        self.unknown: EffectUnknown | None = None
        # Effects under way by their steps, and one that its agent stopped waiting for.
        self._open: dict[str, asyncio.Future[None]] = {}
        self._left_behind: str | None = None
        self._ended = False
        self._acting = False
        self._number = 0
        self._calls: dict[str, int] = {}

    @property
    def run_id(self) -> int:
        """The job's ID."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._job.attempt

    @property
    def idempotency_key(self) -> str:
        """Stable over all attempts of this run."""
        return self._job.idempotency_key

    @property
    def merged(self) -> int:
        """How many later changes of the key this run has taken in."""
        return self._job.merged

    @property
    def feedback(self) -> tuple[str, ...]:
        """Notes of reviewers who asked for another attempt."""
        return self._job.feedback

    @property
    def sql(self) -> Reader:
        """Read-only SQL."""
        return self._services.reader

    @property
    def steps_taken(self) -> int:
        """How many steps this attempt has passed, kept ones included."""
        return self._number

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        kind: StepKind = StepKind.AGENT_STEP,
        retry: Retry | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Run `function` once and keep what it returns; see the door."""
        name, stored, number = self._begin(name)
        if stored is not None:
            return decode(stored.output)
        started_at = dt.datetime.now(dt.UTC)
        around, inside = _INSIDE.get(), set[str]()
        mark = _INSIDE.set(inside)
        try:
            value = await tried(
                name, function, arguments, retry=retry, seconds=timeout_seconds, labels=self._job.labels,
                again=lambda: self._forget(inside),
            )  # fmt: skip
        finally:
            _INSIDE.reset(mark)
            if around is not None:
                around |= inside
        try:
            output = encode(value)
            # What a resumed run would get, so that both see the same.
            kept = decode(output)
        except (TypeError, ValueError, RecursionError) as error:
            raise AgentError(f"what step {name!r} returned cannot be kept: {error}") from error
        if len(output) > STEP_LIMIT:
            raise AgentError(
                f"what step {name!r} returned is {len(output)} characters long, of at most {STEP_LIMIT}; keep it where "
                "it belongs (a table, a file, a bucket) and return where it is",
                code="step_too_large",
            )
        await self._keep(Checkpoint(
            self._job.id, self._job.epoch, name, kind.value, number, output, self._agent.version, started_at
        ))  # fmt: skip
        return kept

    async def ask(self, name: str, /, *, prompt: str, input: Any, answer: type[BaseModel] | None = None) -> Any:
        """Ask the model once and keep the validated answer; see the door."""
        model = answer or self._agent.answer
        name, stored, number = self._begin(name)
        if stored is not None:
            return model.model_validate_json(stored.output, strict=True)
        started_at = dt.datetime.now(dt.UTC)
        feedback = self._job.feedback
        request = ModelRequest(
            prompt=_with_notes(prompt, feedback) if model is self._agent.answer else prompt,
            input=input,
            answer=model,
            # Another attempt is another question, which nobody may answer from a store.
            idempotency_key=f"{self._job.idempotency_key}-{name}{f'-again{len(feedback)}' if feedback else ''}",
            rules=self._broken_rules if model is self._agent.answer else None,
        )

        reservations: dict[int, int | None] = {}

        async def sent(call: CallStarted) -> int:
            reservation = await self._permitted(call)
            call_id = await self._sent(name, call)
            reservations[call_id] = reservation
            return call_id

        answered: list[CallDone] = []

        async def done(call_id: int, call: CallFinished) -> None:
            call_ended(self._agent.name, call)
            await self._services.permits.leave(reservations.pop(call_id), call)
            if call.validated:
                answered.append(call_done(call_id, call))
            else:
                await self._services.calls_done.submit(call_done(call_id, call))

        given = await self._services.model.ask(request, on_send=sent, on_done=done)
        checkpoint = Checkpoint(
            self._job.id, self._job.epoch, name, StepKind.CALL_MODEL.value, number, given.text,
            self._agent.version, started_at,
        )  # fmt: skip
        # The answer's record and its checkpoint wait for the same disk. The record lands also where the lease is lost.
        written = await asyncio.gather(
            self._keep(checkpoint),
            *(self._services.calls_done.submit(call) for call in answered),
            return_exceptions=True,
        )
        for failure in written:
            if failure is not None:
                raise failure
        return given.value

    def acting(self) -> RunContext:
        """The same context for `act`: effects are allowed, and its steps have names of their own."""
        self._acting = True
        return self

    async def http(self, name: str, method: str, url: str, **options: Any) -> HttpAnswer:
        """Call another system once and keep its answer; see the door."""
        request = effects.read(method, url, **options)
        if not request.safe and not self._acting and not self._agent.effects_before_answer:
            raise AgentError(
                f"step {name!r}: {request.method} has an effect, and `run` has no validated and approved answer yet. "
                "Move it into @agent.act, or declare effects_before_answer=True"
            )
        name, stored, number = self._begin(name)
        if stored is not None:
            return effects.read_answer(stored.output)
        step = HttpStep(
            self._services.outside, self._job, self._agent.version, name, number, request,
            self._services.calls_sent.submit, self._services.calls_done.submit, self._keep, self._calls,
        )  # fmt: skip
        landed = asyncio.get_running_loop().create_future()
        self._open[name] = landed
        try:
            answer = await step.answer()
        except LeaseLost:
            self.lost = True
            raise
        except EffectUnknown as error:
            self.unknown = error
            raise
        except asyncio.CancelledError:
            if not request.safe:
                self._left_behind = name
            raise
        finally:
            del self._open[name]
            landed.set_result(None)
        if self._left_behind == name:
            self._left_behind = None
        return answer

    async def end(self) -> None:
        """The agent has returned or raised: wait for the calls it left under way, and take no more.

        Raises:
            EffectUnknown: an effect may have happened. HttpRetryable: its agent stopped waiting for one; the next
                attempt finds it in the ledger.
        """
        # A task that has only been made begins its call now.
        await asyncio.sleep(0)
        while self._open:
            await asyncio.wait(self._open.values())
        self._ended = True
        if self.lost:
            return
        if self.unknown is not None:
            raise self.unknown
        if self._left_behind is not None:
            raise HttpRetryable(
                f"step {self._left_behind!r}: the agent stopped waiting for its effect, which may have happened. Give "
                "the call a timeout= of its own, and await it",
                code="effect_left_behind",
            )

    def _begin(self, name: str) -> tuple[str, StoredStep | None, int]:
        """The full name of a step, what is kept of it, and its number."""
        if self._ended:
            raise AgentError(f"step {name!r} began after its run had ended; await what belongs to the run")
        if asyncio.get_running_loop() is not self._loop:
            raise AgentError(
                f"step {name!r} began in an event loop of its own (asyncio.run in a thread?), where no lease and no "
                "ledger is written; await it in the run, or make its caller an async step"
            )
        usable = name and name != _RESERVED and storable(name) == name and not name.startswith(_ACT)
        if not usable or len(name) > _NAME_LIMIT:
            raise AgentError(
                f"{name[:50]!r} cannot be a step's name: 1 to {_NAME_LIMIT} storable characters, not {_RESERVED!r}, "
                f"and not beginning with {_ACT!r}"
            )
        # After an approval `act` runs without `run` before it: its steps must never meet those of `run`.
        name = f"{_ACT}{name}" if self._acting else name
        if name in self._used:
            raise AgentError(f"step {name!r} was used before in this run; a step's name is its identity")
        self._used.add(name)
        if (inside := _INSIDE.get()) is not None:
            inside.add(name)
        self._number += 1
        return name, self._stored.get(name), self._number

    def _forget(self, inside: set[str]) -> None:
        """A step is tried again: what began inside it may begin again, but for effects that are still under way."""
        inside -= self._open.keys()
        self._used -= inside
        inside.clear()

    async def _keep(self, checkpoint: Checkpoint) -> None:
        if not await self._services.checkpoints.submit(checkpoint):
            self.lost = True
            raise LeaseLost(f"run {self._job.id}: step {checkpoint.name!r} finished after its lease was lost")
        self._stored[checkpoint.name] = StoredStep(
            checkpoint.name, checkpoint.kind, checkpoint.number, checkpoint.output
        )
        CHECKPOINTS.add()

    def _broken_rules(self, answer: BaseModel) -> list[str]:
        return self._agent.broken_rules(self._message, answer)

    async def _permitted(self, call: CallStarted) -> int | None:
        try:
            return await self._services.permits.enter(self._job, call)
        except LeaseLost:
            self.lost = True
            raise

    async def _sent(self, step: str, call: CallStarted) -> int:
        self._calls[step] = attempt = self._calls.get(step, 0) + 1
        call_id = await self._services.calls_sent.submit(CallSent(
            self._job.id, self._job.epoch, step, attempt, "model", call.endpoint, call.model, call.idempotency_key,
            call.input_sha256,
        ))  # fmt: skip
        if call_id is None:
            self.lost = True
            raise LeaseLost(f"run {self._job.id}: the lease was lost before a call of step {step!r}")
        return call_id


def _with_notes(prompt: str, notes: Sequence[str]) -> str:
    """The instructions with what reviewers said of earlier answers; they speak for the operator, as the author does."""
    if not notes:
        return prompt
    told = "\n".join(f"- {note}" for note in notes)
    return f"{prompt}\n\nA reviewer refused an earlier answer to this and asks for another. Their notes:\n{told}"


def call_done(call_id: int, call: CallFinished) -> CallDone:
    """What is stored of a finished call."""
    reasons = storable("; ".join(call.reasons))
    return CallDone(
        call_id=call_id,
        duration_ms=call.duration_ms,
        status_code=call.status,
        error_code=call.code,
        error=None if call.code is None else reasons,
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.completion_tokens,
        model=call.model,
        finish_reason=call.finish_reason,
        response_sha256=call.response_sha256,
        response=call.response_text,
        validated=call.validated,
        validation_error=reasons if call.validated is False else None,
    )
