"""`rowcall demo`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from consumer.cli.lazy import Failure
from consumer.demo.play import play
from consumer.errors import RowcallError
from consumer.telemetry import redact
from debezium.errors import StackError
from debezium.paths import stack_directory


@click.command()
@click.option("--orders", default=8, show_default=True, type=click.IntRange(1, 100), help="Orders in the first act.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the demo's stack lives; thrown away at the next demo.  [default: build/stack-demo]",
)
def demo(orders: int, directory: Path | None) -> None:
    """Play the main job end to end on a fresh local stack, while you watch.

    Real Postgres, Kafka, Connect with Debezium, a schema registry and a tiny real model are started; orders are
    committed, a worker and Connect are killed on the way, and at the end every order has exactly one result. Takes a
    few minutes, and needs the extra `local`.

    Example: rowcall demo --orders 20
    """
    try:
        code = play(directory or Path(f"{stack_directory()}-demo"), orders=orders)
    except (RowcallError, StackError) as error:
        code = Failure.exit_code
        click.echo(f"demo failed: {redact(str(error))}", err=True)
    sys.exit(code)
