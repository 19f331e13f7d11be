"""The model client: one question → one validated answer, or the error that says what to do about it.

Before it: a step of a run. After it: the run's checkpoint. It writes nothing itself; each request is handed to
`on_send` before its bytes leave and to `on_done` after, so a crash in between leaves a record that says "sent".

Within one question it repeats retryable failures (backoff or the endpoint's own wish), asks once more with the errors
when an answer is invalid, doubles `max_tokens` once when one was cut, and steps down from what the endpoint refuses;
everything inside one total deadline. What is left becomes one of the four classes of `ModelError`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import BaseModel

from consumer import http
from consumer.errors import ModelError, ModelInvalid, ModelRetryable, Outage
from consumer.llm.ability import Ability, Mode, refused_form, step_down
from consumer.llm.answer import Invalid, Valid, read_answer
from consumer.llm.breaker import Breaker
from consumer.llm.calls import Answer, CallFinished, CallStarted, OnDone, OnSend
from consumer.llm.codes import decision_of
from consumer.llm.error_body import Failure, Limits, read_error
from consumer.llm.request import Correction, ModelRequest, body_of, data_of, header_key
from consumer.llm.response import Reading, read_response
from consumer.llm.schema import function_name
from consumer.llm.target import Target
from consumer.settings import Settings

# openai-python's: 0.5 s doubling to 8 s, up to a quarter taken off at random.
BACKOFF_SECONDS: Final = 0.5
BACKOFF_STEPS: Final = 4
JITTER: Final = 0.25
# Changes of form within one question: two of JSON mode, one each of token limit and temperature, one raced by others.
_FORM_CHANGES: Final = 5


@dataclass
class _Progress:
    """How far one question has come."""

    request: ModelRequest
    data: str
    deadline: float
    max_tokens: int
    correction: Correction | None = None
    form: int = 1
    attempts: int = 0
    repeats: int = 0
    form_changes: int = 0
    raised_budget: bool = False
    seen: set[str] = field(default_factory=set)
    last: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request and what came back."""

    ability: Ability
    reading: Reading
    response: http.Response | None
    duration_ms: int


