"""What monitors would have told about a stretch of history. Nothing is written and nothing is sent."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from consumer.errors import ConfigurationError, OperatorError
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor


def replay(monitors: Iterable[Monitor], rows: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Engine]:
    """What fires on rows in their order, a second apart; every monitor sees all of them."""
    held = list(monitors)
    engine = Engine(held, lambda keys: {}, {}, memory=200_000)
    found: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        engine.feed(held, [Sample(row, float(number), float(number))])
        for told in engine.told:
            found.append(
                {"row": number, "monitor": told.monitor.name, "segment": told.segment if told.monitor.segment else None,
                 "level": ("warning", "critical")[told.turn.level - 1], "turn": told.turn.turn,
                 "episode": told.turn.episode, "baseline": told.reading.baseline, "observed": told.reading.observed,
                 "note": told.reading.note}
            )  # fmt: skip
        engine.told, engine.dirty = [], {}
    return found, engine


def of_csv(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The rows of CSV files, one after the other: numbers as numbers, True and False as 1 and 0, empty as NULL.

    Raises:
        OperatorError: a file cannot be read.
    """
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                yield from of_lines(file)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise OperatorError(f"{path} cannot be read as CSV: {error}") from error


def of_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The same of an open file."""
    for row in csv.DictReader(lines):
        yield {name: _read(text) for name, text in row.items() if isinstance(name, str)}


def chosen(monitors: Iterable[Monitor], names: Iterable[str]) -> list[Monitor]:
    """The monitors of these names, or all."""
    held, wanted = list(monitors), set(names)
    if unknown := wanted - {monitor.name for monitor in held}:
        raise ConfigurationError(f"no monitor is called {', '.join(sorted(unknown))}")
    return [monitor for monitor in held if not wanted or monitor.name in wanted]


def _read(text: Any) -> Any:
    if not isinstance(text, str) or text == "":
        return None
    if text in ("True", "False"):
        return 1.0 if text == "True" else 0.0
    try:
        return float(text)
    except ValueError:
        return text
