"""`rowcall connectors`: Debezium connectors from JSON files to Kafka Connect."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from consumer import connect, db
from consumer.cli.opening import quiet_settings
from consumer.cli.output import as_json, print_json, print_table
from consumer.connect import ConnectClient, ConnectorFile, ConnectorStatus
from consumer.errors import OperatorError
from consumer.operate.capture import await_capture, bring_publications, check_tables, standing
from consumer.settings import Settings

_NAME = click.argument("name", required=False)
_ABSENT = "`rowcall connectors apply` creates it"
_DIRECTORY = click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of connector files.  [default: $ROWCALL_CONNECTORS, else the ones that ship with Rowcall]",
)


@click.group()
def connectors() -> None:
    """Apply and inspect Debezium connectors.

    A file is Connect's own JSON; ${NAME} is filled from the environment. DATABASE_HOST, _PORT, _USER, _PASSWORD and
    _NAME come from DATABASE_URL; set one of them where Connect reaches the database in another way than this command.

    Example: rowcall connectors apply
    """


@connectors.command()
@_NAME
@_DIRECTORY
@click.option("--restart-failed", is_flag=True, help="Also restart connectors and tasks that have failed.")
@click.option("--force", is_flag=True, help="Also stop the capture of tables that a running connector captures.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until every connector reads its replication slot; 0 does not wait.",
)
def apply(name: str | None, directory: Path | None, restart_failed: bool, force: bool, wait_seconds: float) -> None:
    """Bring Connect to what the files say; nothing is touched when a file is refused. Safe to repeat.

    Refused is a file that captures a table which does not exist, or that no longer captures one which the running
    connector captures. Returns when the connectors really read the log: rows committed before that are seen by no
    connector that takes no snapshot.

    Example: rowcall connectors apply rows --restart-failed
    """
    loaded = quiet_settings()
    folder = directory or connect.folder(loaded.connectors)
    files = _files(loaded, folder, name)
    with (
        ConnectClient(loaded.connect_url) as client,
        db.connect(loaded.database_url.get_secret_value(), name="connectors") as session,
    ):
        check_tables(session, _reading_here(loaded, files))
        if not force:
            connect.refuse_removals(client, files)
        before = standing(session, client, files)
        connect.check(client, files)
        bring_publications(session, _reading_here(loaded, files))
        click.echo(f"connector files of {folder}")
        changed = set()
        for applied in connect.apply(client, files):
            _print_applied(applied)
            if applied.action != connect.UNCHANGED:
                changed.add(applied.name)
        for file in files if restart_failed else ():
            found = client.status(file.name, file.mask)
            if found is not None and found.failed:
                client.restart_failed(file.name)
                changed.add(file.name)
                click.echo(f"{file.name}: restarted what had failed")
        if wait_seconds:
            old = {key: value for key, value in before.items() if key in changed}
            await_capture(session, client, files, seconds=wait_seconds, before=old)
            click.echo("every connector reads its slot")


@connectors.command()
@_NAME
@as_json
def status(name: str | None, json_output: bool) -> None:
    """How the connectors and their tasks do; exit code 1 if one of them does not run.

    Connectors of the folder ROWCALL_CONNECTORS that Connect does not have are listed as absent.

    Example: rowcall connectors status
    """
    loaded = quiet_settings()
    with ConnectClient(loaded.connect_url) as client:
        names = client.names()
        found = [client.status(item) for item in ([name] if name else names)]
    states = [state for state in found if state is not None]
    if loaded.connectors and not name:
        absent = {file.name for file in _files(loaded, connect.folder(loaded.connectors), None)} - set(names)
        states += [ConnectorStatus(item, "ABSENT", "", _ABSENT, ()) for item in sorted(absent)]
    if name and not states:
        raise OperatorError(f"Connect has no connector {name}; it has {', '.join(names) or 'none'}")
    if json_output:
        print_json([dataclasses.asdict(state) for state in states])
    else:
        rows: list[dict[str, Any]] = []
        for state in states:
            rows.append({"connector": state.name, "task": "", "state": state.state, "reason": state.reason})
            rows += [
                {"connector": state.name, "task": task.id, "state": task.state, "reason": task.reason}
                for task in state.tasks
            ]
        print_table(rows, ("connector", "task", "state", "reason"), empty="Connect has no connectors")
    if not all(state.healthy for state in states):
        click.get_current_context().exit(1)


@connectors.command()
@_NAME
@_DIRECTORY
@as_json
def diff(name: str | None, directory: Path | None, json_output: bool) -> None:
    """Where files and running connectors differ; exit code 1 if they do.

    Example: rowcall connectors diff --directory deploy/connectors
    """
    loaded = quiet_settings()
    files = _files(loaded, directory or connect.folder(loaded.connectors), name)
    with ConnectClient(loaded.connect_url) as client:
        found = connect.diff(client, files)
    if json_output:
        print_json({key: None if item is None else list(map(dataclasses.asdict, item)) for key, item in found.items()})
    for connector, changes in {} if json_output else found.items():
        if changes is None:
            click.echo(f"{connector}: not there")
        elif not changes:
            click.echo(f"{connector}: the same")
        for change in changes or ():
            click.echo(f"{connector}: {change.key}: running {change.running!r}, file {change.wanted!r}")
    if any(changes is None or changes for changes in found.values()):
        click.get_current_context().exit(1)


@connectors.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, yes: bool) -> None:
    """Remove a connector. Its slot and publication stay in the database; an unread slot keeps WAL.

    Example: rowcall connectors delete rows --yes
    """
    if not yes:
        click.confirm(f"Delete connector {name}?", abort=True)
    with ConnectClient(quiet_settings().connect_url) as client:
        client.delete(name)
    click.echo(f"{name}: deleted; drop its replication slot if it does not come back")


def _print_applied(applied: connect.Applied) -> None:
    click.echo(f"{applied.name}: {applied.action}")
    for change in applied.changed:
        click.echo(f"  {change.key}: {change.running or '(unset)'} → {change.wanted or '(unset)'}")
    for advice in applied.advice:
        click.echo(f"  advice: {advice.setting} = {advice.wanted}, not {advice.present or '(unset)'}: {advice.cost}")


def _reading_here(loaded: Settings, files: Sequence[ConnectorFile]) -> list[ConnectorFile]:
    """The files whose connector reads the database of DATABASE_URL, under whatever host Connect knows it by."""
    values = connect.database_variables(loaded.database_url.get_secret_value())
    host = os.environ.get("DATABASE_HOST", values["DATABASE_HOST"])
    wanted = {"database.hostname": host, "database.dbname": values["DATABASE_NAME"]}
    return [file for file in files if wanted.items() <= file.config.items()]


def _files(loaded: Settings, folder: Path, name: str | None) -> Sequence[ConnectorFile]:
    values = connect.database_variables(loaded.database_url.get_secret_value())
    environment = {**values, "SCHEMA_REGISTRY_URL": loaded.schema_registry_url, **os.environ}
    files = connect.load(folder, environment)
    chosen = [file for file in files if name in (None, file.name)]
    if not chosen:
        names = ", ".join(file.name for file in files)
        raise OperatorError(f"no connector file in {folder} is named {name}; there are {names}")
    return chosen
