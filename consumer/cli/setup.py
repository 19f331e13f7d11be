"""`rowcall migrate | config | version`."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

import click

from consumer import migrate as migrations
from consumer.cli.opening import quiet_settings, session
from consumer.cli.output import as_json, print_json, print_table


@click.command()
def migrate() -> None:
    """Bring the database to this version's schema.

    Forward only. Safe to repeat, and from several processes at once; refuses a database that is newer than this code.

    Example: rowcall migrate
    """
    with session() as opened:
        done = migrations.migrate(opened)
    for migration in done:
        click.echo(f"applied {migration.version:04} {migration.name}")
    if not done:
        click.echo(f"nothing to do: the database is at schema {migrations.migrations()[-1].version}")


@click.command()
@as_json
def config(json_output: bool) -> None:
    """Print the settings in force, secrets masked.

    Every setting is an environment variable; a secret NAME may also be given as NAME_FILE, a path.

    Example: rowcall config --json
    """
    loaded = quiet_settings()
    values = loaded.shown()
    # Which database it is, is what people look here for; its password alone is the secret.
    values["DATABASE_URL"] = loaded.database_shown()
    if json_output:
        print_json(values)
        return
    meanings = {str(field.alias): field.description for field in type(loaded).model_fields.values()}
    rows = [{"variable": name, "value": value, "meaning": meanings[name]} for name, value in values.items()]
    print_table(rows, ["variable", "value", "meaning"], empty="there are no settings")


@click.command()
def version() -> None:
    """Print the version, and what it runs on.

    Example: rowcall version
    """
    click.echo(f"rowcall {version_of('rowcall')}, Python {platform.python_version()}, {platform.platform()}")
