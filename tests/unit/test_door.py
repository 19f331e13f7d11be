"""The door: what an agent may hang on it, and what is refused before it ever runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from consumer.agents.door import Agent, Tier
from consumer.errors import AgentError, ConfigurationError
from consumer.records import Event

EVENT = Event("e", None, None, {}, {}, None, None)


class Answer(BaseModel):
    n: int


async def run(_context: object, _message: object) -> Answer:
    return Answer(n=1)


async def asynchronous(*_: object) -> bool:
    return False


def plain(*_: object) -> bool:
    return False


def generating(*_: object) -> Any:
    yield False


async def async_generating(*_: object) -> Any:
    yield False


def nothing(*_: object) -> None:
    pass


class Writes:
    async def __call__(self, *_: object) -> None:
        pass


class Called:
    async def __call__(self, *_: object) -> bool:
        return False


def agent() -> Agent:
    made = Agent(name="a", version=1, answer=Answer)
    made.run(run)
    return made


@pytest.mark.parametrize("kind", ["when", "rule", "tier"])
@pytest.mark.parametrize(
    "function", [asynchronous, generating, async_generating, Called(), functools.partial(asynchronous, 1)]
)
def test_what_is_called_without_await_must_be_a_plain_function(kind: str, function: Callable[..., Any]) -> None:
    made = agent()
    getattr(made, kind)(function)
    with pytest.raises(ConfigurationError, match=f"agent a: @agent.{kind} .* plain `def`"):
        made.check()


@pytest.mark.parametrize("kind", ["run", "write"])
@pytest.mark.parametrize("function", [plain, generating, async_generating])
def test_what_is_awaited_must_be_a_coroutine_function(kind: str, function: Callable[..., Any]) -> None:
    made = agent()
    getattr(made, kind)(function)
    with pytest.raises(ConfigurationError, match=f"agent a: @agent.{kind} {function.__name__} .* `async def`"):
        made.check()


def test_functions_of_the_right_kinds_pass_however_they_are_made() -> None:
    made = agent()
    made.when(lambda _: True)
    made.rule(functools.partial(nothing, 1))
    made.tier(lambda *_: Tier.LOW)
    made.run(functools.partial(asynchronous, 1))
    made.write(Writes())
    made.check()


def test_a_rule_that_returns_something_is_an_error_and_not_a_pass() -> None:
    made = agent()
    made.rule(lambda _message, answer: answer.n > 5)
    with pytest.raises(AgentError, match="returned bool"):
        made.broken_rules(EVENT, Answer(n=1))


def test_a_rule_that_raises_is_a_broken_rule_whatever_it_is() -> None:
    made = agent()

    class Rule:
        def __call__(self, *_: object) -> None:
            raise ValueError

    made.rule(Rule())
    assert made.broken_rules(EVENT, Answer(n=1)) == ["Rule"]
