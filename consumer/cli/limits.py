"""`rowcall limits`: concurrency, rate, priority and storm limits of agents, and what is held by them."""

from __future__ import annotations

from typing import Any

import click

from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.errors import OperatorError
from consumer.operate import Act
from consumer.operate import limits as operated
from consumer.records.rates import Rate, read_rate

_COLUMNS = ("agent", "state", "concurrency", "slots_taken", "rate", "priority", "storm", "set_here", "updated_by")


@click.group()
def limits() -> None:
    """Limits of agents over all workers: concurrency, rate, priority, storm breaker.

    Example: rowcall limits list
    """


@limits.command("list")
@as_json
def list_(json_output: bool) -> None:
    """The limits in force for each agent; `set here` names those that an operator set.

    Example: rowcall limits list
    """
    with session() as opened:
        rows = [_shown(row) for row in operated.list_limits(opened)]
        default = operated.default_limits(opened)
    if default is not None:
        rows.append({"state": "", "slots_taken": None, "set_here": "for all agents", **_shown(default)})
    if json_output:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, empty="no agents")


@limits.command()
@click.argument("agent")
@as_json
def show(agent: str, json_output: bool) -> None:
    """One agent's limits, and what holds its runs now.

    Example: rowcall limits show order-triage
    """
    with session() as opened:
        found = operated.list_limits(opened, agent)
        held = [row for row in operated.holds(opened) if row["agent"] in (agent, None)]
    if not found:
        raise OperatorError(f"the database knows no agent {agent!r}; `rowcall limits list` lists them")
    row = _shown(found[0])
    if json_output:
        print_json({**row, "holds": held})
        return
    print_fields(row, title=f"agent {agent}")
    print_table(held, ("reason", "tenant", "topic", "since", "until", "lanes_held", "detail"), empty="nothing is held")


@limits.command("set")
@click.argument("agent")
@click.option("--concurrency", type=click.IntRange(0, 1_000_000), help="Runs under way at once; 0 is no limit.")
@click.option("--rate", help="Runs that may start, such as 100/min (s, min, h, day); 0 is no limit.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Agents of a higher one are served first.")
@click.option("--storm", type=click.IntRange(0, 1_000_000), help="Runs a minute and table; 0 is no limit.")
@by_option
@reason_option
def set_(
    agent: str,
    concurrency: int | None,
    rate: str | None,
    priority: int | None,
    storm: int | None,
    by: str,
    reason: str | None,
) -> None:
    """Set limits of AGENT, or with '*' of all agents whose code says nothing. They win over the agent's code.

    Example: rowcall limits set order-triage --concurrency 3 --rate 100/min
    """
    if (concurrency, rate, priority, storm) == (None, None, None, None):
        raise click.UsageError("say what to set: --concurrency, --rate, --priority or --storm")
    runs, seconds = _rate(rate)
    wanted = operated.LimitsWanted(concurrency, runs, seconds, priority, storm)
    with session() as opened:
        operated.set_limits(opened, agent, wanted, Act(by, reason))
    click.echo(f"limits of {agent} set; `rowcall limits list` shows what is in force")


@limits.command()
@click.argument("agent")
@by_option
@reason_option
def clear(agent: str, by: str, reason: str | None) -> None:
    """Forget what operators set for AGENT: the limits of its code count again.

    Example: rowcall limits clear order-triage
    """
    with session() as opened:
        operated.clear_limits(opened, agent, Act(by, reason))
    click.echo(f"limits of {agent} cleared")


@limits.command()
@as_json
def storms(json_output: bool) -> None:
    """Storms whose runs are held: agent, topic, since when, and how many lanes wait.

    Example: rowcall limits storms
    """
    with session() as opened:
        rows = operated.holds(opened, "storm")
    if json_output:
        print_json(rows)
        return
    columns = ("agent", "topic", "since", "until", "lanes_held", "lanes_per_second", "detail")
    print_table(rows, columns, empty="no storm is held")


@limits.command()
@click.argument("agent")
@click.option("--topic", help="Only the storm of this topic.  [default: every one of the agent]")
@by_option
@reason_option
def resume(agent: str, topic: str | None, by: str, reason: str | None) -> None:
    """Let the runs that a storm held go at once, in their order.

    Example: rowcall limits resume order-triage --reason "a planned import"
    """
    with session() as opened:
        topics = operated.end_storm(opened, agent, topic, Act(by, reason))
    click.echo(f"runs of {agent} go on for {', '.join(topics)}")


def _rate(text: str | None) -> tuple[int | None, float | None]:
    if text is None:
        return None, None
    if text.strip() == "0":
        return 0, 1.0
    try:
        rate = read_rate(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from error
    return rate.count, rate.seconds


def _shown(row: Any) -> dict[str, Any]:
    shown = dict(row)
    runs, seconds = shown.pop("rate_runs"), shown.pop("rate_seconds")
    shown["rate"] = None if runs is None else "0" if runs == 0 else str(Rate(runs, seconds))
    return shown
