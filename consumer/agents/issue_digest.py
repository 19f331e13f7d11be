"""Example: a digest of one repository's issues of one day.

Subscribes to nothing; it is queued by its schedule, by `rowcall enqueue issue-digest` or by the trigger on
public.issues through `rowcall.enqueue(…)`, with the dedupe_key `<repository>:<day>`, so that each repository has one
digest a day. The payload is {"repository", "day"} and either the "issues" themselves or nothing: then they are read
from public.issues. Its answer recommends and does nothing, so its tier is LOW whatever the risk.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from consumer.agents.door import Agent, Context, Reader, StepKind, Transaction
from consumer.agents.schedule import Schedule
from consumer.errors import GiveUp
from consumer.records import Event

# Issues shown to the model, the most urgent first: about 4,000 tokens.
ISSUE_LIMIT: Final = 40
_TITLE_LIMIT: Final = 200

PROMPT: Final = """\
You write the daily digest of a software repository's issues for its maintainers.
title: a headline. summary: what came in and what matters most. risk_level: high when users lose data or cannot work, \
medium when many are hindered, else low. actions: up to five different next steps, the most important first; an empty \
list when nothing is to be done. left_out says how many more issues there were than are shown.
Example: {"title": "Crash on start after the update", "summary": "Two users report a crash on start since the last \
update. One question about the docs.", "risk_level": "medium", "actions": ["Reproduce the crash on start", \
"Release a fix", "Answer the question"]}"""

_Line = Annotated[str, StringConstraints(min_length=3, max_length=100)]
_Text = Annotated[str, StringConstraints(min_length=10, max_length=400)]


class Issue(BaseModel):
    """One issue as a payload gives it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str = Field(min_length=1)
    labels: list[str] = []
    state: str = "open"


class DigestRequest(BaseModel):
    """The payload of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str = Field(min_length=1, max_length=200)
    day: dt.date
    issues: list[Issue] | None = None


class IssueDigest(BaseModel):
    """The digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: _Line
    summary: _Text
    risk_level: Literal["low", "medium", "high"]
    actions: list[_Line] = Field(max_length=5)


QUIET_DAY: Final = IssueDigest(
    title="No new issues", summary="No issue was opened on this day.", risk_level="low", actions=[]
)

agent = Agent(
    name="issue-digest",
    version=1,
    answer=IssueDigest,
    description="Writes the digest of a repository's issues of one day.",
)

# Each morning, the day before; the time zone is the readers'. One schedule a repository.
schedule = Schedule(
    name="daily-issue-digest",
    cron="0 7 * * *",
    agent="issue-digest",
    payload={"repository": "example/shop", "day": "{slot-1d:%Y-%m-%d}"},
    dedupe_key="example/shop:{slot-1d:%Y-%m-%d}",
)


@agent.run
async def digest(ctx: Context, event: Event) -> IssueDigest:
    """Take the issues from the payload or the table, then ask the model; a day without issues costs no call."""
    request = request_of(event)
    issues = request.issues
    if issues is None:
        rows = await ctx.step(
            "fetch_issues", fetch_issues, ctx.sql, request.repository, request.day, kind=StepKind.FETCH_INPUT
        )
        issues = [Issue.model_validate(row) for row in rows]
    if not issues:
        return QUIET_DAY
    answer: IssueDigest = await ctx.ask("digest", prompt=PROMPT, input=brief(request, issues))
    return answer


def request_of(event: Event) -> DigestRequest:
    """The payload, checked.

    Raises:
        GiveUp: naming each wrong field; the same payload will never be right.
    """
    try:
        return DigestRequest.model_validate(event.data)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'payload'}: {item['msg']}" for item in error.errors())
        raise GiveUp(f"the payload is no digest request: {wrong}") from error


async def fetch_issues(sql: Reader, repository: str, day: dt.date) -> list[dict[str, Any]]:
    """The issues opened in `repository` on `day` (UTC), oldest first."""
    return await sql.rows(
        "SELECT title, labels, state FROM public.issues "
        "WHERE repository = %s AND (opened_at AT TIME ZONE 'UTC')::date = %s ORDER BY opened_at, id",
        repository,
        day,
    )


def brief(request: DigestRequest, issues: list[Issue]) -> dict[str, Any]:
    """What the model is shown: open issues first, each with a bounded title."""
    ordered = sorted(issues, key=lambda issue: issue.state != "open")
    shown = [
        {"title": issue.title[:_TITLE_LIMIT], "labels": issue.labels[:10], "state": issue.state}
        for issue in ordered[:ISSUE_LIMIT]
    ]
    return {
        "repository": request.repository,
        "day": request.day,
        "issues": shown,
        "left_out": len(ordered) - len(shown),
    }


@agent.rule
def actions_differ(event: Event, answer: IssueDigest) -> None:
    """The same step twice is one step."""
    if len({action.casefold().rstrip(".") for action in answer.actions}) < len(answer.actions):
        raise ValueError("actions holds the same step twice")


@agent.rule
def high_risk_has_an_action(event: Event, answer: IssueDigest) -> None:
    """Nobody is helped by an alarm that asks for nothing."""
    if answer.risk_level == "high" and not answer.actions:
        raise ValueError("risk_level high needs at least one action")


@agent.write
async def write(tx: Transaction, event: Event, answer: IssueDigest) -> None:
    """One row a repository and day; a repeated run replaces it."""
    request = request_of(event)
    await tx.execute(
        "INSERT INTO public.issue_digests (repository, day, title, summary, risk_level, actions) "
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (repository, day) DO UPDATE SET title = excluded.title, "
        "summary = excluded.summary, risk_level = excluded.risk_level, actions = excluded.actions",
        request.repository,
        request.day,
        answer.title,
        answer.summary,
        answer.risk_level,
        answer.actions,
    )
