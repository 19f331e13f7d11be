"""issue-digest checks its payload, shows the model a bounded input, and writes one row a repository and day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from consumer.agents.door import HttpAnswer, Retry, StepKind, Tier
from consumer.agents.issue_digest import ISSUE_LIMIT, QUIET_DAY, Issue, IssueDigest, agent, brief, request_of
from consumer.errors import GiveUp
from consumer.records import Change, Event

DAY = "2026-11-29"


def event(**payload: Any) -> Event:
    return Event("job:1", None, None, payload)


REQUEST = event(repository="acme/shop", day=DAY, issues=[{"title": "Crash on start"}])


def answer(**fields: Any) -> IssueDigest:
    values = {"title": "One crash", "summary": "A crash on start.", "risk_level": "medium", "actions": ["Fix it"]}
    return IssueDigest.model_validate(values | fields, strict=True)


class Run:
    """A context that keeps what was asked of it."""

    def __init__(self, rows: list[dict[str, Any]], given: IssueDigest) -> None:
        self.table = rows
        self.given = given
        self.asked: list[Any] = []
        self.steps: list[tuple[str, StepKind]] = []
        self.run_id, self.attempt, self.idempotency_key, self.merged = 1, 1, "k", 0
        self.feedback: tuple[str, ...] = ()

    @property
    def sql(self) -> Run:
        return self

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        assert parameters == ("acme/shop", dt.date(2026, 11, 29))
        return self.table

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
        self.steps.append((name, kind))
        return await function(*arguments)

    async def http(self, name: str, method: str, url: str, **options: Any) -> HttpAnswer:
        raise AssertionError("this agent calls nothing outside")

    async def ask(self, name: str, /, *, prompt: str, input: Any, answer: type[BaseModel] | None = None) -> Any:
        self.asked.append(input)
        return self.given


class Statements:
    def __init__(self) -> None:
        self.executed: list[tuple[str, tuple[Any, ...]]] = []

    async def execute(self, statement: str, *parameters: Any) -> int:
        self.executed.append((statement, parameters))
        return 1

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        raise AssertionError(query)

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        raise AssertionError("no row woke this agent")

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        raise AssertionError(topic)


async def test_issues_in_the_payload_are_used_as_they_are() -> None:
    run = Run([], answer())
    assert await agent.execute(run, REQUEST) == answer()
    assert run.steps == [] and run.asked[0]["issues"][0]["title"] == "Crash on start"


async def test_issues_missing_in_the_payload_are_read_in_a_step() -> None:
    run = Run([{"title": "Crash", "labels": ["bug"], "state": "open"}], answer())
    await agent.execute(run, event(repository="acme/shop", day=DAY))
    assert run.steps == [("fetch_issues", StepKind.FETCH_INPUT)]
    assert run.asked[0]["issues"] == [{"title": "Crash", "labels": ["bug"], "state": "open"}]


async def test_a_day_without_issues_costs_no_model_call() -> None:
    run = Run([], answer())
    assert await agent.execute(run, event(repository="acme/shop", day=DAY)) == QUIET_DAY
    assert run.asked == [] and agent.broken_rules(REQUEST, QUIET_DAY) == []


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "repository"), ({"repository": "a", "day": "soon"}, "day"), ({"repository": "", "day": DAY}, "repository"),
        ({"repository": "a", "day": DAY, "issues": [{}]}, "issues.0.title"),
        ({"repository": "a", "day": DAY, "repo": "b"}, "repo"),
    ],
)  # fmt: skip
def test_a_wrong_payload_ends_the_run_and_names_the_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(GiveUp, match=field):
        request_of(event(**payload))


def test_the_model_sees_a_bounded_number_of_issues_open_ones_first() -> None:
    issues = [Issue(title=f"closed {number}", state="closed") for number in range(ISSUE_LIMIT)]
    shown = brief(request_of(REQUEST), [*issues, Issue(title="x" * 10_000)])
    assert len(shown["issues"]) == ISSUE_LIMIT and shown["left_out"] == 1
    assert shown["issues"][0]["state"] == "open" and len(shown["issues"][0]["title"]) == 200


def test_the_same_action_twice_breaks_a_rule() -> None:
    assert agent.broken_rules(REQUEST, answer(actions=["Fix it", "fix it."]))


def test_a_high_risk_without_an_action_breaks_a_rule() -> None:
    assert agent.broken_rules(REQUEST, answer(risk_level="high", actions=[]))
    assert not agent.broken_rules(REQUEST, answer(risk_level="low", actions=[]))


def test_more_than_five_actions_are_refused() -> None:
    with pytest.raises(ValidationError, match="actions"):
        answer(actions=[f"step {number}" for number in range(6)])


def test_a_digest_does_nothing_by_itself_so_it_needs_no_approval() -> None:
    assert agent.tier_of(REQUEST, answer(risk_level="high")) is Tier.LOW


async def test_one_row_a_repository_and_day() -> None:
    statements = Statements()
    await agent.put(statements, REQUEST, answer())
    ((statement, parameters),) = statements.executed
    assert "ON CONFLICT (repository, day)" in statement
    assert parameters[:2] == ("acme/shop", dt.date(2026, 11, 29))
