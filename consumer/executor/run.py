"""One run, from its claim to a verdict. Every exception becomes a verdict here, and only here."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass, replace

from consumer import validate
from consumer.agents.door import Agent, Input, Tier
from consumer.agents.door import Retry as RetryPolicy
from consumer.errors import (
    AgentError,
    BudgetSpent,
    Cancel,
    ConfigurationError,
    DataRefused,
    DeadlineExceeded,
    EffectUnknown,
    GiveUp,
    HttpBlocked,
    HttpRefused,
    HttpRetryable,
    LeaseLost,
    ModelError,
    ModelFatal,
    ModelInvalid,
    ModelRetryable,
    ModelUnavailable,
    Outage,
    RetryLater,
    RowcallError,
    Snooze,
    StaleRow,
)
from consumer.executor.before_act import changed_row
from consumer.executor.context import RunContext, Services
from consumer.records import Change, ReadRow, payload
from consumer.records.approval import Approval
from consumer.records.jobs import (
    Cancelled,
    ClaimedJob,
    Failed,
    Lost,
    Parked,
    Released,
    Retry,
    Review,
    Succeeded,
    Verdict,
)

_log = logging.getLogger(__name__)
# Retries of an outage that burn no attempt: days, at the longest delay.
_OUTAGE_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Performed:
    """A run's verdict, the input it saw, and how many steps it passed.

    `stale` says why the answer may be neither acted upon nor written: the row has changed.
    """

    verdict: Verdict
    message: Input | None
    steps: int
    pause_agent: str | None = None
    stale: StaleRow | None = None


def message_of(job: ClaimedJob) -> Input:
    """The change or event that woke the run, rebuilt from the stored payload.

    Raises:
        AgentError: the payload is none of ours and no plain JSON either.
    """
    try:
        return payload.read(
            job.input_kind,
            job.payload,
            event_id=job.event_id or f"job:{job.id}",
            topic=job.topic,
            partition=job.partition,
            offset=job.offset,
            key=job.key,
            occurred_at=job.occurred_at,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise AgentError(f"the payload cannot be read: {error}", code="bad_payload") from error


async def perform(
    job: ClaimedJob,
    agent: Agent,
    services: Services,
    policy: RetryPolicy,
    deadline_seconds: float,
) -> Performed:
    """Run the agent's steps and judge its answer. Never raises but for cancellation.

    `policy` and `deadline_seconds` are for agents without their own.
    """
    if job.pinned_version is not None and job.pinned_version != agent.version:
        return Performed(parked(job, agent), None, 0)
    policy = agent.retry or policy
    deadline_seconds = agent.deadline_seconds or deadline_seconds
    message: Input | None = None
    context: RunContext | None = None
    pause: str | None = None
    stale: StaleRow | None = None
    verdict: Verdict
    deadline = asyncio.timeout(deadline_seconds)
    try:
        message = message_of(job)
        if not isinstance(message, Change) or message.origin.connector in services.own_sources:
            message = watched(agent, message) if job.approved_answer is None else remembered(message, job.approval)
        context = RunContext(job, agent, message, services)
        async with deadline:
            verdict, stale = await _judged(job, agent, context, message, services)
    except ModelUnavailable as error:
        pause = f"{error.code}: {error}"
        verdict = Released(reason=pause)
    except LeaseLost as error:
        # Only our own writes can tell; an agent that raises it has failed like with any other exception.
        verdict = Lost(str(error)) if context is not None and context.lost else raised(error, job, policy)
    except RowcallError as error:
        verdict = verdict_of(error, job, agent, policy)
    except asyncio.CancelledError as error:
        # Cancelled from outside, or the agent waited for something that it had cancelled itself?
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        verdict = raised(error, job, policy)
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - whatever an agent raises ends its own run, nothing else
        if isinstance(error, TimeoutError) and deadline.expired():
            verdict = overdue("run", job, agent, policy, deadline_seconds)
        else:
            verdict = raised(error, job, policy)
    return Performed(verdict, message, context.steps_taken if context else 0, pause, stale)


def watched(agent: Agent, message: Input) -> Input:
    """The same message; a change remembers which columns of its row the agent reads, its trigger included."""
    if not isinstance(message, Change) or message.after is None:
        return message
    change = replace(message, after=ReadRow(message.after))
    try:
        agent.wants(change)
    except Exception:  # noqa: BLE001 - it held once, at intake; what it read until here is what counts
        _log.info(
            "trigger failed on a second look", exc_info=True, extra={"action": "when_failed", "agent": agent.name}
        )
    return change


def remembered(message: Input, approval: Approval | None) -> Input:
    """The same message; its row remembers the columns that the run had read when its answer went to a person."""
    if approval is None or approval.seen is None or not isinstance(message, Change) or message.after is None:
        return message
    return replace(message, after=ReadRow(message.after, approval.seen & set(message.after)))


async def _judged(
    job: ClaimedJob, agent: Agent, context: RunContext, message: Input, services: Services
) -> tuple[Succeeded | Review, StaleRow | None]:
    try:
        judged = await _worked(job, agent, context, message, services)
    except (RetryLater, Snooze):
        # The next attempt meets its effects again.
        raise
    except Exception:
        await context.end()
        raise
    # Whatever the agent made of it: nobody knows whether its effect happened.
    await context.end()
    return judged


async def _worked(
    job: ClaimedJob, agent: Agent, context: RunContext, message: Input, services: Services
) -> tuple[Succeeded | Review, StaleRow | None]:
    if job.approved_answer is not None:
        verdict = validate.approved(agent, message, job.approved_answer, job)
    else:
        least = services.least_tiers.get(agent.name, Tier.LOW)
        verdict = validate.judge(agent, message, await agent.execute(context, message), least)
    if isinstance(verdict, Succeeded) and context.unknown is None:
        if (stale := await changed_row(services.outside, job, agent, message)) is not None:
            return verdict, stale
        await agent.do(context.acting(), message, verdict.answer)
    return verdict, None


def raised(error: BaseException, job: ClaimedJob, policy: RetryPolicy) -> Retry | Failed:
    """The verdict on an exception of the agent's own code."""
    _log.error("agent failed", exc_info=error, extra={"action": "agent_exception", **job.labels})
    summary = f"{type(error).__name__}: {said(error)}"
    retry = Retry("agent_exception", f"{summary} ({_place(error)})", policy.delay(job.attempt))
    return _allowed(retry, error, policy)


