"""Rates, money and the limits an agent's code may have: what is read, and what is refused with a clear sentence."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from consumer.agents.door import Agent
from consumer.errors import ConfigurationError
from consumer.limits import Endpoint, wanted
from consumer.records.money import money_text, read_money
from consumer.records.rates import Rate, read_rate
from consumer.settings import Settings


class Note(BaseModel):
    """An answer."""

    text: str


def agent(**options: Any) -> Agent:
    """An agent that works, but for these options."""
    found = Agent(name="a", version=1, answer=Note, **options)

    @found.run
    async def run(ctx: object, event: object) -> Note:
        return Note(text="x")

    return found


@pytest.mark.parametrize("text", ["100/min", "1/s", " 5 / h ", "3/day"])
def test_a_rate_is_read_and_written_back(text: str) -> None:
    rate = read_rate(text)
    assert read_rate(str(rate)) == rate


@pytest.mark.parametrize("text", ["", "100", "0/min", "-1/s", "1/minute", "1.5/s", "100/min/min", "9999999999/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="100/min"):
        read_rate(text)


@given(st.decimals(min_value=0, max_value=10**6, places=6))
def test_money_keeps_its_millionths(amount: Decimal) -> None:
    assert read_money(str(amount)) == amount * 1_000_000
    assert Decimal(money_text(read_money(str(amount)))) == amount


@pytest.mark.parametrize("text", ["", "-1", "NaN", "Infinity", "five", "1e12", "1,5"])
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no amount of money"):
        read_money(text)


def test_a_part_of_a_millionth_counts_as_a_whole_one() -> None:
    assert read_money("0.0000001") == 1


def test_the_options_name_what_is_set_and_nothing_else() -> None:
    assert agent().options == {}
    limited = agent(concurrency=3, rate="100/min", priority=5, storm=600, run_tokens=7, root_money="0.5")
    assert limited.options == {
        "concurrency": 3, "rate_runs": 100, "rate_seconds": 60.0, "priority": 5, "storm": 600, "run_tokens": 7,
        "root_money": 500_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0}, {"concurrency": True}, {"concurrency": 2.0}, {"rate": "fast"}, {"rate": 5},
        {"priority": 101}, {"priority": "high"}, {"storm": -1}, {"run_tokens": 0}, {"root_money": "-1"},
        {"run_money": 0.25}, {"storm": 10**9},
    ],
)  # fmt: skip
def test_an_agent_with_an_impossible_limit_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"agent a: {next(iter(wrong))}="):
        agent(**wrong).check()


def test_a_call_reserves_a_third_of_its_bytes_and_all_that_may_be_answered_at_their_prices() -> None:
    endpoint = Endpoint("e", None, None, Decimal("0.15"), Decimal("0.6"))
    call = wanted(1, 2, endpoint, input_bytes=3001, max_tokens=1000)
    assert (call.tokens, call.money) == (2001, 751)
    assert endpoint.money(0, 0) == 0


def test_the_endpoints_rates_are_settings() -> None:
    loaded = Settings.model_validate({"model_rate": "600/min", "model_token_rate": "90000/min"})
    endpoint = Endpoint.of(loaded)
    assert (endpoint.calls, endpoint.tokens) == (Rate(600, 60.0), Rate(90_000, 60.0))
    with pytest.raises(ValidationError):
        Settings.model_validate({"model_rate": "600 a minute"})
