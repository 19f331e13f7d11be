"""The one tree of errors. Each class is a decision its catcher takes; nothing else is encoded in the type.

RowcallError
├── ConfigurationError      an operator must change something: say what, stop with exit code 78
├── Outage                  a dependency is away: pause, back off, try again, lose nothing
├── TransactionConflict     deadlock or serialization failure: run the same transaction again
├── DataRefused             the database refuses this very row (SQLSTATE 22, 23, 54): isolate it, go on
├── Poison                  this message can never be handled: dead-letter it, move on
├── LeaseLost               another owner has the run: stop, roll back, write nothing
├── BeatLost                leases cannot be renewed though the database answers: end the process, exit 1
├── StaleRow                a row the agent read has changed before its write: apply `on_stale`
├── RunCancelled            the run was cancelled while it ran: stop, write nothing
├── DeadlineExceeded        the run's hard deadline is over: stop it, retry or fail by its attempts
├── BudgetSpent             a budget does not allow the next model call: park the run, or fail it where nothing helps
├── StepTimeout             a step's own timeout is over: try the step, or the run, again by its policy
├── AgentError              the agent's code broke a rule of the door: fail the run, no retry
├── HttpError               a call of an agent to the outside gave nothing usable
│   ├── HttpRetryable       nothing happened out there, or sending it again does no harm: retry
│   ├── HttpRefused         the server said no: fail the run, unless the agent catches it
│   ├── HttpBlocked         the address is not allowed: fail the run
│   └── EffectUnknown       it may have happened and nobody knows: hold the run for a person
├── OperatorError           a person asked for something that cannot be done: show the reason, exit 1
├── Verdict                 raised by an agent to decide its own run
│   ├── RetryLater          run again after a delay
│   ├── Snooze              run again at a time
│   ├── Cancel              there is nothing to do: end the run as CANCELLED
│   └── GiveUp              do not run again: FAILED
└── ModelError              a model call did not give a usable answer
    ├── ModelRetryable      the same call may succeed later
    ├── ModelInvalid        an answer came and breaks schema or rules: re-ask, then a person
    ├── ModelFatal          the same call will fail again: fail the run
    └── ModelUnavailable    no call of this agent can succeed until an operator acts: pause the agent
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any


class RowcallError(Exception):
    """Root of everything Rowcall raises on purpose. `code` is stable and stored; the message is for people."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class ConfigurationError(RowcallError):
    """Cannot go on until an operator changes a setting, a connector, a schema or the installed code."""

    code = "configuration"


