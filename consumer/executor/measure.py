"""What the executor tells about its runs: one log line and the metrics of each attempt, and of each model call."""

from __future__ import annotations

import datetime as dt
import logging

from consumer.limits import Hold
from consumer.llm import CallFinished
from consumer.records.jobs import (
    Cancelled,
    ClaimedJob,
    Failed,
    Lost,
    Parked,
    Released,
    Rerun,
    Retry,
    Review,
    Succeeded,
    Verdict,
)
from consumer.telemetry import (
    COMMIT_TO_RESULT_SECONDS,
    HOLDS,
    JOBS,
    LEASE_LOST,
    MODEL_CALLS,
    MODEL_SECONDS,
    MODEL_TOKENS,
    REVIEWS,
    RUN_SECONDS,
)

_log = logging.getLogger(__name__)


def attempt_ended(job: ClaimedJob, verdict: Verdict, seconds: float) -> None:
    """One line and the counts of an attempt that took `seconds`."""
    RUN_SECONDS.observe(seconds, agent=job.agent)
    if isinstance(verdict, Succeeded):
        _succeeded(job, seconds)
        return
    told = {**job.labels, "seconds": round(seconds, 3)}
    match verdict:
        case Lost(reason):
            LEASE_LOST.add(agent=job.agent)
            _log.warning("LeaseLost: %s", reason, extra={"action": "lease_lost", **told})
        case Retry(code, error, delay):
            ended = job.attempt >= job.max_attempts and verdict.counts
            JOBS.add(agent=job.agent, outcome="failed" if ended else "retry")
            what = "the last attempt failed" if ended else f"attempt failed, again in {delay:.1f} s"
            _log.warning("%s: %s", what, error, extra={"action": "run_retry", "code": code, **told})
        case Failed(code, error):
            JOBS.add(agent=job.agent, outcome="failed")
            _log.error("run failed: %s", error, extra={"action": "run_failed", "code": code, **told})
        case Cancelled(code, error):
            JOBS.add(agent=job.agent, outcome="cancelled")
            _log.info("run cancelled by its agent: %s", error, extra={"action": "run_cancelled", "code": code, **told})
        case Parked(reason, code, error):
            JOBS.add(agent=job.agent, outcome="parked")
            _log.warning(
                "run parked: %s", error, extra={"action": "run_parked", "code": code, "reason": reason, **told}
            )
        case Review(code, reasons):
            JOBS.add(agent=job.agent, outcome="review")
            REVIEWS.add(agent=job.agent, code=code)
            _log.warning("answer held: %s", "; ".join(reasons), extra={"action": "run_held", "code": code, **told})
        case Rerun(code, error):
            JOBS.add(agent=job.agent, outcome="rerun")
            _log.warning("run starts again: %s", error, extra={"action": "run_rerun", "code": code, **told})
        case Released(reason):
            JOBS.add(agent=job.agent, outcome="released")
            _log.info("run given back: %s", reason, extra={"action": "run_released", **told})


def _succeeded(job: ClaimedJob, seconds: float) -> None:
    JOBS.add(agent=job.agent, outcome="succeeded")
    if job.occurred_at is not None:
        passed = dt.datetime.now(dt.UTC) - job.occurred_at
        COMMIT_TO_RESULT_SECONDS.observe(max(0.0, passed.total_seconds()), agent=job.agent)
    # Most runs end here, most of them where nobody reads this line.
    if _log.isEnabledFor(logging.INFO):
        told = {"action": "run_succeeded", **job.labels, "seconds": round(seconds, 3)}
        _log.info("run succeeded", extra=told)


def call_ended(agent: str, call: CallFinished) -> None:
    """The counts of one model call."""
    MODEL_CALLS.add(agent=agent, code=call.code or "ok")
    MODEL_SECONDS.observe(call.duration_ms / 1000, agent=agent)
    if call.prompt_tokens is not None:
        MODEL_TOKENS.add(call.prompt_tokens, agent=agent, kind="prompt")
    if call.completion_tokens is not None:
        MODEL_TOKENS.add(call.completion_tokens, agent=agent, kind="completion")


def hold_changed(hold: Hold) -> None:
    """The alert of a budget that is spent or a storm, once for all workers, and the line of its end."""
    HOLDS.add(reason=hold.reason, event=hold.event)
    whose = " ".join(
        f"{kind} {name}"
        for kind, name in (("agent", hold.agent), ("tenant", hold.tenant), ("topic", hold.topic))
        if name is not None
    )
    told = {"action": f"{hold.reason}_{hold.event}", "agent": hold.agent, "tenant": hold.tenant, "topic": hold.topic}
    if hold.event == "ended":
        _log.warning("runs go on after a %s: %s", hold.reason, whose or "all agents", extra=told)
        return
    advice = "rowcall budgets list" if hold.reason == "budget" else "rowcall limits storms"
    _log.error(
        "runs wait for a %s: %s: %s. See `%s`", hold.reason, whose or "all agents", hold.detail, advice, extra=told
    )
