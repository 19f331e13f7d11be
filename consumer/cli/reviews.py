"""`rowcall reviews`: answers that were held back, and a person's decision."""

from __future__ import annotations

import logging
from typing import Any

import click
from pydantic import BaseModel

from consumer import db, operate
from consumer.agents import registry
from consumer.cli.opening import by_option, quiet_settings, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.cli.values import Given, JsonOption, State
from consumer.errors import ConfigurationError
from consumer.operate.reviews import STATES
from consumer.settings import Settings

_log = logging.getLogger(__name__)
_REVIEW_ID = click.argument("review_id", type=click.IntRange(1), metavar="ID")


@click.group()
def reviews() -> None:
    """Answers that wait for a person: list, show, approve, reject.

    Example: rowcall reviews list
    """


@reviews.command("list")
@click.option(
    "--state",
    type=State(STATES, all_too=True),
    default="OPEN",
    show_default=True,
    help="OPEN, APPROVED, REJECTED, CLOSED or all.",
)
@click.option("--agent", help="Only this agent.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@as_json
def list_(state: str, agent: str | None, limit: int, json_output: bool) -> None:
    """Reviews, the longest waiting first.

    Example: rowcall reviews list --state all --agent order-triage
    """
    with session() as opened:
        wanted = None if state.lower() == "all" else state
        rows = operate.list_reviews(opened, state=wanted, agent=agent, limit=limit)
    if json_output:
        print_json(rows)
        return
    columns = ("id", "job_id", "agent", "state", "code", "reasons", "opened_at", "decided_by")
    print_table(rows, columns, empty="no reviews")


@reviews.command()
@_REVIEW_ID
@as_json
def show(review_id: int, json_output: bool) -> None:
    """One review: what came in, the model's text as received, why it was held, the answer it proposes.

    Example: rowcall reviews show 7
    """
    with session() as opened:
        report = operate.show_review(opened, review_id)
    if json_output:
        print_json(report.review)
    else:
        print_fields(report.review, title=f"review {review_id}")


@reviews.command()
@_REVIEW_ID
@click.option("--answer", type=JsonOption(), help="JSON to write in place of the proposed answer.")
@by_option
@reason_option
def approve(review_id: int, answer: Given | None, by: str, reason: str | None) -> None:
    """Let the run write its answer, or the one given here. The first decision wins.

    \b
    Example:
      rowcall reviews approve 7 --answer '{"title": "Late parcel", "risk_level": "low"}'
    """
    loaded = quiet_settings()
    value: Any = None if answer is None else answer.value
    with session(loaded) as opened:
        schema = _schema(loaded, opened, review_id)
        act = operate.Act(by, reason)
        decided = operate.approve(opened, review_id, act, answer=value, schema=schema)
    edited = " as edited" if decided.edited else ""
    click.echo(f"review {review_id} approved{edited}: job {decided.job_id} goes on")


@reviews.command()
@_REVIEW_ID
@by_option
@reason_option
def reject(review_id: int, by: str, reason: str | None) -> None:
    """Throw the answer away; the run ends as REJECTED. The first decision wins.

    Example: rowcall reviews reject 7 --reason "wrong customer"
    """
    with session() as opened:
        decided = operate.reject(opened, review_id, operate.Act(by, reason))
    click.echo(f"review {review_id} rejected: job {decided.job_id} has ended")


def _schema(loaded: Settings, opened: db.SyncSession, review_id: int) -> type[BaseModel] | None:
    """The answer model of the review's agent; None where its code is not installed here."""
    agent = operate.show_review(opened, review_id).review["agent"]
    try:
        found = {item.name: item.answer for item in registry.load(loaded)}
    except ConfigurationError as error:
        _log.warning("%s; the worker alone will check the answer", error, extra={"action": "approve"})
        return None
    return found.get(agent)