class Outage(RowcallError):
    """A dependency does not answer.

    `dependency` is one of database, broker, registry, connect, model, or a way out of the watchdog's alerts (webhook,
    email, command, ping); `retry_after_seconds` is its own wish, if it named one.
    """

    code = "outage"

    def __init__(
        self, message: str, *, dependency: str, code: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.dependency = dependency
        self.retry_after_seconds = retry_after_seconds


class TransactionConflict(RowcallError):
    """Postgres chose this transaction as the victim (40001, 40P01); nothing of it happened."""

    code = "transaction_conflict"


class DataRefused(RowcallError):
    """The database refuses a value or a constraint is broken; `code` is db_<SQLSTATE>."""

    code = "data_refused"


class Poison(RowcallError):
    """A message that no retry can cure; `code` says why (undecodable, missing_event_id, unknown_schema, …)."""

    code = "undecodable"


class LeaseLost(RowcallError):
    """The (job, epoch) pair is no longer the running owner."""

    code = "lease_lost"


class BeatLost(RowcallError):
    """The lease beat is dead, hung or refused while the database answers others; only a new process can help."""

    code = "beat_lost"


class StaleRow(RowcallError):
    """Columns the agent read have changed since; `on_stale` of the agent decides what follows."""

    code = "stale_row"

    def __init__(self, message: str, *, changed: Mapping[str, tuple[str, str]] | None = None) -> None:
        """`changed` has column → (as it was seen, as it stands), each as JSON text."""
        super().__init__(message)
        self.changed = dict(changed or {})


class RunCancelled(RowcallError):
    """An operator cancelled the run while it was running."""

    code = "cancelled"


class DeadlineExceeded(RowcallError):
    """The run's hard deadline passed; heartbeats cannot extend it."""

    code = "deadline_exceeded"


class BudgetSpent(RowcallError):
    """A model call would go beyond a budget; nothing was sent.

    `reason` is why the run is parked (`budget`: until it is raised or its window turns; `budget_root`: until a person
    retries it), or None where waiting cannot help: the call or the run alone goes beyond its limit.
    """

    code = "budget_spent"

    def __init__(self, message: str, *, code: str, reason: str | None) -> None:
        super().__init__(message, code=code)
        self.reason = reason


class StepTimeout(RowcallError):
    """A step did not end within the timeout its agent gave it."""

    code = "step_timeout"


class AgentError(RowcallError):
    """The agent used the door wrongly (duplicate step name, transaction control, a write it may not do)."""

    code = "agent_error"


class HttpError(RowcallError):
    """A call of `ctx.http` that gave nothing usable; `code` is one of the `http_*` codes."""

    code = "http_error"


class HttpRetryable(HttpError):
    """The call may be made again; `retry_after_seconds` is the server's own wish, if it named one."""

    def __init__(self, message: str, *, code: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class HttpRefused(HttpError):
    """The server answered with a status that the call does not accept; `answer` is its `HttpAnswer`."""

    def __init__(self, message: str, *, code: str, answer: Any) -> None:
        super().__init__(message, code=code)
        self.answer = answer


class HttpBlocked(HttpError):
    """The URL's host or an address of it may not be called; see ROWCALL_HTTP_ALLOW and ROWCALL_HTTP_HOSTS."""

    code = "http_blocked"


class EffectUnknown(HttpError):
    """An effect may have happened and cannot be asked about: only a person may say how the run goes on."""

    code = "effect_unknown"


class OperatorError(RowcallError):
    """A command cannot be carried out; the message says why and what can be done instead."""

    code = "operator"


class Verdict(RowcallError):
    """Raised by agent code to decide what becomes of its run."""


class RetryLater(Verdict):
    """Run again after `delay_seconds`. No attempt is burnt; `max_postponements` of the agent bounds how often."""

    code = "retry_requested"

    def __init__(self, message: str, *, delay_seconds: float) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class Snooze(Verdict):
    """Run again at `until`, by the database's clock; UTC where it names no zone. Bounded like RetryLater."""

    code = "snoozed"

    def __init__(self, message: str, *, until: dt.datetime) -> None:
        super().__init__(message)
        self.until = until if until.tzinfo is not None else until.replace(tzinfo=dt.UTC)


class Cancel(Verdict):
    """End the run as CANCELLED: there is nothing to do any more. The message is the reason that is kept."""

    code = "cancelled_by_agent"


class GiveUp(Verdict):
    """Fail the run now, whatever attempts are left."""

    code = "gave_up"


class ModelError(RowcallError):
    """A model call without a usable answer; `code` is one of the `model_*` codes."""

    code = "model_error"


class ModelRetryable(ModelError):
    """The same call may succeed later; `retry_after_seconds` is the endpoint's own wish, if it named one."""

    def __init__(self, message: str, *, code: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class ModelInvalid(ModelError):
    """An answer came and broke schema or rules; `raw` is its text as received, `reasons` what is wrong."""

    def __init__(self, message: str, *, code: str, raw: str, reasons: Sequence[str], parseable: bool) -> None:
        super().__init__(message, code=code)
        self.raw = raw
        self.reasons = tuple(reasons)
        self.parseable = parseable


class ModelFatal(ModelError):
    """Asking again cannot help (truncated at the token limit, refused, filtered)."""


class ModelUnavailable(ModelError):
    """Credentials, quota, model name or request shape are refused: the whole agent must pause."""
