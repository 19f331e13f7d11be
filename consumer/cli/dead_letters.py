"""`rowcall dead-letters`: messages that could not be handled."""

from __future__ import annotations

import click

from consumer import dead_letters as letters
from consumer.agents import registry
from consumer.cli.opening import by_option, quiet_settings, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.cli.values import State
from consumer.intake.redrive import discard as discard_letter
from consumer.intake.redrive import redrive as redrive_letter
from consumer.schema_registry import SchemaRegistry
from consumer.wire import Decoder

_LETTER_ID = click.argument("letter_id", type=click.IntRange(1), metavar="ID")


@click.group()
def dead_letters() -> None:
    """Messages that could not be handled: list, show, redrive, discard.

    Example: rowcall dead-letters list
    """


@dead_letters.command("list")
@click.option(
    "--state",
    type=State(letters.STATES, all_too=True),
    default="OPEN",
    show_default=True,
    help="OPEN, REDRIVEN, DISCARDED or all.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@as_json
def list_(state: str, limit: int, json_output: bool) -> None:
    """Dead letters, newest first.

    Example: rowcall dead-letters list --state all
    """
    with session() as opened:
        rows = letters.listed(opened, state=None if state.lower() == "all" else state.upper(), limit=limit)
    if json_output:
        print_json(rows)
        return
    columns = ("id", "state", "agent", "topic", "partition", "offset", "error_code", "error", "created_at")
    print_table(rows, columns, empty="no dead letters")


@dead_letters.command()
@_LETTER_ID
@as_json
def show(letter_id: int, json_output: bool) -> None:
    """One dead letter with its bytes (as hexadecimal text in JSON), headers, coordinates and error.

    Example: rowcall dead-letters show 3
    """
    with session() as opened:
        row = letters.shown(opened, letter_id)
    if json_output:
        print_json(row)
    else:
        print_fields(row, title=f"dead letter {letter_id}")


@dead_letters.command()
@_LETTER_ID
@by_option
def redrive(letter_id: int, by: str) -> None:
    """Handle a dead letter again as a new delivery, whatever the dedup has seen; after the cause is mended.

    Example: rowcall dead-letters redrive 3
    """
    loaded = quiet_settings()
    agents = registry.load(loaded)
    decoder = Decoder(SchemaRegistry(loaded.schema_registry_url).schema, epoch=loaded.epoch)
    with session(loaded) as opened:
        deliveries = redrive_letter(opened, loaded, agents, decoder, letter_id, actor=by)
    for agent, delivery in deliveries.items():
        click.echo(f"dead letter {letter_id}: queued for {agent}, delivery {delivery}")
    if not deliveries:
        click.echo(f"dead letter {letter_id}: handled, and no agent wants it")


@dead_letters.command()
@_LETTER_ID
@by_option
@click.option("--reason", required=True, help="Why nobody will need it; kept in the audit.")
def discard(letter_id: int, by: str, reason: str) -> None:
    """Close a dead letter without handling it; its bytes stay.

    Example: rowcall dead-letters discard 3 --reason "test message"
    """
    with session() as opened:
        discard_letter(opened, letter_id, actor=by, reason=reason)
    click.echo(f"dead letter {letter_id} discarded")
