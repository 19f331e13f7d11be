"""`rowcall jobs`: runs as people see and move them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click

from consumer import operate
from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.cli.values import State
from consumer.operate.runs import STATUSES

_JOB_ID = click.argument("job_id", type=click.IntRange(1), metavar="ID")
_JOB_OR_ROOT = click.argument("job_id", type=click.IntRange(1), metavar="[ID]", required=False)
# Part of a run → the columns its table shows; --json has them all.
_PARTS: Mapping[str, Sequence[str]] = {
    "steps": ("number", "name", "kind", "superseded", "agent_version", "finished_at", "output"),
    "calls": (
        "id",
        "step",
        "attempt",
        "model",
        "state",
        "status_code",
        "error_code",
        "duration_ms",
        "prompt_tokens",
        "completion_tokens",
        "validated",
        "late",
        "validation_error",
    ),
    "reviews": ("id", "state", "code", "reasons", "opened_at", "decided_by", "decision_reason"),
    "dead_letters": ("id", "state", "error_code", "error", "topic", "partition", "offset"),
    "coalesced": ("id", "event_id", "coalesced_at", "payload"),
    "outbox": ("id", "topic", "key", "event_type", "bytes", "created_at"),
    "audit": ("at", "actor", "action", "detail"),
}


@click.group()
def jobs() -> None:
    """Runs: list, show, retry, cancel.

    Example: rowcall jobs list --status FAILED
    """


@jobs.command("list")
@click.option(
    "--status",
    type=State(STATUSES),
    help="Only this state, as FAILED or WAITING_REVIEW.",
)
@click.option("--agent", help="Only this agent.")
@click.option("--event", help="Only this event ID.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@as_json
def list_(status: str | None, agent: str | None, event: str | None, limit: int, json_output: bool) -> None:
    """Runs, newest first.

    Example: rowcall jobs list --agent order-triage --status WAITING_RETRY
    """
    with session() as opened:
        rows = operate.list_jobs(opened, status=status, agent=agent, event=event, limit=limit)
    if json_output:
        print_json(rows)
        return
    columns = ("id", "agent", "status", "reason", "attempts", "key", "created_at", "last_error")
    shown = [{**row, "attempts": f"{row['attempt_count']}/{row['max_attempts']}"} for row in rows]
    print_table(shown, columns, empty="no runs")


@jobs.command()
@_JOB_ID
@as_json
def show(job_id: int, json_output: bool) -> None:
    """One run with its steps, calls, reviews, dead letters, coalesced events, sent records and audit.

    Example: rowcall jobs show 42 --json
    """
    with session() as opened:
        report = operate.show(opened, job_id)
    parts: dict[str, Any] = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    if json_output:
        print_json(parts)
        return
    print_fields(report.job, title=f"job {job_id}")
    for name, columns in _PARTS.items():
        if parts[name]:
            print_table(parts[name], columns, empty="", title=name.replace("_", " "))


@jobs.command()
@_JOB_OR_ROOT
@click.option("--root", metavar="EVENT", help="All parked causation loops of this root event instead of one run.")
@click.option("--from-start", is_flag=True, help="Throw the checkpoints away; they stay as evidence.")
@by_option
@reason_option
def retry(job_id: int | None, root: str | None, from_start: bool, by: str, reason: str | None) -> None:
    """Queue a FAILED, CANCELLED, PARKED or WAITING_RETRY run again.

    A run that had ended gets all its attempts anew and resumes after its last checkpoint, behind what its key has now.
    --from-start also lets the version at hand run what another version of its agent has begun.

    \b
    Example:
      rowcall jobs retry 42 --reason "endpoint is back"
      rowcall jobs retry --root rc1:5f0c9d1e2b3a4c5d6e7f8091a2b3c4d5
    """
    act = operate.Act(by, reason)
    _refuse_both(job_id, root)
    with session() as opened:
        if job_id is None:
            _report(operate.retry_root(opened, root or "", act, from_start=from_start), "PENDING")
            return
        moved = operate.retry(opened, job_id, act, from_start=from_start)
    click.echo(f"job {job_id}: {moved.before} → {moved.after}, delivery {moved.delivery}")


@jobs.command()
@_JOB_OR_ROOT
@click.option("--root", metavar="EVENT", help="Whatever this root event has set off, instead of one run.")
@by_option
@reason_option
def cancel(job_id: int | None, root: str | None, by: str, reason: str | None) -> None:
    """End a run that has not ended; a worker that has it under way writes nothing any more.

    \b
    Example:
      rowcall jobs cancel 42
      rowcall jobs cancel --root rc1:5f0c9d1e2b3a4c5d6e7f8091a2b3c4d5
    """
    act = operate.Act(by, reason)
    _refuse_both(job_id, root)
    with session() as opened:
        if job_id is None:
            _report(operate.cancel_root(opened, root or "", act), "CANCELLED")
            return
        moved = operate.cancel(opened, job_id, act)
    click.echo(f"job {job_id}: {moved.before} → {moved.after}")


def _refuse_both(job_id: int | None, root: str | None) -> None:
    if (job_id is None) == (root is None):
        raise click.UsageError("an ID names one run, --root EVENT all that one event has set off; give one of them")


def _report(done: operate.RootMoved, status: str) -> None:
    for line in done.left:
        click.echo(line)
    click.echo(f"{len(done.moved)} jobs of root {done.root} → {status}")