class ModelClient:
    """A client of the endpoint in the settings; share one in a process, and close it.

    `backoff_seconds` and `breaker` are for tests, which cannot wait.
    """

    def __init__(
        self, settings: Settings, *, backoff_seconds: float = BACKOFF_SECONDS, breaker: Breaker | None = None
    ) -> None:
        self._settings = settings
        self._target = Target(settings)
        self._http = http.open_async("model", read_seconds=None)
        self._backoff = backoff_seconds
        self._breaker = breaker or Breaker()
        self._automatic = settings.model_response_format == "auto"
        first: Mode = "json_schema" if settings.model_response_format == "auto" else settings.model_response_format
        self._first_ability = Ability(first)
        self._abilities: dict[type[BaseModel], Ability] = {}
        self._accepted: set[tuple[type[BaseModel], Ability]] = set()
        self._proven = False

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, request: ModelRequest, *, on_send: OnSend, on_done: OnDone) -> Answer:
        """Ask until there is a validated answer or a reason to stop.

        `on_send` gives the call's record an ID, `on_done` completes it; neither is cut by the deadline, which counts
        their time all the same. A cancelled question leaves its last record as sent.

        Raises:
            ModelRetryable: with the endpoint's wish for a pause, if it named one.
            ModelInvalid: after the re-ask, with the last answer's text and what is wrong with it.
            ModelFatal, ModelUnavailable: see `codes`.
            AgentError: when input or answer model cannot be shown to a model.
        """
        loop = asyncio.get_running_loop()
        seconds = request.deadline_seconds or self._settings.model_timeout_seconds
        progress = _Progress(request, data_of(request), loop.time() + seconds, self._settings.model_max_tokens)
        while True:
            outcome = await self._attempt(progress, on_send, on_done)
            if isinstance(outcome, Answer):
                return outcome
            progress.last = outcome
            await self._prepare(progress, outcome)

    async def _attempt(self, progress: _Progress, on_send: OnSend, on_done: OnDone) -> Answer | Failure:
        """One request, recorded before and after."""
        loop = asyncio.get_running_loop()
        self._refuse_while_open(progress, loop.time())
        request, progress.attempts = progress.request, progress.attempts + 1
        ability = self._abilities.get(request.answer, self._first_ability)
        key = header_key(request.idempotency_key, progress.form)
        body = body_of(request, progress.data, self._target.model, progress.max_tokens, ability, progress.correction)
        digest = hashlib.sha256(body).digest()
        started = CallStarted(
            self._target.shown, self._target.model, digest, len(body), progress.max_tokens, progress.attempts, key
        )
        probe = self._breaker.enter()
        try:
            call_id = await on_send(started)
            exchange = await self._exchange(request, ability, body, key, progress.deadline)
        except BaseException:
            self._breaker.abandon(probe=probe)
            raise
        self._breaker.note(failed=_is_outage(exchange.reading.failure), probe=probe, now=loop.time())
        return await self._judge(request, exchange, call_id, progress, on_done)

    def _refuse_while_open(self, progress: _Progress, now: float) -> None:
        wait = self._breaker.wait(now)
        if wait is None:
            return
        failure = progress.last or Failure("model_circuit_open", "not sent: the endpoint failed several times in a row")
        raise self._error(progress, replace(failure, wait=max(wait, failure.wait or 0.0)))

    async def _exchange(
        self, request: ModelRequest, ability: Ability, body: bytes, key: str, deadline: float
    ) -> _Exchange:
        loop = asyncio.get_running_loop()
        began, response = loop.time(), None
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._http.request(
                    "POST", self._target.url, content=body, headers=self._target.headers(key)
                )
        except TimeoutError:
            reading = Reading(failure=Failure("model_timeout", f"no whole answer in {loop.time() - began:.1f} s"))
        except Outage as error:
            code = "model_timeout" if error.code == "timeout" else "model_transport"
            reading = Reading(failure=Failure(code, str(error)))
        else:
            reading = self._read(request, ability, response)
        return _Exchange(ability, reading, response, round((loop.time() - began) * 1000))

    def _read(self, request: ModelRequest, ability: Ability, response: http.Response) -> Reading:
        shape = (request.answer, ability)
        limits = Limits(self._settings.model_max_retry_after_seconds, shape in self._accepted, self._proven)
        reading = read_response(response, function_name(request.answer), limits)
        failure = reading.failure
        if failure is None:
            self._accepted.add(shape)
            self._proven = True
        elif not response.ok and refused_form(response.status, read_error(response.content)):
            return replace(reading, failure=replace(failure, code="model_format_refused"))
        return reading

    async def _judge(
        self, request: ModelRequest, exchange: _Exchange, call_id: int, progress: _Progress, on_done: OnDone
    ) -> Answer | Failure:
        """Validate, complete the record, give the answer or why there is none."""
        reading, failure, valid = exchange.reading, exchange.reading.failure, None
        if failure is None:
            try:
                result = read_answer(reading.text, request.answer, request.rules)
            except Exception as error:
                raised = Failure("model_rules", "", reasons=(f"validation raised {type(error).__name__}",))
                await on_done(call_id, self._finished(exchange, raised))
                raise
            if isinstance(result, Valid):
                valid = result
            else:
                failure = _invalid(result, reading.text)
        await on_done(call_id, self._finished(exchange, failure))
        if failure is not None:
            return self._stepped_down(progress, exchange, failure)
        assert valid is not None
        return Answer(
            valid.value, valid.text, call_id, progress.attempts, reading.model, reading.finish_reason,
            reading.prompt_tokens, reading.completion_tokens,
        )  # fmt: skip

    def _finished(self, exchange: _Exchange, failure: Failure | None) -> CallFinished:
        reading, response, clean = exchange.reading, exchange.response, self._target.redactor
        judged = failure is None or issubclass(decision_of(failure.code), ModelInvalid)
        reasons = () if failure is None else (failure.reasons or (failure.message,))
        return CallFinished(
            status=None if response is None else response.status,
            code=None if failure is None else failure.code,
            duration_ms=exchange.duration_ms,
            prompt_tokens=reading.prompt_tokens,
            completion_tokens=reading.completion_tokens,
            model=None if reading.model is None else clean.text(reading.model),
            finish_reason=None if reading.finish_reason is None else clean.text(reading.finish_reason),
            response_sha256=None if response is None else hashlib.sha256(response.content).digest(),
            response_text=None if response is None else clean.body(response.content),
            validated=failure is None if judged else None,
            reasons=tuple(clean.text(reason) for reason in reasons),
            pause_seconds=_pause_of(failure),
        )

    def _stepped_down(self, progress: _Progress, exchange: _Exchange, failure: Failure) -> Failure:
        """Remember what the endpoint refused; the failure is repeatable where another form is left to try."""
        if failure.code != "model_format_refused" or exchange.response is None:
            return failure
        answer = progress.request.answer
        if self._abilities.get(answer, self._first_ability) == exchange.ability:
            error = read_error(exchange.response.content)
            lower = step_down(exchange.ability, error, automatic=self._automatic)
            if lower is None:
                return replace(failure, repeatable=False)
            self._abilities[answer] = lower
        return failure

    async def _prepare(self, progress: _Progress, failure: Failure) -> None:
        """Make the next request different, or wait, or raise."""
        if failure.next_code is not None:
            if failure.code in progress.seen:
                failure = replace(failure, code=failure.next_code)
            progress.seen.add(failure.code)
        decision = decision_of(failure.code)
        if decision is ModelRetryable:
            await self._pause(progress, failure)
            return
        if decision is ModelInvalid and progress.correction is None:
            progress.correction = Correction(failure.raw, failure.reasons or (failure.message,))
        elif failure.code == "model_truncated" and not progress.raised_budget:
            progress.raised_budget = True
            progress.max_tokens *= 2
        elif failure.code == "model_format_refused" and failure.repeatable and progress.form_changes < _FORM_CHANGES:
            progress.form_changes += 1
        else:
            raise self._error(progress, failure)
        progress.form += 1
        if asyncio.get_running_loop().time() >= progress.deadline:
            raise self._error(progress, Failure("model_timeout", f"the deadline ended after: {failure.message}"))

    async def _pause(self, progress: _Progress, failure: Failure) -> None:
        """Wait before a repeat, or raise where none is left, allowed or in time."""
        delay = failure.wait
        if delay is None:
            jitter = 1 - JITTER * random.random()
            delay = self._backoff * 2 ** min(progress.repeats, BACKOFF_STEPS) * jitter
        late = asyncio.get_running_loop().time() + delay >= progress.deadline
        too_long = delay > self._settings.model_max_retry_after_seconds
        if late or too_long or not failure.repeatable or progress.repeats >= self._settings.model_retries:
            raise self._error(progress, failure)
        progress.repeats += 1
        await asyncio.sleep(delay)

    def _error(self, progress: _Progress, failure: Failure) -> ModelError:
        """The error of `failure`, which names model, prompt and input length for whoever reads it later."""
        clean = self._target.redactor.text
        request = progress.request
        told = failure.message or "; ".join(failure.reasons)
        message = clean(
            f"{told} (model {self._target.model}, prompt {request.prompt.strip()[:60]!r}, "
            f"input {len(progress.data)} characters, {progress.attempts} requests)"
        )
        decision = decision_of(failure.code)
        if decision is ModelRetryable:
            return ModelRetryable(message, code=failure.code, retry_after_seconds=failure.wait)
        if decision is ModelInvalid:
            reasons = [clean(reason) for reason in failure.reasons or (failure.message,)]
            parseable = failure.code in ("model_schema", "model_rules")
            return ModelInvalid(
                message, code=failure.code, raw=clean(failure.raw), reasons=reasons, parseable=parseable
            )
        return decision(message, code=failure.code)


def _invalid(result: Invalid, text: str) -> Failure:
    return Failure(result.code, "; ".join(result.reasons)[:500], raw=text, reasons=result.reasons)


def _pause_of(failure: Failure | None) -> float | None:
    """The endpoint's wish that nobody calls for a while; a 429 without a time asks for a second."""
    if failure is None:
        return None
    if failure.code == "model_rate_limited":
        return failure.wait or 1.0
    return failure.wait if _is_outage(failure) else None


def _is_outage(failure: Failure | None) -> bool:
    """Whether the endpoint itself is down: nothing came, or a 5xx. A 429 shows that it lives."""
    if failure is None:
        return False
    return failure.code in ("model_transport", "model_timeout", "model_overloaded") or failure.code.startswith(
        "model_http_5"
    )