def verdict_of(error: RowcallError, job: ClaimedJob, agent: Agent, policy: RetryPolicy) -> Verdict:
    """What an error means for the run."""
    verdict = _meant(error, job, agent, policy)
    return _allowed(verdict, error, policy) if isinstance(verdict, Retry) and verdict.counts else verdict


def _allowed(retry: Retry, error: BaseException, policy: RetryPolicy) -> Retry | Failed:
    """The retry, or the end where the agent's own policy leaves such an error out."""
    if policy.takes(error):
        return retry
    return Failed(retry.code, f"{retry.error} (not tried again: the agent's retry policy says so)")


def _meant(error: RowcallError, job: ClaimedJob, agent: Agent, policy: RetryPolicy) -> Verdict:
    """One line a class of the tree."""
    code, text = coded(error), said(error)
    match error:
        case LeaseLost():
            return Lost(text)
        case BudgetSpent(reason=None):
            return Failed(code, text)
        case BudgetSpent(reason=str(reason)):
            return Parked(reason, code, text)
        case RetryLater(code="rate_limited", delay_seconds=turn):
            # Not the run's wish: it is no postponement.
            return Retry(code, text, turn, counts=False)
        case RetryLater() | Snooze():
            return postponed(error, job, agent)
        case Cancel():
            return Cancelled(code, text)
        case GiveUp() | AgentError() | ModelFatal():
            return Failed(code, text)
        case ModelInvalid(parseable=True):
            return validate.held(agent, error)
        case EffectUnknown():
            return Review(code, (text,), raw=None, proposed=None)
        case HttpRefused() | HttpBlocked():
            return Failed(code, text)
        case ModelRetryable(retry_after_seconds=wish) | HttpRetryable(retry_after_seconds=wish):
            return Retry(code, text, policy.delay(job.attempt, at_least=wish))
        case DataRefused():
            return Failed(code, text)
        case Outage(dependency="database") if error.code != Outage.code:
            # The database answered, and refused a statement of the agent's (a trigger that raises, for one).
            return Retry(code, text, policy.delay(job.attempt))
        case Outage():
            # Not the run's fault, and no number of attempts outlasts an outage; but an agent may raise it for ever.
            return Retry(code, text, policy.delay(job.attempt), counts=job.postponed >= _OUTAGE_TRIES)
        case ModelError() | ConfigurationError():
            return Retry(code, text, policy.delay(job.attempt))
    return Retry(code, text, policy.delay(job.attempt))


def postponed(error: RetryLater | Snooze, job: ClaimedJob, agent: Agent) -> Retry | Failed:
    """Later, without an attempt burnt; the end for a run that asks for it again and again."""
    code, text = coded(error), said(error)
    if job.postponed >= agent.max_postponements:
        times = f"the run asked for a later time {job.postponed + 1} times; its agent's max_postponements is"
        return Failed("postponed_too_often", f"{times} {agent.max_postponements}. The last time: {text}")
    if isinstance(error, Snooze):
        return Retry(code, text, 0.0, counts=False, until=error.until)
    return Retry(code, text, seconds(error.delay_seconds), counts=False)


def parked(job: ClaimedJob, agent: Agent) -> Parked:
    """The verdict on a run that another version of its agent has begun."""
    text = (
        f"version {job.pinned_version} of {agent.name} has begun this run and this worker has version {agent.version}. "
        f"A worker with version {job.pinned_version} goes on with it. Without one: `rowcall jobs retry {job.id} "
        f"--from-start` runs it anew with the version at hand, `rowcall jobs cancel {job.id}` ends it"
    )
    return Parked("version", "version_pinned", text)


def overdue(what: str, job: ClaimedJob, agent: Agent, policy: RetryPolicy, deadline_seconds: float) -> Retry:
    """The verdict on a run, or an outcome, that did not end in time."""
    whose = "ROWCALL_RUN_DEADLINE_SECONDS" if agent.deadline_seconds is None else "the agent's deadline_seconds"
    text = f"the {what} did not end within {deadline_seconds:g} s ({whose})"
    return Retry(DeadlineExceeded.code, text, policy.delay(job.attempt))


def said(error: BaseException) -> str:
    """The message of an exception, whatever its author made of `__str__`."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - the run's end must be told even where its error cannot be
        return f"{type(error).__name__}, whose message cannot be read: {type(fault).__name__}"


def coded(error: RowcallError) -> str:
    """The code of an error; its class' where an author gave something that is no text."""
    return error.code if isinstance(error.code, str) else type(error).code


def seconds(delay: object) -> float:
    """A delay an author asked for; 0 for what is no number."""
    return float(delay) if isinstance(delay, int | float) else 0.0


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "no trace"
