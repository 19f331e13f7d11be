"""From errors to verdicts and from verdicts to moves: the pure part of how a run ends."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from consumer import validate
from consumer.agents.door import Agent, Tier
from consumer.agents.door import Retry as RetryPolicy
from consumer.errors import (
    AgentError,
    ConfigurationError,
    DataRefused,
    GiveUp,
    LeaseLost,
    ModelFatal,
    ModelInvalid,
    ModelRetryable,
    Outage,
    RetryLater,
    RowcallError,
    TransactionConflict,
)
from consumer.executor.run import verdict_of
from consumer.moves import Settlement, settlement
from consumer.records import Event
from consumer.records.jobs import ClaimedJob, Failed, Lost, Released, Retry, Review, Succeeded

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
POLICY = RetryPolicy(2.0, 300.0)
EVENT = Event("e", None, None, {})


class Answer(BaseModel):
    """With an alias, which a model is shown and Python code is not."""

    title: str = Field(alias="Title")
    risk: int = 0


agent = Agent(name="a", version=1, answer=Answer)


@agent.rule
def rule(event: Event, answer: Any) -> None:
    if answer.risk > 10:
        raise ValueError("too much risk")


@agent.tier
def tier(event: Event, answer: Any) -> Tier:
    return max(Tier.LOW, Tier.HIGH if answer.risk > 5 else Tier.LOW)


def job(attempt: int = 1, limit: int = 5) -> ClaimedJob:
    return ClaimedJob(
        id=7, agent="a", epoch=3, attempt=attempt, max_attempts=limit, input_kind="payload", payload="{}", steps_done=0,
        event_id=None, delivery=1, occurred_at=None, key=None, topic=None, partition=None, offset=None, root_event=None,
        depth=0, chain=(), tenant="default", traceparent=None, approved_answer=None, approved_by=None, created_at=NOW,
        stored_steps=None,
    )  # fmt: skip


def move(verdict: Succeeded | Retry | Failed | Released, attempt: int = 1, limit: int = 5) -> Settlement:
    return settlement(job(attempt, limit), verdict, version=2, step=4)


def test_success_carries_result_version_and_the_number_of_its_step() -> None:
    made = move(Succeeded(Answer(Title="x")))
    assert (made.status, made.step_number, made.version, made.epoch) == ("SUCCEEDED", 4, 2, 3)
    assert made.result == '{"title":"x","risk":0}'


def test_a_retry_waits_until_the_limit_and_then_fails_naming_the_attempt() -> None:
    assert (move(Retry("c", "text", 9.0), 4).status, move(Retry("c", "text", 9.0), 4).delay) == ("WAITING_RETRY", 9.0)
    failed = move(Retry("c", "text", 9.0), 5)
    assert (failed.status, failed.code, failed.error) == ("FAILED", "c", "attempt 5 of 5: text")


def test_an_attempt_that_does_not_count_is_given_back_even_at_the_limit() -> None:
    made = move(Retry("c", "text", 9.0, counts=False), 5)
    assert (made.status, made.attempts) == ("WAITING_RETRY", -1)
    released = move(Released("drain"), 5)
    assert (released.status, released.attempts, released.reason) == ("PENDING", -1, "drain")


@given(st.floats(), st.text(st.characters(codec=None, exclude_categories=())))
def test_whatever_a_verdict_holds_its_move_can_be_stored(delay: float, text: str) -> None:
    for verdict in (Retry(text, text, delay), Failed(text, text), Released(text, delay)):
        made = move(verdict)
        for part in (made.code, made.error, made.reason):
            assert part is None or "\x00" not in part.encode().decode()
        assert made.delay is None or 0 <= made.delay <= 10 * 365 * 86400


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LeaseLost("x"), Lost),
        (GiveUp("x"), Failed),
        (AgentError("x"), Failed),
        (ModelFatal("x", code="model_refusal"), Failed),
        (DataRefused("x"), Failed),
        (ConfigurationError("x"), Retry),
        (Outage("x", dependency="database"), Retry),
        (Outage("x", dependency="registry", code="timeout"), Retry),
        (TransactionConflict("x"), Retry),
        (ModelInvalid("x", code="model_invalid_json", raw="?", reasons=["r"], parseable=False), Retry),
        (ModelInvalid("x", code="model_schema", raw="{}", reasons=["r"], parseable=True), Review),
    ],
)
def test_each_class_of_error_is_one_decision(error: RowcallError, expected: type) -> None:
    assert isinstance(verdict_of(error, job(), agent, POLICY), expected)


def test_a_wish_of_the_endpoint_is_the_least_delay() -> None:
    verdict = verdict_of(ModelRetryable("x", code="model_rate_limited", retry_after_seconds=77.0), job(), agent, POLICY)
    assert isinstance(verdict, Retry) and verdict.delay_seconds == 77.0 and verdict.counts


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (Outage("x", dependency="database"), False),
        (Outage("x", dependency="registry", code="timeout"), False),
        # A trigger that raises would otherwise be tried for ever.
        (Outage("x", dependency="database", code="db_P0001"), True),
        (ConfigurationError("x"), True),
    ],
)
def test_an_outage_burns_no_attempt_but_a_refused_statement_does(error: RowcallError, counts: bool) -> None:
    verdict = verdict_of(error, job(), agent, POLICY)
    assert isinstance(verdict, Retry) and verdict.counts is counts


def test_asking_for_later_is_not_counted() -> None:
    assert verdict_of(RetryLater("x", delay_seconds=3.0), job(), agent, POLICY) == Retry(
        "retry_requested", "x", 3.0, counts=False
    )


@given(st.integers(1, 10_000))
def test_backoff_lies_between_half_and_the_whole_and_under_the_cap(attempt: int) -> None:
    whole = min(300.0, 2.0 * 2.0 ** min(attempt - 1, 30))
    assert whole / 2 <= POLICY.delay(attempt) <= whole


@pytest.mark.parametrize("answer", [Answer(Title="x"), {"Title": "x"}, {"title": "x"}])
def test_an_answer_is_valid_under_its_alias_and_its_name(answer: Any) -> None:
    assert validate.judge(agent, EVENT, answer) == Succeeded(Answer(Title="x"))


def test_an_approved_answer_is_valid_as_the_review_proposed_it() -> None:
    held = validate.judge(agent, EVENT, Answer(Title="x", risk=7))
    assert isinstance(held, Review) and held.code == "tier_high" and held.proposed is not None
    assert validate.approved(agent, EVENT, held.proposed) == Succeeded(Answer(Title="x", risk=7))


@pytest.mark.parametrize(
    ("answer", "code"),
    [({"Title": 1}, "answer_schema"), ({"Title": "x", "risk": 11}, "answer_rules"), ({}, "answer_schema")],
)
def test_an_answer_that_breaks_schema_or_rules_goes_to_a_person(answer: Any, code: str) -> None:
    held = validate.judge(agent, EVENT, answer)
    assert isinstance(held, Review) and held.code == code and held.reasons


def test_an_instance_that_was_altered_after_validation_is_checked_again() -> None:
    answer = Answer(Title="x").model_copy(update={"risk": "none"})
    held = validate.judge(agent, EVENT, answer)
    assert isinstance(held, Review) and held.code == "answer_schema"


@pytest.mark.parametrize("answer", [None, "text", 1, [Answer(Title="x")]])
def test_what_is_no_answer_at_all_is_the_agents_fault(answer: Any) -> None:
    with pytest.raises(AgentError):
        validate.judge(agent, EVENT, answer)


def test_a_review_proposes_the_object_without_the_prose_around_it() -> None:
    raw = 'Sure!\n```json\n{"Title": "x", "risk": 11}\n```'
    error = ModelInvalid("x", code="model_rules", raw=raw, reasons=["too much risk"], parseable=True)
    held = validate.held(agent, error)
    assert (held.raw, held.proposed) == (raw, '{"Title": "x", "risk": 11}')
