"""The agent: its definition, and the functions its author hangs on it."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from consumer.agents.answers import Tier
from consumer.agents.context import Context, Transaction
from consumer.agents.expectations import expectation_options
from consumer.agents.limits import limit_options
from consumer.agents.retry import Retry
from consumer.agents.triggers import Coalesce, coalesce_fault, columns_fault, watching
from consumer.errors import AgentError, ConfigurationError
from consumer.records import Change, Event

Input = Change | Event
When = Callable[[Any], bool]
Run = Callable[[Any, Any], Awaitable[Any]]
Rule = Callable[[Any, Any], None]
TierOf = Callable[[Any, Any], Tier]
Act = Callable[[Any, Any, Any], Awaitable[None]]
Preview = Callable[[Any, Any], Mapping[str, Any]]
Write = Callable[[Any, Any, Any], Awaitable[None]]

# A week: a run that needs longer is to be several.
_LONGEST_DEADLINE = 7 * 86400.0
# Whatever is counted, the database counts it in an integer.
_MOST = 1_000_000


@dataclass
class Agent:
    """One agent: what wakes it, what it does, what its answer may do.

    Args:
        name: stable identity; it is `job_type` in `agent_jobs` and part of every dedup row.
        version: raise it with each change of behaviour; a lower one never overwrites a higher one.
        topics: Kafka topics whose messages may wake it; empty for agents that are only queued.
        answer: pydantic model of the answer.
        max_attempts: attempts before the run is FAILED; with `retry` its `attempts` count.
        retry: pauses between attempts and which errors are worth one; without it the worker's settings.
        deadline_seconds: hard deadline of one attempt; without it ROWCALL_RUN_DEADLINE_SECONDS.
        on_failure: `continue` frees the key of a failed run, `park` holds it until a person retries or cancels.
        max_losses: losses of its worker, without progress in between, after which the run is FAILED.
        max_postponements: how often a run may ask for a later time before it is FAILED.
        on_stale: what to do when the row changed under the run: rerun, review or write anyway.
        on_snapshot: whether snapshot rows (`op=r`) wake the agent.
        on_own_write: whether a row change this agent made itself wakes it.
        columns: names of columns; an update wakes the agent only where one of them changed. Inserts and deletes count.
        coalesce: how changes of one key that follow closely become one run; none by default.
        effects_before_answer: `run` may have effects outside, before there is an answer to validate; not with a tier.
        on_newer: what a newer change of the same row does to an undecided review: supersede it, or wait behind it.
        review_expires: how long a review waits before it is denied; ROWCALL_REVIEW_EXPIRE_HOURS where None.
        review_escalates: how long before it is escalated; ROWCALL_REVIEW_ESCALATE_HOURS where None.
        concurrency: runs of this agent under way at once, over all workers; None is no limit.
        rate: runs that may start, over all workers, such as "100/min"; None is no limit.
        priority: -100 to 100; where workers are short, agents of a higher one are served first, four times in five.
        storm: runs woken by one table in a minute, above which that table's runs are held for a while.
        expect_every: a successful run is expected this often; without one the watchdog tells. None expects nothing.
        start_grace: how much later than that it may come; ROWCALL_WATCHDOG_GRACE_SECONDS where None.
        run_grace: how long one attempt may take before the watchdog tells that it is late; None sets no limit.
        misses: expected runs that may be missed, or runs that may fail, in a row before it is told.
        empty_output: `alert` tells of a successful run whose write touched no row and sent nothing, `allow` does not.
        run_tokens, root_tokens: what the model calls of one run, or of all runs of one root event, may use.
        run_money, root_money: the same in the currency of MODEL_PRICE_INPUT, such as "0.25".
    """

    name: str
    version: int
    answer: type[BaseModel]
    topics: Sequence[str] = ()
    max_attempts: int = 5
    retry: Retry | None = None
    deadline_seconds: float | None = None
    on_failure: Literal["continue", "park"] = "continue"
    max_losses: int = 5
    max_postponements: int = 1000
    on_stale: Literal["rerun", "review", "write"] = "rerun"
    on_snapshot: Literal["skip", "state"] = "skip"
    on_own_write: Literal["skip", "run"] = "skip"
    effects_before_answer: bool = False
    on_newer: Literal["supersede", "wait"] = "supersede"
    review_expires: dt.timedelta | None = None
    review_escalates: dt.timedelta | None = None
    concurrency: int | None = None
    rate: str | None = None
    priority: int = 0
    storm: int | None = None
    expect_every: dt.timedelta | None = None
    start_grace: dt.timedelta | None = None
    run_grace: dt.timedelta | None = None
    misses: int = 1
    empty_output: Literal["alert", "allow"] = "alert"
    run_tokens: int | None = None
    run_money: str | None = None
    root_tokens: int | None = None
    root_money: str | None = None
    description: str = ""
    columns: Sequence[str] = ()
    coalesce: Coalesce | None = None
    _when: When | None = field(default=None, init=False, repr=False)
    _asked: When | None = field(default=None, init=False, repr=False)
    _run: Run | None = field(default=None, init=False, repr=False)
    _rules: list[Rule] = field(default_factory=list, init=False, repr=False)
    _tier: TierOf | None = field(default=None, init=False, repr=False)
    _act: Act | None = field(default=None, init=False, repr=False)
    _preview: Preview | None = field(default=None, init=False, repr=False)
    _write: Write | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Put the column list into the trigger, once, so that an agent without one pays nothing for it."""
        if self.columns:
            self._when = watching(self.columns, None)
        if self.retry is not None:
            self.max_attempts = self.retry.attempts

    def when(self, function: When) -> When:
        """Decorator: the trigger. Called at intake with each change or event; must be pure and cheap.

        With `columns` it is called only for changes that pass them.
        """
        self._asked = function
        self._when = watching(self.columns, function) if self.columns else function
        return function

    def run(self, function: Run) -> Run:
        """Decorator: the execution. Returns an answer of the agent's answer model."""
        self._run = function
        return function

    def rule(self, function: Rule) -> Rule:
        """Decorator: a business rule. Raises ValueError with a sentence when the answer breaks it."""
        self._rules.append(function)
        return function

    def tier(self, function: TierOf) -> TierOf:
        """Decorator: the tier of an answer. The default is LOW."""
        self._tier = function
        return function

    def act(self, function: Act) -> Act:
        """Decorator: what the answer asks for outside; after validation and approval, before `write`; in steps."""
        self._act = function
        return function

    def preview(self, function: Preview) -> Preview:
        """Decorator: the columns that the write would set, for the person who decides. Pure; may be left out."""
        self._preview = function
        return function

    def write(self, function: Write) -> Write:
        """Decorator: puts the answer into the database; runs inside the outcome transaction."""
        self._write = function
        return function

    @property
    def options(self) -> dict[str, Any]:
        """What the database must know of the agent to move its runs; plain JSON, compared at activation."""
        given = {
            "on_failure": (self.on_failure, "continue"),
            "max_losses": (self.max_losses, 5),
            "on_newer": (self.on_newer, "supersede"),
        }
        changed = {name: value for name, (value, default) in given.items() if value != default}
        return changed | limit_options(self) | expectation_options(self)

    @property
    def writes(self) -> bool:
        """Whether the outcome needs a transaction of its own."""
        return self._write is not None

    @property
    def acts(self) -> bool:
        """Whether it has effects outside after its answer."""
        return self._act is not None

    def expects_change(self, row_sources: Collection[str]) -> bool:
        """Whether its run can only do with a row change: it says so, or says nothing and reads nothing else.

        `row_sources` are the prefixes of topics that carry row changes (ROWCALL_OWN_SOURCES).
        """
        wanted = _wanted(self._run)
        if wanted is None:
            return bool(self.topics) and all(topic.partition(".")[0] in row_sources for topic in self.topics)
        return wanted is Change or (
            isinstance(wanted, str) and wanted.strip("'\"").rpartition(".")[2] == Change.__name__
        )

    def wants(self, message: Input) -> bool:
        """The trigger's answer; True where the agent has no trigger."""
        return self._when is None or bool(self._when(message))

    async def execute(self, context: Context, message: Input) -> Any:
        """Run the agent's execution."""
        if self._run is None:
            raise ConfigurationError(f"agent {self.name} has no @agent.run function")
        return await self._run(context, message)

    def broken_rules(self, message: Input, answer: BaseModel) -> list[str]:
        """One sentence for each business rule the answer breaks.

        Raises:
            AgentError: a rule returned something; a rule that means to refuse by it would let everything pass.
        """
        broken = []
        for rule in self._rules:
            try:
                returned: object = rule(message, answer)
            except (ValueError, AssertionError) as error:
                broken.append(str(error) or _name(rule))
                continue
            if returned is not None:
                raise AgentError(
                    f"agent {self.name}: rule {_name(rule)} returned {type(returned).__name__}; "
                    "a rule raises ValueError when the answer breaks it and returns nothing"
                )
        return broken

    def tier_of(self, message: Input, answer: BaseModel) -> Tier:
        """The tier of this answer."""
        return Tier.LOW if self._tier is None else self._tier(message, answer)

    async def do(self, context: Context, message: Input, answer: BaseModel) -> None:
        """Run the agent's act, if it has one."""
        if self._act is not None:
            await self._act(context, message, answer)

    def previewed(self, message: Input, answer: BaseModel) -> dict[str, Any] | None:
        """The columns that writing this answer would set; None where the agent does not tell.

        Raises:
            AgentError: the preview returned something that is no mapping.
        """
        if self._preview is None:
            return None
        columns: object = self._preview(message, answer)
        if not isinstance(columns, Mapping):
            raise AgentError(
                f"agent {self.name}: its preview returned {type(columns).__name__}, not a mapping of columns"
            )
        return dict(columns)

    async def put(self, transaction: Transaction, message: Input, answer: BaseModel) -> None:
        """Run the agent's write, if it has one."""
        if self._write is not None:
            await self._write(transaction, message, answer)

    def check(self) -> None:
        """Refuse an agent that cannot work.

        Raises:
            ConfigurationError: saying what is missing or wrong, and why.
        """
        if self._run is None:
            raise ConfigurationError(f"agent {self.name} has no @agent.run function")
        if not self.name or len(self.name) > 100:
            raise ConfigurationError(f"agent name {self.name!r} must have 1 to 100 characters")
        if self.version < 1:
            raise ConfigurationError(f"agent {self.name}: version must be 1 or more")
        if fault := columns_fault(self.columns) or coalesce_fault(self.coalesce):
            raise ConfigurationError(f"agent {self.name}: {fault}")
        if self.effects_before_answer and self._tier is not None:
            raise ConfigurationError(
                f"agent {self.name}: effects_before_answer and @agent.tier exclude each other: what waits for approval "
                "must not have had its effect. Move the effects into @agent.act"
            )
        for name, time in (("review_expires", self.review_expires), ("review_escalates", self.review_escalates)):
            if time is not None and time <= dt.timedelta():
                raise ConfigurationError(f"agent {self.name}: {name} must be longer than nothing; it is {time}")
        limit_options(self)
        expectation_options(self)
        self._check_limits()
        self._check_functions()

    def _check_limits(self) -> None:
        if self.on_failure not in ("continue", "park"):
            raise ConfigurationError(f"agent {self.name}: on_failure is continue or park, not {self.on_failure!r}")
        for name in ("max_attempts", "max_losses", "max_postponements"):
            if type(getattr(self, name)) is not int or not 1 <= getattr(self, name) <= _MOST:
                raise ConfigurationError(f"agent {self.name}: {name} must be a whole number from 1 to {_MOST}")
        if self.deadline_seconds is not None and not 0 < self.deadline_seconds <= _LONGEST_DEADLINE:
            raise ConfigurationError(
                f"agent {self.name}: deadline_seconds must be more than 0 and at most {_LONGEST_DEADLINE:g}"
            )

    def _check_functions(self) -> None:
        for kind, functions in (
            ("when", [self._asked]),
            ("rule", self._rules),
            ("tier", [self._tier]),
            ("preview", [self._preview]),
        ):
            for function in functions:
                if function is not None and not _is_plain(function):
                    raise ConfigurationError(
                        f"agent {self.name}: @agent.{kind} {_name(function)} must be a plain `def`; "
                        "it is called without await, and what it returns would decide nothing"
                    )
        for kind, execution in (("run", self._run), ("act", self._act), ("write", self._write)):
            if execution is not None and not _is_coroutine(execution):
                raise ConfigurationError(
                    f"agent {self.name}: @agent.{kind} {_name(execution)} must be an `async def`; "
                    "a plain function would hold up every other run of the worker"
                )


def _wanted(run: object) -> object:
    """The type by which a run declares its second parameter, by name where that is not known; None without one."""
    try:
        declared = list(inspect.signature(run).parameters.values())[1].annotation if callable(run) else None
    except (IndexError, ValueError):
        return None
    return None if declared in (inspect.Parameter.empty, Any, "Any") else declared


def _name(function: object) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _forms(function: object) -> tuple[object, object]:
    """What a call of it runs: the function, or the `__call__` of an object."""
    return function, inspect.getattr_static(type(function), "__call__", None)


def _is_coroutine(function: object) -> bool:
    return any(inspect.iscoroutinefunction(form) for form in _forms(function))


def _is_plain(function: object) -> bool:
    return not _is_coroutine(function) and not any(
        inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in _forms(function)
    )
