"""`rowcall watchdog`: the process that finds silence, and what people do with what it watches."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import click

from consumer import settings, telemetry
from consumer.agents import registry
from consumer.app import run_loop
from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_json, print_table
from consumer.cli.values import Moment, State
from consumer.cli.watchdog_test import test
from consumer.errors import ConfigurationError
from consumer.records.jobs import storable
from consumer.settings import Settings
from consumer.watchdog import channels, control
from consumer.watchdog.alert import Listener
from consumer.watchdog.observation import Expected
from consumer.watchdog.rounds import Watchdog
from producers.overdue import OverdueTopics
from producers.schedules import definitions

_log = logging.getLogger(__name__)
_STATES = ("new", "up", "late", "overdue", "failed", "stuck", "no_output", "paused")
_LISTED = ("subject", "state", "since", "last_beat_at", "due_at", "run_id", "reminders", "paused_until", "paused_by",
           "unsent", "gave_up", "message")  # fmt: skip


@click.group()
def watchdog() -> None:
    """Find silence: processes, schedules, runs and connectors of which nothing is heard, and runs that did nothing.

    One watchdog is enough, on another machine than what it watches; several write each finding once. Who is told
    stands in the TOML file ROWCALL_WATCHDOG:

    \b
      [channel.agents]
      type = "topic"

    Example: ROWCALL_WATCHDOG=watchdog.toml rowcall watchdog run
    """


@watchdog.command()
def run() -> None:
    """Watch until told to stop. Each finding is logged, and sent by every channel that is configured.

    Example: ROWCALL_WATCHDOG_GRACE_SECONDS=60 rowcall watchdog run
    """
    loaded = settings.load()
    telemetry.configure(loaded)
    with ExitStack() as opened:
        topics = opened.enter_context(closing(OverdueTopics(loaded)))
        told: Sequence[Listener] = []
        if loaded.watchdog:
            told = channels.load(Path(loaded.watchdog), loaded, topic=topics.channel)
        switch = channels.ping(loaded)
        if switch is not None:
            opened.callback(switch.close)
        watching = Watchdog(loaded, told, ping=None if switch is None else switch.round_done, expected=expected(loaded))
        opened.callback(watching.stop)
        code = run_loop(loaded, "watchdog", watching.run)
    click.get_current_context().exit(code)


@watchdog.command("list")
@click.option("--state", type=State(_STATES), help=f"Only this state: {', '.join(_STATES)}.")
@as_json
def list_(state: str | None, json_output: bool) -> None:
    """What is watched, the worst first.

    Example: rowcall watchdog list --state overdue
    """
    with session() as opened:
        rows = control.watched(opened, state)
    if json_output:
        print_json(rows)
        return
    shown = [row | {name: row[name] or None for name in ("reminders", "unsent", "gave_up")} for row in rows]
    print_table(shown, _LISTED, empty="nothing is watched; `rowcall watchdog run` watches")


@watchdog.command()
@click.argument("subject", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to show.")
@as_json
def flips(subject: str | None, limit: int, json_output: bool) -> None:
    """The latest changes, newest first, and what became of their alerts.

    Example: rowcall watchdog flips schedule:daily-digest
    """
    with session() as opened:
        rows = control.flips(opened, subject, limit)
    if json_output:
        print_json(rows)
        return
    columns = ("at", "subject", "old_state", "new_state", "due_at", "run_id", "alerts", "message")
    print_table(rows, columns, empty="nothing has changed yet")


@watchdog.command()
@click.argument("subject")
@click.option("--until", type=Moment(), help="When it ends by itself; without it, at `resume`.")
@by_option
@reason_option
def pause(subject: str, until: dt.datetime | None, by: str, reason: str | None) -> None:
    """Tell nothing of a subject for a while.

    Example: rowcall watchdog pause schedule:daily-digest --until 2026-12-24T18:00+01:00
    """
    with session() as opened:
        control.pause(opened, subject, until=until, actor=by, reason=reason)
    click.echo(f"{subject} is paused; `rowcall watchdog resume {subject}` ends that")


@watchdog.command()
@click.argument("subject")
@by_option
@reason_option
def resume(subject: str, by: str, reason: str | None) -> None:
    """Judge a subject again.

    Example: rowcall watchdog resume schedule:daily-digest
    """
    with session() as opened:
        control.resume(opened, subject, actor=by, reason=reason)
    click.echo(f"{subject} is watched again")


@watchdog.command()
@click.argument("subject")
@by_option
@reason_option
def forget(subject: str, by: str, reason: str | None) -> None:
    """Drop what is known of a subject, such as a process that will not come back. Its flips are kept.

    Example: rowcall watchdog forget process:executor@worker-3:17:ab12cd34
    """
    with session() as opened:
        control.forget(opened, subject, actor=by, reason=reason)
    click.echo(f"{subject} is forgotten; it begins anew if it is seen again")


watchdog.add_command(test)


def expected(loaded: Settings) -> list[Expected]:
    """What the code declares: schedules with their first slot, and agents of which runs are expected.

    A watchdog without the agents' code watches what the database knows.
    """
    now = dt.datetime.now(dt.UTC)
    try:
        agents = [
            Expected(
                storable(f"agent:{agent.name}"), now + agent.expect_every, "it was never activated; start a worker"
            )
            for agent in registry.load(loaded)
            if agent.expect_every is not None
        ]
        schedules = [
            Expected(storable(f"schedule:{item.name}"), slot, "no scheduler has read it; start `rowcall schedule run`")
            for items in definitions.declared(loaded).values()
            for item in items
            if (slot := next(item.after(now), None)) is not None
        ]
    except ConfigurationError as error:
        _log.warning("what the code declares is not watched: %s", error, extra={"action": "nothing_declared"})
        return []
    return schedules + agents
