"""`rowcall reviews`: answers that were held back, and a person's decision."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import click

from consumer import db, operate
from consumer.agents import registry
from consumer.agents.door import Agent
from consumer.cli.bypass import bypass, bypasses
from consumer.cli.opening import by_option, quiet_settings, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.cli.values import Given, JsonOption, State
from consumer.enqueue import parse_payload
from consumer.errors import ConfigurationError, OperatorError
from consumer.operate.reviews import STATES, TIERS
from consumer.settings import Settings

_log = logging.getLogger(__name__)
_REVIEW_ID = click.argument("review_id", type=click.IntRange(1), metavar="ID")
_DIGEST = click.option("--digest", help="Decide only if the review has this digest still, as `show` prints it.")
_COLUMNS = ("id", "job_id", "agent", "key", "state", "code", "tier", "reasons", "opened_at", "expires_at", "decided_by")
# Told apart from the fields of the review, as tables.
_TABLES = ("changes", "evidence", "stale_changes", "seen")


@click.group()
def reviews() -> None:
    """Answers that wait for a person: show, approve, reject, again, bypass.

    Example: rowcall reviews list
    """


reviews.add_command(bypass)
reviews.add_command(bypasses)


@reviews.command("list")
@click.option(
    "--state",
    type=State(STATES, all_too=True),
    default="OPEN",
    show_default=True,
    help="OPEN, APPROVED, REJECTED, CLOSED, AGAIN, STALE, SUPERSEDED, EXPIRED or all.",
)
@click.option("--agent", help="Only this agent.")
@click.option("--tier", type=click.Choice(TIERS), help="Only this tier.")
@click.option("--key", help="Only of this key: a row's, or the one a run was queued with.")
@click.option("--escalated", is_flag=True, help="Only those that were escalated.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@as_json
def list_(
    state: str, agent: str | None, tier: str | None, key: str | None, escalated: bool, limit: int, json_output: bool
) -> None:
    """Reviews, the longest waiting first.

    Example: rowcall reviews list --state all --agent order-triage --key 42
    """
    with session() as opened:
        wanted = None if state.lower() == "all" else state
        rows = operate.list_reviews(
            opened, state=wanted, agent=agent, tier=tier, key=key, escalated=escalated, limit=limit
        )
    if json_output:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, empty="no reviews")


@reviews.command()
@_REVIEW_ID
@as_json
def show(review_id: int, json_output: bool) -> None:
    """One review: why it was held, the answer it proposes, what would change, evidence, and the digest.

    Example: rowcall reviews show 7
    """
    with session() as opened:
        report = operate.show_review(opened, review_id)
    if json_output:
        more = {"row_changed": report.row_changed, "steps": report.steps, "calls": report.calls}
        print_json({**report.review, **more})
        return
    fields = {name: value for name, value in report.review.items() if name not in _TABLES}
    print_fields(fields, title=f"review {review_id}")
    _print_changes(report)
    print_table(
        report.steps, ("number", "name", "kind", "output", "finished_at"), empty="no steps", title="\nits steps"
    )
    calls = ("id", "step", "endpoint", "model", "error_code", "validated", "response")
    print_table(report.calls, calls, empty="no calls", title="\nits calls")


@reviews.command()
@click.argument("review_id", type=click.IntRange(1), metavar="[ID]", required=False)
@click.option("--answer", type=JsonOption(), help="JSON to write in place of the proposed answer.")
@click.option("--set", "edits", multiple=True, metavar="FIELD=VALUE", help="Change one field of it; VALUE is JSON.")
@click.option("--like", type=click.IntRange(1), metavar="ID", help="Approve all that ask for the same as review ID.")
@click.option("--yes", is_flag=True, help="With --like: do not ask.")
@_DIGEST
@by_option
@reason_option
def approve(
    review_id: int | None,
    answer: Given | None,
    edits: tuple[str, ...],
    like: int | None,
    yes: bool,
    digest: str | None,
    by: str,
    reason: str | None,
) -> None:
    """Let the run write its answer, or the one given here. The first decision wins.

    \b
    Examples:
      rowcall reviews approve 7
      rowcall reviews approve 7 --set risk_level='"low"' --set note=null
      rowcall reviews approve --like 7
    """
    loaded = quiet_settings()
    act = operate.Act(by, reason)
    if (review_id is None) == (like is None):
        raise click.UsageError("give the ID of one review, or --like ID for all that ask for the same")
    with session(loaded) as opened:
        if like is not None:
            if answer is not None or edits or digest is not None:
                raise click.UsageError("--like approves answers as they are; leave --answer, --set and --digest out")
            _approve_alike(loaded, opened, like, act, yes=yes)
            return
        assert review_id is not None
        given: dict[str, Any] = {} if answer is None else {"answer": answer.value}
        report = operate.show_review(opened, review_id)
        decided = operate.approve(
            opened, review_id, act, edits=_edits(edits), digest=digest or report.digest,
            agent=_agent(loaded, report.review["agent"]), **given,
        )  # fmt: skip
    if decided.edited:
        click.echo(f"review {review_id} approved as edited: job {decided.job_id} goes on")
    else:
        click.echo(f"review {review_id} approved: job {decided.job_id} goes on")


@reviews.command()
@_REVIEW_ID
@_DIGEST
@by_option
@click.option("--reason", required=True, help="Why; kept in the audit.")
def reject(review_id: int, digest: str | None, by: str, reason: str) -> None:
    """Throw the answer away; the run ends as REJECTED. The first decision wins.

    Example: rowcall reviews reject 7 --reason "wrong customer"
    """
    with session() as opened:
        decided = operate.reject(opened, review_id, operate.Act(by, reason), digest=digest)
    click.echo(f"review {review_id} rejected: job {decided.job_id} has ended")


@reviews.command()
@_REVIEW_ID
@_DIGEST
@by_option
@click.option("--reason", required=True, help="What to do better; the model is told, and it is kept in the audit.")
def again(review_id: int, digest: str | None, by: str, reason: str) -> None:
    """Ask for another attempt: the model is called again with your reason, earlier steps are kept.

    Example: rowcall reviews again 7 --reason "the customer is a new one, say so"
    """
    with session() as opened:
        decided = operate.again(opened, review_id, operate.Act(by, reason), digest=digest)
    click.echo(f"review {review_id}: job {decided.job_id} makes another attempt")


def _approve_alike(loaded: Settings, opened: db.SyncSession, review_id: int, act: operate.Act, *, yes: bool) -> None:
    found = operate.alike(opened, review_id)
    count = len(found.requests)
    ids = ", ".join(str(item) for item, _ in found.requests[:20]) + (" …" if count > 20 else "")
    click.echo(f"{count} open reviews of {found.agent} ask for the same ({found.code}, tier {found.tier}): {ids}")
    if not yes:
        click.confirm(f"Approve these {count}?", abort=True)
    done = operate.approve_alike(opened, found.requests, act, agent=_agent(loaded, found.agent))
    click.echo(f"{len(done.decided)} approved as group {done.group}")
    for refused, why in done.refused.items():
        click.echo(f"review {refused} left alone: {why}")
    if done.refused:
        raise OperatorError(f"{len(done.refused)} of {count} reviews were not approved")


def _print_changes(report: operate.ReviewReport) -> None:
    if report.changes is not None:
        rows = [{"column": item["column"], "now": _json(item, "now"), "then": _json(item, "then")}
                for item in report.changes]  # fmt: skip
        print_table(rows, ("column", "now", "then"), empty="it changes no column", title="\nwhat it would change")
    if report.review["stale_changes"] is not None:
        stale = json.loads(report.review["stale_changes"])
        rows = [
            {"column": name, "seen": _json(item, "seen"), "now": _json(item, "now")} for name, item in stale.items()
        ]
        print_table(rows, ("column", "seen", "now"), empty="", title="\nwhat had changed since the answer was made")
    if report.row_changed:
        changed = ", ".join(report.row_changed)
        click.echo(f"\nThe row has changed since ({changed}): an approval will not be written as it is.")


def _json(item: Mapping[str, Any], name: str) -> str:
    return json.dumps(item[name], ensure_ascii=False) if name in item else ""


def _edits(texts: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--set {text!r}: write FIELD=VALUE")
        try:
            found[name] = parse_payload(value)
        except OperatorError as error:
            quoted = f"--set {name}='{json.dumps(value)}'"
            raise click.UsageError(f"the value of {name} is not JSON; a text needs its quotes: {quoted}") from error
    return found


def _agent(loaded: Settings, name: str) -> Agent | None:
    """The review's agent; None where its code is not installed here."""
    try:
        found = {item.name: item for item in registry.load(loaded)}
    except ConfigurationError as error:
        _log.warning("%s; the worker alone will check the answer", error, extra={"action": "approve"})
        return None
    return found.get(name)
