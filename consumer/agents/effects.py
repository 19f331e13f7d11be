"""What an agent's calls to the outside are made of: secrets by name, answers, and what reconciling may say."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from consumer.errors import AgentError


@dataclass(frozen=True, slots=True)
class Secret:
    """A value of the environment that is read when a request leaves and is never kept; make it with `secret`."""

    name: str
    form: str = "{}"

    def __format__(self, spec: str) -> str:
        raise AgentError(
            f"secret {self.name} cannot be put into a text: give its form, as in secret({self.name!r}, 'Bearer {{}}')"
        )

    def __str__(self) -> str:
        return self.shown

    @property
    def shown(self) -> str:
        """What stands in records in its place."""
        return self.form.replace("{}", f"[{self.name}]")


def secret(name: str, form: str = "{}") -> Secret:
    """The secret in the environment variable `name`, or in the file that `<name>_FILE` names, put into `form`.

    Raises:
        AgentError: `form` has no place for it, or more than one.
    """
    if form.count("{}") != 1:
        raise AgentError(f"the form of secret {name} must hold {{}} once, as in 'Bearer {{}}'")
    return Secret(name, form)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer: status, headers by lower-case name, the body.

    `truncated` says that the body was longer than is kept: 64 KiB of an effect's answer. A person who resolved an
    effect gave its body as JSON, null where nothing was given; its status is 200 then.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as UTF-8; what is none is replaced."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is none, or it was cut.
        """
        return orjson.loads(self.content)


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of which nobody knows whether it happened; what a reconcile function gets.

    Args:
        id: also the value of its idempotency header.
        run_id, step, key: whose it is; `key` is the agent's business key, "" where it gave none.
        method, url: of the request, secrets masked.
        attempts: how often it has been sent.
        planned_at, sent_at: by the database's clock.
        get: reads with GET what the other system knows: `await effect.get(url, params=…, headers=…, timeout=…)`, as
            often as it is asked; 404 is an answer, and nothing of it is kept as a step.
    """

    id: uuid.UUID
    run_id: int
    step: str
    key: str
    method: str
    url: str
    attempts: int
    planned_at: dt.datetime
    sent_at: dt.datetime
    get: Callable[..., Awaitable[HttpAnswer]] = field(repr=False)

    @property
    def idempotency_key(self) -> str:
        """As it was sent."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a reconcile function found; made by `happened`, `did_not_happen` and `unknown`."""

    verdict: Literal["happened", "did_not_happen", "unknown"]
    answer: HttpAnswer | None = None


def happened(response: Any = None) -> Resolution:
    """It happened. `response`, an HttpAnswer or a JSON value, is what the agent's call returns.

    Raises:
        TypeError: `response` is neither.
    """
    if isinstance(response, HttpAnswer):
        return Resolution("happened", response)
    return Resolution("happened", answer_of(response))


def did_not_happen() -> Resolution:
    """It did not happen and will not: the request is sent."""
    return Resolution("did_not_happen")


def unknown() -> Resolution:
    """It cannot be told: a person decides."""
    return Resolution("unknown")


def answer_of(value: Any) -> HttpAnswer:
    """The answer that stands for a JSON value somebody gave in place of the server."""
    return HttpAnswer(200, {"content-type": "application/json"}, orjson.dumps(value))


Reconcile = Callable[[Effect], Awaitable[Resolution]]
