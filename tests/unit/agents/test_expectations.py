"""What an agent's code says of the runs that are expected of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pydantic import BaseModel

from consumer.agents.door import Agent
from consumer.errors import ConfigurationError

HOUR = dt.timedelta(hours=1)


def agent(**fields: Any) -> Agent:
    made = Agent(name="a", version=1, answer=BaseModel, **fields)

    @made.run
    async def run(ctx: Any, message: Any) -> Any:
        return None

    return made


def test_an_agent_expects_nothing_unless_it_says_so() -> None:
    assert agent().options == {}


def test_expectations_are_seconds_in_the_options() -> None:
    told = agent(expect_every=HOUR, start_grace=HOUR / 60, run_grace=HOUR / 2, misses=2, empty_output="allow")
    told.check()
    assert told.options == {
        "expect_every": 3600.0, "start_grace": 60.0, "run_grace": 1800.0, "misses": 2, "empty_output": "allow"
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"expect_every": 3600},
        {"expect_every": dt.timedelta()},
        {"expect_every": dt.timedelta(days=10_000)},
        {"run_grace": -HOUR},
        {"start_grace": HOUR},
        {"misses": 0},
        {"misses": True},
        {"empty_output": "ignore"},
    ],
)
def test_an_expectation_that_cannot_be_one_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=name):
        agent(**wrong).check()
