"""The door: everything an agent's author sees of Rowcall.

An agent is one file: an `Agent` with topics and an answer model, and functions hung on it. The trigger (`when`), the
`rule`s and the `tier` are pure and cheap; `run` works in checkpointed steps; `write` puts the validated answer into the
database inside the outcome transaction. The executor implements `Context` and `Transaction`; an agent never holds a
connection or a Kafka client.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from consumer.errors import AgentError, ConfigurationError
from consumer.records import Change, Event

Input = Change | Event


@functools.total_ordering
class Tier(enum.Enum):
    """How far an answer may act by itself: LOW runs, MEDIUM waits for review, HIGH has no effect before approval.

    Ordered, so that `max(POLICY[action], Tier(answer.risk_level))` lets the model raise the tier and never lower it.
    """

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    def __lt__(self, other: Tier) -> bool:
        order = list(Tier)
        return order.index(self) < order.index(other)


class StepKind(enum.StrEnum):
    """What a step did, for the record."""

    FETCH_INPUT = "FETCH_INPUT"
    CALL_MODEL = "CALL_MODEL"
    WRITE_RESULT = "WRITE_RESULT"
    AGENT_STEP = "AGENT_STEP"


class Context(Protocol):
    """What `run` works with."""

    @property
    def run_id(self) -> int:
        """The job's ID, as `rowcall jobs show` takes it."""

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""

    @property
    def idempotency_key(self) -> str:
        """Stable over all attempts of this run; give it to any system the agent calls."""

    @property
    def sql(self) -> Reader:
        """Read-only SQL on the database the agents write to."""

    async def step(
        self, name: str, function: Callable[..., Any], /, *arguments: Any, kind: StepKind = StepKind.AGENT_STEP
    ) -> Any:
        """Run `function` once and keep what it returns; a resumed run gets the kept value and runs nothing.

        `function` may be async; a synchronous one runs in a worker thread. The name is the checkpoint's identity:
        each name once a run.

        Raises:
            AgentError: when the name was used before in this run.
            LeaseLost: when another worker has taken the run over.
        """

    async def ask(self, name: str, /, *, prompt: str, input: Any, answer: type[BaseModel] | None = None) -> Any:
        """Ask the model once, validate by schema and rules, re-ask once with the errors, and keep the answer.

        `answer` is the model to validate by; the agent's own if left out. Rules are applied to the agent's own only.

        Raises:
            ModelError: one of its classes; the executor knows what to do with each.
            LeaseLost: when another worker has taken the run over.
        """


class Reader(Protocol):
    """Read-only SQL for steps."""

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """The rows of one SELECT; parameters are `%s` placeholders, in order."""


class Transaction(Protocol):
    """What `write` works with: one transaction, together with the result, the outbox and the job's state."""

    async def execute(self, statement: str, *parameters: Any) -> int:
        """Run one statement and return how many rows it touched.

        Raises:
            AgentError: for transaction control or more than one statement.
        """

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """The rows one statement returns."""

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        """Update the row of `change` under a row lock.

        Raises:
            StaleRow: when a column that the agent has read off the change has a different value now, or the row is
                gone. An agent that handed the whole row on has read all of it.
        """

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        """Send `record` to `topic` through the outbox, with the commit of this transaction and only then."""


When = Callable[[Any], bool]
Run = Callable[[Any, Any], Awaitable[Any]]
Rule = Callable[[Any, Any], None]
TierOf = Callable[[Any, Any], Tier]
Write = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Agent:
    """One agent: what wakes it, what it does, what its answer may do.

    Args:
        name: stable identity; it is `job_type` in `agent_jobs` and part of every dedup row.
        version: raise it with each change of behaviour; a lower one never overwrites a higher one.
        topics: Kafka topics whose messages may wake it; empty for agents that are only queued.
        answer: pydantic model of the answer.
        max_attempts: attempts before the run is FAILED.
        on_stale: what to do when the row changed under the run: rerun, review or write anyway.
        on_snapshot: whether snapshot rows (`op=r`) wake the agent.
        on_own_write: whether a row change this agent made itself wakes it.
    """

    name: str
    version: int
    answer: type[BaseModel]
    topics: Sequence[str] = ()
    max_attempts: int = 5
    on_stale: Literal["rerun", "review", "write"] = "rerun"
    on_snapshot: Literal["skip", "state"] = "skip"
    on_own_write: Literal["skip", "run"] = "skip"
    description: str = ""
    _when: When | None = field(default=None, init=False, repr=False)
    _run: Run | None = field(default=None, init=False, repr=False)
    _rules: list[Rule] = field(default_factory=list, init=False, repr=False)
    _tier: TierOf | None = field(default=None, init=False, repr=False)
    _write: Write | None = field(default=None, init=False, repr=False)

    def when(self, function: When) -> When:
        """Decorator: the trigger. Called at intake with each change or event; must be pure and cheap."""
        self._when = function
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

    def write(self, function: Write) -> Write:
        """Decorator: puts the answer into the database; runs inside the outcome transaction."""
        self._write = function
        return function

    @property
    def writes(self) -> bool:
        """Whether the outcome needs a transaction of its own."""
        return self._write is not None

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
        self._check_functions()

    def _check_functions(self) -> None:
        for kind, functions in (("when", [self._when]), ("rule", self._rules), ("tier", [self._tier])):
            for function in functions:
                if function is not None and not _is_plain(function):
                    raise ConfigurationError(
                        f"agent {self.name}: @agent.{kind} {_name(function)} must be a plain `def`; "
                        "it is called without await, and what it returns would decide nothing"
                    )
        for kind, execution in (("run", self._run), ("write", self._write)):
            if execution is not None and not _is_coroutine(execution):
                raise ConfigurationError(
                    f"agent {self.name}: @agent.{kind} {_name(execution)} must be an `async def`; "
                    "a plain function would hold up every other run of the worker"
                )


def answer_text(answer: Any) -> str:
    """An answer that waits for a person, or that a person gave, as it is stored: plain JSON, fields by their names.

    Raises:
        ValueError: when it holds NaN or an infinity, which JSON has not.
    """
    if isinstance(answer, BaseModel):
        # Without computed fields, which no model takes back.
        return answer.model_dump_json(by_alias=False, round_trip=True)
    return json.dumps(answer, allow_nan=False)


def read_answer_text(model: type[BaseModel], text: str) -> BaseModel:
    """The answer in text that `answer_text` or a model wrote: fields by their names or their aliases.

    Raises:
        pydantic.ValidationError: when it breaks the schema.
    """
    return model.model_validate_json(text, strict=True, by_alias=True, by_name=True)


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
