"""What an agent works with: the context of `run` and `act`, the transaction of `write`; made by the executor."""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol

from pydantic import BaseModel

from consumer.agents.effects import HttpAnswer, Reconcile, Secret
from consumer.agents.retry import Retry
from consumer.records import Change


class StepKind(enum.StrEnum):
    """What a step did, for the record."""

    FETCH_INPUT = "FETCH_INPUT"
    CALL_MODEL = "CALL_MODEL"
    WRITE_RESULT = "WRITE_RESULT"
    AGENT_STEP = "AGENT_STEP"


class Context(Protocol):
    """What `run` and `act` work with."""

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
    def merged(self) -> int:
        """How many later changes of its key this run has taken in (`Agent(coalesce=…)`); 0 without."""

    @property
    def feedback(self) -> tuple[str, ...]:
        """What reviewers said when they asked for another attempt, oldest first; `ask` tells the model by itself."""

    @property
    def sql(self) -> Reader:
        """Read-only SQL on the database the agents write to."""

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
        """Run `function` once and keep what it returns; a resumed run gets the kept value and runs nothing.

        `function` may be async; a synchronous one runs in a worker thread. The name is the checkpoint's identity:
        each name once a run.

        With `retry` a try that fails is repeated within the attempt; without it the attempt fails with the step.
        `timeout_seconds` is for each try. A synchronous function that overruns it cannot be ended: it goes on
        beside the next try, and what it returns then is thrown away.

        Raises:
            StepTimeout: when the last try did not end within its timeout.
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

    async def http(
        self,
        name: str,
        method: str,
        url: str,
        *,
        key: object = None,
        json: Any = None,
        content: bytes | str | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        params: Mapping[str, Any] | None = None,
        idempotent: bool = False,
        key_header: str = "Idempotency-Key",
        timeout: float | None = None,
        accept: Container[int] = (),
        redirects: int = 0,
        reconcile: Reconcile | None = None,
    ) -> HttpAnswer:
        """Call another system once and keep its answer; a resumed run gets the kept answer and sends nothing.

        GET, HEAD and OPTIONS read; every other method is an effect: it stands in the ledger before it leaves, carries
        its ID as `key_header`, and belongs into `act`.

        Args:
            name: as of a step.
            key: the agent's business key ("order 42"); run, step and key make the effect, and its ID.
            json, content: the body; one of them.
            headers, params: values may be a `secret`, which is read when the request leaves and kept nowhere.
            idempotent: sending it twice does no harm: what may have happened is sent again with the same ID.
            timeout: seconds for the whole call; the host's or the default without it.
            accept: statuses besides 2xx that are good answers.
            redirects: how many are followed; reads only, and nothing secret goes to another origin.
            reconcile: asked whether an effect happened when nobody knows; without it a person is asked.

        Raises:
            HttpRetryable, HttpRefused, HttpBlocked, EffectUnknown: see `consumer.errors`.
            AgentError: the call cannot be sent as it is, or is not allowed here.
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
