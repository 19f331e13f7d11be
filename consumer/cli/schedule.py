"""`rowcall schedule`: the scheduler's process, and what people do with schedules."""

from __future__ import annotations

import datetime as dt

import click

from consumer import settings
from consumer.app import run_loop
from consumer.cli.opening import by_option, quiet_settings, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.cli.values import Moment
from producers.schedules import control, definitions, process

_DEFINED = ("cron", "timezone", "agent", "topic", "overlap", "catch_up", "jitter", "payload", "dedupe_key", "tenant")


@click.group()
def schedule() -> None:
    """Queue runs by the clock.

    Schedules stand in a list SCHEDULES of an agents' module, or in the TOML file ROWCALL_SCHEDULES. Start one scheduler
    or several: each slot fires once.

    \b
      [schedule.daily-digest]
      cron = "0 7 * * 1-5"
      timezone = "Europe/Berlin"
      agent = "issue-digest"
      payload = { repository = "shop", day = "{slot:%Y-%m-%d}" }
      dedupe_key = "shop:{slot:%Y-%m-%d}"

    Example: ROWCALL_SCHEDULES=schedules.toml rowcall schedule run
    """


@schedule.command()
def run() -> None:
    """Fire schedules until told to stop.

    Declares what the code and the TOML file say, then fires slots as they come. A schedule that is no longer declared
    is retired.

    Example: ROWCALL_SCHEDULES=schedules.toml rowcall schedule run
    """
    click.get_current_context().exit(run_loop(settings.load(), "scheduler", process.run))


@schedule.command()
def check() -> None:
    """Read the definitions and show their next slots, without a database.

    Example: ROWCALL_SCHEDULES=schedules.toml rowcall schedule check
    """
    now = dt.datetime.now(dt.UTC)
    rows = [
        {"schedule": item.name, "source": source, "cron": item.cron, "timezone": item.timezone,
         "next": next(item.after(now), None)}
        for source, items in definitions.declared(quiet_settings()).items()
        for item in items
    ]  # fmt: skip
    print_table(rows, ("schedule", "source", "cron", "timezone", "next"), empty="no schedules are declared")


@schedule.command("list")
@as_json
def list_(json_output: bool) -> None:
    """The schedules the database knows, and when each fires next.

    Example: rowcall schedule list
    """
    with session() as opened:
        found = control.stored(opened)
    rows = [
        {
            "schedule": row["name"],
            "state": row["state"],
            "next_slot": row["next_slot"] if row["state"] == "ACTIVE" else None,
            "cron": row["definition"]["cron"],
            "timezone": row["definition"]["timezone"],
            "queues": row["definition"]["agent"] or f"topic {row['definition']['topic']}",
            "source": row["source"],
            "reason": row["state_reason"],
        }
        for row in found
    ]
    if json_output:
        print_json(rows)
        return
    columns = ("schedule", "state", "next_slot", "cron", "timezone", "queues", "source", "reason")
    print_table(rows, columns, empty="no schedules; `rowcall schedule run` declares them")


@schedule.command()
@click.argument("name")
@click.option("--next", "count", default=5, show_default=True, help="How many coming slots to show.")
@click.option("--last", "limit", default=10, show_default=True, help="How many past slots to show.")
@as_json
def show(name: str, count: int, limit: int, json_output: bool) -> None:
    """One schedule: its definition, its next slots, and what became of the last ones.

    Example: rowcall schedule show daily-digest --next 10
    """
    with session() as opened:
        row = control.find(opened, name)
        coming = control.next_slots(row, definitions.now_of(opened), count) if row["state"] == "ACTIVE" else []
        past = control.past_slots(opened, name, limit)
    definition = row["definition"]
    fields = {"state": row["state"], "reason": row["state_reason"], "source": row["source"]}
    fields |= {field: definition.get(field) for field in _DEFINED}
    if json_output:
        print_json({"schedule": name, **fields, "next_slots": coming, "slots": past})
        return
    print_fields(fields, title=f"schedule {name}")
    print_table([{"next_slot": slot} for slot in coming], ("next_slot",), empty="no slot will come")
    print_table(past, ("slot", "outcome", "job_id", "status", "detail"), empty="no slot has come yet")


@schedule.command()
@click.argument("name")
@by_option
@reason_option
def pause(name: str, by: str, reason: str | None) -> None:
    """Fire no more slots until `resume`.

    Example: rowcall schedule pause daily-digest --reason "holidays"
    """
    with session() as opened:
        control.pause(opened, name, actor=by, reason=reason)
    click.echo(f"schedule {name} is paused; `rowcall schedule resume {name}` ends that")


@schedule.command()
@click.argument("name")
@click.option("--catch-up", is_flag=True, help="Catch up on slots of the pause, by the schedule's own rules.")
@by_option
@reason_option
def resume(name: str, catch_up: bool, by: str, reason: str | None) -> None:
    """Fire again.

    Example: rowcall schedule resume daily-digest
    """
    with session() as opened:
        control.resume(opened, name, actor=by, reason=reason, catch_up=catch_up)
    click.echo(f"schedule {name} is active")


@schedule.command()
@click.argument("name")
@click.option("--from", "start", type=Moment(), required=True, help="First moment of the range.")
@click.option("--to", "end", type=Moment(), required=True, help="End of the range, not part of it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@by_option
@reason_option
def backfill(name: str, start: dt.datetime, end: dt.datetime, yes: bool, by: str, reason: str | None) -> None:
    """Fire the slots of a past range that started nothing.

    Example: rowcall schedule backfill daily-digest --from 2026-11-01 --to 2026-11-08
    """
    with session() as opened:
        found = control.plan(opened, name, start, end)
        if not found.fire:
            click.echo(f"nothing to do: {found.done} slots of this range have started something, no others lie in it")
            return
        if not yes:
            click.confirm(f"fire {len(found.fire)} slots of {name} ({found.done} are left alone)?", abort=True)
        fired = control.backfill(opened, name, found.fire, actor=by, reason=reason)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(fired.outcomes.items())) or "nothing")
