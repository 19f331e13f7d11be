"""`rowcall model check`: is this endpoint fit to be switched to? Asked of the endpoint itself, with masked samples.

It proves what the client relies on: that it is reached and lets us in, which JSON modes work, how many answers are
valid, that a wrong key and a wrong model name are told apart from a passing fault, that a deadline cuts, which limits
it names, how long it takes. It costs about ten small requests and the samples, and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, SecretStr

from consumer import http
from consumer.errors import ModelError, ModelUnavailable, Outage
from consumer.llm.ability import Ability, Mode
from consumer.llm.calls import CallFinished, CallStarted
from consumer.llm.client import ModelClient
from consumer.llm.request import ModelRequest, body_of, data_of
from consumer.llm.samples import MASKED_COLUMNS, PROMPT, SAMPLES, OrderTriage, masked
from consumer.llm.target import Target
from consumer.settings import Settings

Level = Literal["ok", "warn", "fail"]

REACHABLE: Final = "reachable"
"""The finding that all others depend on."""

# Neither exists anywhere; both say in a provider's log where they come from.
WRONG_KEY: Final = "rowcall-check-wrong-key"
WRONG_MODEL: Final = "rowcall-check-no-such-model"
# Seconds; no model answers over a network in that time, a local one may.
SHORT_DEADLINE: Final = 0.02
# Samples asked about at once: enough to meet a limit on parallel calls, too few to be a load test.
PARALLEL: Final = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `detail` says what was seen and, where it is not ok, what that costs."""

    level: Level
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order it was looked at."""

    endpoint: str
    model: str
    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        """Whether nothing failed."""
        return all(finding.level != "fail" for finding in self.findings)

    @property
    def reached(self) -> bool:
        """Whether the endpoint answered at all."""
        return all(finding.level != "fail" for finding in self.findings if finding.name == REACHABLE)


@dataclass
class _Asked:
    """One question and what became of it."""

    error: ModelError | None = None
    finished: list[CallFinished] = field(default_factory=list)

    async def on_send(self, call: CallStarted) -> int:
        return call.attempt

    async def on_done(self, call_id: int, call: CallFinished) -> None:
        self.finished.append(call)

    @property
    def status(self) -> int | None:
        return self.finished[-1].status if self.finished else None

    @property
    def told(self) -> str:
        """Code, status and message of the error."""
        return "answered" if self.error is None else f"{self.error.code} (HTTP {self.status}): {self.error}"


async def check(
    settings: Settings,
    samples: Sequence[Mapping[str, Any]] = SAMPLES,
    *,
    prompt: str = PROMPT,
    answer: type[BaseModel] = OrderTriage,
    mask_columns: Collection[str] = MASKED_COLUMNS,
) -> Report:
    """Check the endpoint of `settings` with `samples`, masked here before anything is sent.

    Raises:
        ConfigurationError: when address or key cannot be used at all.
        ValueError: when there is no sample.
    """
    if not samples:
        raise ValueError("a check needs at least one sample")
    target = Target(settings)
    questions = [
        ModelRequest(prompt, masked(sample, mask_columns), answer, f"rowcall-check-{index}")
        for index, sample in enumerate(samples)
    ]
    findings = await _access(settings, target, questions[0])
    if all(finding.level != "fail" for finding in findings):
        findings += await _structure(settings, questions[0])
        findings += await _answers(settings, questions)
        findings += await _faults(settings, questions[0])
    return Report(target.shown, target.model, tuple(findings))


async def _access(settings: Settings, target: Target, question: ModelRequest) -> list[Finding]:
    """One plain request, to see status and headers as they are."""
    body = body_of(question, data_of(question), target.model, settings.model_max_tokens, Ability("prompt"), None)
    try:
        async with (
            http.open_async("model", read_seconds=None) as client,
            asyncio.timeout(settings.model_timeout_seconds),
        ):
            response = await client.request("POST", target.url, content=body, headers=target.headers("rowcall-check"))
    except (Outage, TimeoutError) as error:
        return [Finding("fail", REACHABLE, target.redactor.text(str(error)) or "no whole answer within the deadline")]
    found = [Finding("ok", REACHABLE, f"{target.shown} answers")]
    refused = response.status in (401, 403)
    found.append(Finding("fail" if refused else "ok", "auth", f"HTTP {response.status} with the key of the settings"))
    limits = sorted(name for name in response.headers if "ratelimit" in name or name.startswith("retry-after"))
    if limits:
        shown = ", ".join(f"{name}: {target.redactor.text(response.headers[name])}" for name in limits)
        return [*found, Finding("ok", "rate limits", shown)]
    return [*found, Finding("warn", "rate limits", "no header names one; only a 429 will tell")]


async def _structure(settings: Settings, question: ModelRequest) -> list[Finding]:
    """Each JSON mode by itself."""
    found = []
    for mode in get_args(Mode):
        asked = await _ask(_with(settings, model_response_format=mode), question)
        if asked.error is None:
            found.append(Finding("ok", f"structure {mode}", "a valid answer"))
        else:
            found.append(Finding("warn", f"structure {mode}", asked.told))
    if all(finding.level != "ok" for finding in found):
        found.append(Finding("fail", "structure", "no mode gave a valid answer"))
    return found


async def _answers(settings: Settings, questions: Sequence[ModelRequest]) -> list[Finding]:
    """Every sample as a run would ask it: share of valid answers, codes, usage, model, latency."""
    client, gate = ModelClient(settings), asyncio.Semaphore(PARALLEL)

    async def one(question: ModelRequest) -> _Asked:
        async with gate:
            return await _ask_with(client, question)

    try:
        asked = await asyncio.gather(*[one(question) for question in questions])
    finally:
        await client.aclose()
    calls = [call for item in asked for call in item.finished]
    valid = sum(item.error is None for item in asked)
    codes = Counter(call.code for call in calls if call.code is not None)
    level: Level = "ok" if valid == len(asked) else ("warn" if valid else "fail")
    seen = ", ".join(f"{code} {count}x" for code, count in codes.most_common()) or "none"
    return [
        Finding(level, "valid answers", f"{valid} of {len(asked)} samples; error codes seen: {seen}"),
        *_facts(settings.model_name, [call for call in calls if call.status == 200]),
    ]


def _facts(model: str, calls: Sequence[CallFinished]) -> list[Finding]:
    if not calls:
        return []
    counted = sum(call.prompt_tokens is not None and call.completion_tokens is not None for call in calls)
    usage = f"tokens named in {counted} of {len(calls)} answers"
    names = sorted({call.model for call in calls if call.model is not None})
    waits = sorted(call.duration_ms for call in calls)
    p50, p95 = (waits[min(len(waits) - 1, int(len(waits) * share))] for share in (0.5, 0.95))
    return [
        Finding("ok", "usage", usage)
        if counted == len(calls)
        else Finding("warn", "usage", f"{usage}; costs cannot be added up"),
        Finding(
            "ok" if names == [model] else "warn", "model", f"asked for {model}, answered by {', '.join(names) or '?'}"
        ),
        Finding("ok", "latency", f"p50 {p50} ms, p95 {p95} ms over {len(waits)} requests"),
    ]


async def _faults(settings: Settings, question: ModelRequest) -> list[Finding]:
    """Deliberate mistakes: each must come back as the class that handles it."""
    key = await _ask(_with(settings, model_api_key=SecretStr(WRONG_KEY)), question)
    name = await _ask(_with(settings, model_name=WRONG_MODEL), question)
    short = await _ask(settings, question, SHORT_DEADLINE)
    found = [
        _pauses("wrong key", key, "any key is accepted here: a wrong one will not be noticed"),
        _pauses("wrong model name", name, "any model name is accepted here: a wrong one will not be noticed"),
    ]
    if short.error is None:
        return [*found, Finding("ok", "time-out", f"answered within {SHORT_DEADLINE} s, nothing to cut")]
    level: Level = "ok" if short.error.code == "model_timeout" else "warn"
    return [*found, Finding(level, "time-out", f"a deadline of {SHORT_DEADLINE} s: {short.error.code}")]


def _pauses(name: str, asked: _Asked, accepted: str) -> Finding:
    if asked.error is None:
        return Finding("warn", name, accepted)
    if isinstance(asked.error, ModelUnavailable):
        return Finding("ok", name, f"{asked.error.code} (HTTP {asked.status}): the agent would pause")
    return Finding("warn", name, f"{asked.told}; runs would fail one by one instead of the agent pausing")


async def _ask(settings: Settings, question: ModelRequest, seconds: float | None = None) -> _Asked:
    client = ModelClient(settings)
    try:
        return await _ask_with(client, question, seconds)
    finally:
        await client.aclose()


async def _ask_with(client: ModelClient, question: ModelRequest, seconds: float | None = None) -> _Asked:
    asked = _Asked()
    timed = question if seconds is None else ModelRequest(
        question.prompt, question.input, question.answer, question.idempotency_key, seconds
    )  # fmt: skip
    try:
        await client.ask(timed, on_send=asked.on_send, on_done=asked.on_done)
    except ModelError as error:
        asked.error = error
    return asked


def _with(settings: Settings, **changes: Any) -> Settings:
    """The settings with changes, and without repeats: one answer is to be seen as it is."""
    return settings.model_copy(update={"model_retries": 0, **changes})
