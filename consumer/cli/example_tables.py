"""`rowcall example-tables`: the tables that the example agents and the shipped connectors work on."""

from __future__ import annotations

import click

from consumer import db
from consumer.cli.opening import session


@click.command("example-tables")
def example_tables() -> None:
    """Create the tables of the example agents in the schema public, with a few customers. Safe to repeat.

    They are what the connector `rows` captures as it ships. Meant for a database to try things in; your own tables need
    none of them.

    Example: rowcall example-tables
    """
    queries = db.queries("example_tables")
    with session() as opened, db.transaction(opened):
        opened.execute(queries["create"])
        opened.execute(queries["seed"])
    click.echo("public.customers, orders, notices, issues, issue_digests and those of the drift agents are there")
