"""`rowcall dev`: the local stack on the command line.

Mounted by the main command line as the group `dev`; `python -m debezium.cli` runs it alone. Calls `debezium.stack`
and prints what it returns as a table, or as `export` lines for a shell. Errors of the stack end the command with their
message and exit code 1, a name that is no service with 2.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table

from debezium import stack
from debezium.errors import StackError, UnknownService
from debezium.paths import stack_directory
from debezium.reporting import Reporter
from debezium.service import EXTERNAL_NAMES

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
EXTERNAL = (*EXTERNAL_NAMES.values(), "MODEL_NAME", "MODEL_API_KEY")


class Failure(click.ClickException):
    """A command that failed: its message on stderr as every command of `rowcall` shows it."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"rowcall: {self.message}", file=file, err=file is None)


def explains_errors(command: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Turn a StackError into the command's message and exit code."""

    @wraps(command)
    def wrapped(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        try:
            return command(*arguments, **named)
        except UnknownService as error:
            raise click.UsageError(str(error)) from error
        except StackError as error:
            raise Failure(str(error)) from error

    return wrapped


def directory_option(command: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The option --directory, the same for every command."""
    return click.option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="The stack's own directory.  [default: $ROWCALL_STACK_DIR, else build/stack]",
    )(command)


@click.group()
def dev() -> None:
    """The local stack: real Postgres, Kafka, Connect with Debezium, a schema registry, and a tiny model.

    Everything comes from package registries, listens on 127.0.0.1 only and lives in one directory a stack. Set
    DATABASE_URL, KAFKA_BOOTSTRAP_SERVERS, SCHEMA_REGISTRY_URL, CONNECT_URL or MODEL_BASE_URL to use a service that
    runs elsewhere instead.

    Example: rowcall dev up --model && eval "$(rowcall dev status --env)"
    """


@dev.command()
@directory_option
@click.option("--model/--no-model", default=False, help="Also run the tiny real model.  [default: no]")
@click.option(
    "--services", default=",".join(stack.DEFAULT_SERVICES), show_default=True, help="Which services, by comma."
)
@click.option("--attached", is_flag=True, help="Stay in the foreground; stop the stack when this command ends.")
@click.option("--env", "as_environment", is_flag=True, help="Print export lines for a shell instead of a table.")
@explains_errors
def up(directory: Path | None, model: bool, services: str, attached: bool, as_environment: bool) -> None:
    """Start the stack, or what is missing of it, and wait until it is ready."""
    directory = directory or stack_directory()
    names = [name.strip() for name in services.split(",") if name.strip()]
    external = {name: os.environ[name] for name in EXTERNAL if os.environ.get(name)}
    info = stack.start(
        directory, services=names, model=model, external=external, attached=attached, reporter=Reporter()
    )
    _print(info, as_environment)
    if attached:
        _wait_for_the_end()
        stack.stop(directory)


@dev.command()
@directory_option
@click.option("--env", "as_environment", is_flag=True, help="Print export lines for a shell instead of a table.")
@explains_errors
def status(directory: Path | None, as_environment: bool) -> None:
    """Show the services, their ports and whether they answer; exit code 3 if one does not."""
    info = stack.status(directory or stack_directory())
    _print(info, as_environment)
    if any(service.health != "ready" for service in info.services.values()):
        click.get_current_context().exit(3)


@dev.command()
@directory_option
@click.option("--remove", is_flag=True, help="Delete the stack's data as well.")
@explains_errors
def down(directory: Path | None, remove: bool) -> None:
    """Stop every service in order; data stays for the next start."""
    directory = directory or stack_directory()
    stopped = stack.stop(directory, remove=remove)
    data = "its data is deleted" if remove else "its data stays"
    click.echo(f"stopped {', '.join(stopped)}; {data}" if stopped else f"nothing was running in {directory}")


@dev.command()
@click.argument("service", type=click.Choice(list(stack.SERVICES)))
@directory_option
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added.")
@click.option("-n", "--lines", default=100, show_default=True, help="How many lines to begin with.")
@explains_errors
def logs(service: str, directory: Path | None, follow: bool, lines: int) -> None:
    """Print the end of a service's log."""
    for line in stack.logs(directory or stack_directory(), service, follow=follow, lines=lines):
        click.echo(line)


@dev.command()
@click.argument("service", type=click.Choice(list(stack.SERVICES)))
@directory_option
@explains_errors
def restart(service: str, directory: Path | None) -> None:
    """Stop one service and start it again on the same port and data."""
    stack.restart(directory or stack_directory(), service, Reporter())


@dev.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@directory_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@explains_errors
def psql(directory: Path | None, arguments: tuple[str, ...]) -> None:
    """Open the stack's database with the psql that came with it; every other argument is psql's own.

    Example: rowcall dev psql -c "SELECT count(*) FROM rowcall.agent_jobs"
    """
    program, own = stack.psql(directory or stack_directory())
    os.execve(program, [str(program), *arguments], {**os.environ, **own})


def _print(info: stack.StackInfo, as_environment: bool) -> None:
    if as_environment:
        for name, value in info.environment().items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return
    table = Table(title=f"stack in {info.directory}", title_justify="left")
    for column in ("service", "health", "pid", "port", "log"):
        table.add_column(column, overflow="fold")
    for name, service in info.services.items():
        table.add_row(name, service.health, str(service.pid or "-"), str(service.port), str(service.log))
    Console(highlight=False).print(table)


def _wait_for_the_end() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: ended.set())
    click.echo("running until Ctrl-C", err=True)
    ended.wait()


if __name__ == "__main__":
    dev()
