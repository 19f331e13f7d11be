"""`rowcall enqueue`: one run by hand."""

from __future__ import annotations

import datetime as dt

import click

from consumer.agents import registry
from consumer.cli.opening import quiet_settings, session
from consumer.cli.output import as_json, print_json
from consumer.cli.values import Given, JsonOption
from consumer.enqueue import enqueue as queue
from consumer.errors import ConfigurationError, OperatorError

_TIMES = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"]


@click.command()
@click.argument("agent")
@click.option("--payload", type=JsonOption(files=True), required=True, help="JSON, or @FILE, or - for standard input.")
@click.option("--dedupe-key", help="One live or succeeded run a key; a later payload is taken in by that one.")
@click.option("--key", help="Runs of one key go one after the other, in order.")
@click.option("--run-after", type=click.DateTime(_TIMES), help="Not before this time (UTC unless it names its zone).")
@click.option("--hold-key", is_flag=True, help="Later runs of its key wait for it, also while it is not due.")
@click.option("--max-attempts", type=click.IntRange(1), help="Attempts before it fails.  [default: the agent's own]")
@click.option(
    "--force",
    is_flag=True,
    help="Also for an agent that is not known yet or expects row changes; never for a retired one.",
)
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True,
              help="Lanes of a higher one are served first.")  # fmt: skip
@as_json
def enqueue(
    agent: str,
    payload: Given,
    dedupe_key: str | None,
    key: str | None,
    run_after: dt.datetime | None,
    hold_key: bool,
    max_attempts: int | None,
    priority: int,
    force: bool,
    json_output: bool,
) -> None:
    """Queue one run of AGENT by hand.

    \b
    Example:
      rowcall enqueue issue-digest --payload '{"repository": "a/b", "day": "2026-01-05"}' --dedupe-key a/b:2026-01-05
    """
    if hold_key and key is None:
        raise OperatorError("--hold-key needs --key: without one the run has a lane of its own")
    loaded = quiet_settings()
    try:
        known = {item.name: item for item in registry.load(loaded)}
    except ConfigurationError:
        known = {}  # the agent may run elsewhere; the database knows it then
    if agent in known and not force and known[agent].expects_change(loaded.own_sources):
        raise OperatorError(
            f"agent {agent} expects a row change, and a queued payload is none: the run would fail at each attempt. "
            f"Commit a row to what it reads ({', '.join(known[agent].topics)}), or queue it all the same with --force",
            code="expects_change",
        )
    if run_after is not None and run_after.tzinfo is None:
        run_after = run_after.replace(tzinfo=dt.UTC)
    with session(loaded) as opened:
        queued = queue(
            opened,
            agent,
            payload.value,
            dedupe_key=dedupe_key,
            key=key,
            run_after=run_after,
            max_attempts=max_attempts or (known[agent].max_attempts if agent in known else 5),
            priority=priority,
            hold_key=hold_key,
            known=known,
            force=force,
        )
    if json_output:
        print_json(
            {
                "job_id": queued.job_id,
                "coalesced": queued.coalesced,
                "status": queued.status,
                "run_after": queued.run_after,
            }
        )
    elif queued.coalesced:
        click.echo(f"job {queued.job_id} ({queued.status}) holds this dedupe_key and takes the payload in")
    else:
        click.echo(f"job {queued.job_id} queued")
