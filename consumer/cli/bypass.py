"""`rowcall reviews bypass`: letting the medium tier of an agent through for a while."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import click

from consumer import operate
from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_json, print_table
from consumer.operate.reviews import TIERS

_TIME: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?")
_COLUMNS = ("id", "agent", "tier", "active", "let_through", "since", "until", "granted_by", "reason", "ended_by")


@click.command()
@click.argument("agent", required=False)
@click.option("--tier", type=click.Choice(TIERS), default="medium", show_default=True, help="Which answers.")
@click.option("--for", "time", metavar="TIME", help="How long, as 2h, 30m or 1h30m; 8 hours at most.")
@click.option("--end", type=click.IntRange(1), metavar="ID", help="End bypass ID before its time.")
@by_option
@reason_option
def bypass(agent: str | None, tier: str, time: str | None, end: int | None, by: str, reason: str | None) -> None:
    """Let an agent's answers of the medium tier through for a while; each is recorded. Never the high tier.

    \b
    Examples:
      rowcall reviews bypass order-triage --for 2h --reason "sale day, Ada watches"
      rowcall reviews bypass --end 3
    """
    act = operate.Act(by, reason)
    if end is not None:
        if agent is not None or time is not None:
            raise click.UsageError("--end takes the ID of a bypass and nothing else")
        with session() as opened:
            operate.end_bypass(opened, end, act)
        click.echo(f"bypass {end} ended")
        return
    if agent is None or time is None:
        raise click.UsageError("say which agent and how long: rowcall reviews bypass AGENT --for 2h --reason TEXT")
    with session() as opened:
        granted = operate.bypass(opened, agent, act, tier=tier, time=_time(time))
    click.echo(f"bypass {granted.id}: {tier}-tier answers of {agent} are let through until {granted.until:%H:%M:%S %Z}")


@click.command()
@click.option("--agent", help="Only this agent.")
@as_json
def bypasses(agent: str | None, json_output: bool) -> None:
    """Bypasses, newest first, and how many answers each has let through.

    Example: rowcall reviews bypasses --agent order-triage
    """
    with session() as opened:
        rows = operate.list_bypasses(opened, agent=agent)
    if json_output:
        print_json(rows)
    else:
        print_table(rows, _COLUMNS, empty="no bypasses")


def _time(text: str) -> dt.timedelta:
    found = _TIME.fullmatch(text.strip())
    if not text.strip() or found is None:
        raise click.UsageError(f"--for {text!r}: write hours and minutes, as 2h, 30m or 1h30m")
    return dt.timedelta(hours=int(found[1] or 0), minutes=int(found[2] or 0))
