"""`rowcall effects`: what agents did outside, and a person's word on what nobody knows."""

from __future__ import annotations

from typing import Any

import click

from consumer import operate
from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.enqueue import parse_payload

_EFFECT_ID = click.argument("effect_id", metavar="ID")


@click.group()
def effects() -> None:
    """What agents did outside the database: list, show, resolve.

    Example: rowcall effects list --state UNKNOWN
    """


@effects.command("list")
@click.option("--state", help="Only this state: PLANNED, SENT, CONFIRMED, UNKNOWN or FAILED.")
@click.option("--agent", help="Only this agent.")
@click.option("--job", "job_id", type=click.IntRange(1), help="Only this run.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@as_json
def list_(state: str | None, agent: str | None, job_id: int | None, limit: int, json_output: bool) -> None:
    """Effects, those that nobody knows the end of first, then newest first.

    Example: rowcall effects list --job 42
    """
    with session() as opened:
        rows = operate.list_effects(opened, state=state, agent=agent, job_id=job_id, limit=limit)
    if json_output:
        print_json(rows)
        return
    columns = ("id", "job_id", "agent", "step", "key", "state", "method", "url", "attempts", "sent_at", "resolved_by")
    print_table(rows, columns, empty="no effects")


@effects.command()
@_EFFECT_ID
@as_json
def show(effect_id: str, json_output: bool) -> None:
    """One effect with the requests that were made for it, late answers included.

    Example: rowcall effects show 5c1f0a52-6a0e-5f0e-8c7e-2f1b5f0a7d11
    """
    with session() as opened:
        report = operate.show_effect(opened, effect_id)
    if json_output:
        print_json({"effect": report.effect, "calls": report.calls})
        return
    print_fields(report.effect, title=f"effect {effect_id}")
    if report.calls:
        columns = ("id", "attempt", "state", "status_code", "error_code", "duration_ms", "late", "sent_at", "response")
        print_table(report.calls, columns, empty="", title="calls")


@effects.command()
@_EFFECT_ID
@click.option("--happened", is_flag=True, help="You found out at the other system that it happened.")
@click.option("--did-not-happen", "missing", is_flag=True, help="You found out that it did not; it is sent then.")
@click.option("--answer", help="JSON that the agent gets for the other system's answer; with --happened.")
@by_option
@reason_option
def resolve(effect_id: str, happened: bool, missing: bool, answer: str | None, by: str, reason: str | None) -> None:
    """Say whether an effect happened; the run goes on when all of its effects are known.

    What did not happen is sent then, under the same key. The first word stands.

    \b
    Example:
      rowcall effects resolve 5c1f0a52-6a0e-5f0e-8c7e-2f1b5f0a7d11 --happened --answer '{"id": 7}'
    """
    if happened == missing:
        raise click.UsageError("say what you found out: --happened or --did-not-happen, one of them")
    value: Any = None if answer is None else parse_payload(answer)
    with session() as opened:
        resolved = operate.resolve_effect(opened, effect_id, operate.Act(by, reason), happened=happened, answer=value)
    click.echo(f"effect {resolved.effect} is {resolved.state}: {_next(resolved)}")


def _next(resolved: operate.Resolved) -> str:
    if resolved.waits_for:
        return f"job {resolved.job_id} still waits for {', '.join(resolved.waits_for)}"
    if resolved.job_status == "PENDING":
        return f"job {resolved.job_id} goes on"
    return f"job {resolved.job_id} is {resolved.job_status}; `rowcall jobs show {resolved.job_id}`"
