"""The retry policy of agents and steps: pauses, and which errors are worth another try."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from consumer.agents.door import Agent, Retry
from consumer.errors import (
    AgentError,
    Cancel,
    ConfigurationError,
    GiveUp,
    LeaseLost,
    ModelRetryable,
    RetryLater,
    StepTimeout,
)


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1000), st.floats(0, 1), st.integers(1, 100_000)
)  # fmt: skip
def test_a_pause_grows_by_the_factor_lies_within_the_jitter_and_under_the_cap(
    base: float, cap: float, factor: float, jitter: float, attempt: int
) -> None:
    policy = Retry(base, cap, factor, jitter)
    whole = min(cap, base * factor ** min(attempt - 1, 30))
    assert whole * (1 - jitter) * 0.999 <= policy.delay(attempt) <= whole


def test_without_jitter_the_pauses_are_exact() -> None:
    policy = Retry(base_seconds=1.0, cap_seconds=50.0, factor=3.0, jitter=0.0)
    assert [policy.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [1.0, 3.0, 9.0, 27.0, 50.0]


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (Retry(), KeyError(), True),
        (Retry(only=LookupError), KeyError(), True),
        (Retry(only=LookupError), ValueError(), False),
        (Retry(only=(LookupError, OSError)), TimeoutError(), True),
        (Retry(never=KeyError), KeyError(), False),
        (Retry(only=LookupError, never=(KeyError,)), KeyError(), False),
        (Retry(never=StepTimeout), StepTimeout("x"), False),
        (Retry(), StepTimeout("x"), True),
        (Retry(), ModelRetryable("x", code="model_timeout"), True),
    ],
)
def test_only_and_never_choose_the_errors(policy: Retry, error: Exception, expected: bool) -> None:
    assert policy.repeats(error, 1) is expected


@pytest.mark.parametrize(
    "error", [GiveUp("x"), Cancel("x"), RetryLater("x", delay_seconds=1), LeaseLost("x"), AgentError("x")]
)
def test_what_is_decided_is_never_tried_again_by_a_step(error: Exception) -> None:
    assert not Retry(only=Exception).repeats(error, 1)


def test_tries_are_counted_with_the_first() -> None:
    policy = Retry(attempts=3)
    assert [policy.repeats(KeyError(), tries) for tries in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    "given_",
    [
        {"base_seconds": -1}, {"cap_seconds": float("nan")}, {"factor": 0.5}, {"jitter": 2}, {"attempts": 0},
        {"attempts": 2.5}, {"base_seconds": "1"}, {"only": ("KeyError",)}, {"never": (int,)},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused_by_name(given_: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"Retry\({next(iter(given_))}="):
        Retry(**given_)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"on_failure": "stop"}, "on_failure is continue or park"),
        ({"max_losses": 0}, "max_losses"),
        ({"max_losses": 2.5}, "max_losses"),
        ({"max_postponements": 0}, "max_postponements"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": 1e9}, "deadline_seconds"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds"),
    ],
)
def test_an_agent_whose_limits_make_no_sense_is_refused(given_: dict[str, Any], says: str) -> None:
    agent = Agent(name="a", version=1, answer=BaseModel, **given_)

    @agent.run
    async def run(ctx: object, event: object) -> None: ...

    with pytest.raises(ConfigurationError, match=says):
        agent.check()


def test_the_database_is_told_what_differs_from_the_default() -> None:
    assert Agent(name="a", version=1, answer=BaseModel).options == {}
    told = Agent(name="a", version=1, answer=BaseModel, on_failure="park", max_losses=2).options
    assert told == {"on_failure": "park", "max_losses": 2}


def test_the_attempts_of_a_policy_are_the_agents() -> None:
    assert Agent(name="a", version=1, answer=BaseModel, retry=Retry(attempts=2)).max_attempts == 2
