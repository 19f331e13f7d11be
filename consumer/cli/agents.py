"""`rowcall agents`: which agents there are, in code and in the database, and whether they run."""

from __future__ import annotations

from typing import Any

import click

from consumer import activate as activation
from consumer import operate
from consumer.agents import registry
from consumer.cli.opening import by_option, quiet_settings, reason_option, session
from consumer.cli.output import as_json, print_json, print_table
from consumer.errors import OperatorError
from consumer.kafka import Brokers


@click.group()
def agents() -> None:
    """List, activate, pause, resume and retire agents.

    Example: rowcall agents list
    """


@agents.command("list")
@as_json
def list_(json_output: bool) -> None:
    """The agents of ROWCALL_AGENTS beside those the database knows.

    Example: rowcall agents list
    """
    loaded = quiet_settings()
    code = {agent.name: agent for agent in registry.load(loaded)}
    with session(loaded) as opened:
        stored = {row["name"]: row for row in operate.list_agents(opened)}
    rows: list[dict[str, Any]] = []
    for name in sorted(code.keys() | stored.keys()):
        row, agent = stored.get(name), code.get(name)
        rows.append(
            {
                "agent": name,
                "state": "not activated" if row is None else row["state"],
                "version": None if row is None else row["version"],
                "code_version": None if agent is None else agent.version,
                "topics": row["topics"] if row is not None else list(agent.topics) if agent is not None else [],
                "since": None if row is None else row["activated_at"],
                "paused_until": None if row is None else row["paused_until"],
                "reason": None if row is None else row["state_reason"],
                "description": "" if agent is None else agent.description,
            }
        )
    if json_output:
        print_json(rows)
        return
    columns = ("agent", "state", "version", "code_version", "topics", "since", "reason", "description")
    print_table(rows, columns, empty="no agents")


@agents.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@by_option
def activate(names: tuple[str, ...], by: str) -> None:
    """Start agents from now on: all of ROWCALL_AGENTS, or those named. Safe to repeat.

    A retired agent comes back only when it is named, and starts at now again: what came in between wakes it no more.

    An agent begins with the events after its activation; topics that do not exist yet are read from their beginning.

    Example: rowcall agents activate order-triage
    """
    loaded = quiet_settings()
    known = {agent.name: agent for agent in registry.load(loaded)}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise OperatorError(f"no agent {', '.join(unknown)} in ROWCALL_AGENTS; it has {', '.join(sorted(known))}")
    with session(loaded) as opened:
        wanted = [known[name] for name in names or sorted(known)]
        for item in activation.activate(opened, Brokers(loaded), wanted, revived_by=by if names else None):
            hint = f"; `rowcall agents activate {item.agent}` brings it back" if item.outcome == "retired" else ""
            click.echo(f"{item.agent} {item.version}: {item.outcome.replace('_', ' ')}{hint}")


@agents.command()
@click.argument("name")
@by_option
@reason_option
def pause(name: str, by: str, reason: str | None) -> None:
    """Stop starting an agent's runs. Events are still queued; runs under way go on.

    Example: rowcall agents pause order-triage --reason "price list is wrong"
    """
    with session() as opened:
        operate.pause(opened, name, operate.Act(by, reason))
    click.echo(f"{name} paused; `rowcall agents resume {name}` starts it again")


@agents.command()
@click.argument("name")
@by_option
@reason_option
def resume(name: str, by: str, reason: str | None) -> None:
    """Start a paused agent's runs again, whoever paused it.

    Example: rowcall agents resume order-triage
    """
    with session() as opened:
        operate.resume(opened, name, operate.Act(by, reason))
    click.echo(f"{name} resumed")


@agents.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@by_option
@reason_option
def retire(name: str, yes: bool, by: str, reason: str | None) -> None:
    """End an agent: no event wakes it, its live runs are cancelled and their keys freed.

    Example: rowcall agents retire old-triage --yes
    """
    with session() as opened:
        operate.require_agent(opened, name)
        if not yes:
            click.confirm(f"Retire {name} and cancel its runs?", abort=True)
        retired = operate.retire(opened, name, operate.Act(by, reason))
    click.echo(f"{name} retired; {retired.cancelled} runs cancelled")
