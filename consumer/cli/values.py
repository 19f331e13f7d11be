"""Values of options: JSON, a file of it, a state, a time. Anything else is wrong usage (exit code 2)."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from consumer.enqueue import parse_payload
from consumer.errors import OperatorError


class Given(NamedTuple):
    """A value that was given; `null` is one too."""

    value: Any


class JsonOption(click.ParamType[Given]):
    """JSON text; with `files` also @FILE, or - for standard input."""

    name = "json"

    def __init__(self, *, files: bool = False) -> None:
        self._files = files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Given:
        """The value that the text stands for.

        Raises:
            click.BadParameter: the file cannot be read, or it is not JSON; names the option.
        """
        if isinstance(value, Given):
            return value
        try:
            return Given(parse_payload(self._text(value)))
        except OSError as error:
            self.fail(f"{error.filename} cannot be read: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{value} is not UTF-8 text", param, ctx)
        except OperatorError as error:
            self.fail(str(error), param, ctx)

    def _text(self, value: str) -> str:
        if self._files and value == "-":
            return sys.stdin.read()
        return Path(value[1:]).read_text(encoding="utf-8") if self._files and value.startswith("@") else value


class JsonFile(JsonOption):
    """The JSON in a file that is named, or - for standard input."""

    name = "filename"

    def _text(self, value: str) -> str:
        return sys.stdin.read() if value == "-" else Path(value).read_text(encoding="utf-8")


class State(click.ParamType[str]):
    """One of the states, in any case; `all` where it is allowed."""

    name = "state"

    def __init__(self, states: Sequence[str], *, all_too: bool = False) -> None:
        self._states = (*states, "all") if all_too else tuple(states)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The state as it is stored.

        Raises:
            click.BadParameter: there is none of this name; tells those there are.
        """
        found = [state for state in self._states if state.lower() == str(value).lower()]
        if found:
            return found[0]
        return self.fail(f"there is no state {value}; the states are {', '.join(self._states)}", param, ctx)


class Moment(click.ParamType[dt.datetime]):
    """An ISO date or time; UTC where it names no zone."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dt.datetime:
        """The moment, in UTC."""
        if isinstance(value, dt.datetime):
            return value
        try:
            moment = dt.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-11-30 or 2026-11-30T08:00+01:00", param, ctx)
        return moment.replace(tzinfo=moment.tzinfo or dt.UTC).astimezone(dt.UTC)
