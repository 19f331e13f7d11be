"""What monitors would have told about a stretch of history. Nothing is written, sent or committed.

History is rows of CSV files or a query, a second apart, or the messages of the monitors' topics, at the times at which
they were written. Values meet the same engine as in the loop, and clocks are looked at as they come due.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from consumer.errors import ConfigurationError, OperatorError
from consumer.kafka.history import History
from producers.drift.engine import Engine, Key, Sample, Segment
from producers.drift.messages import Messages
from producers.drift.monitors import Monitor
from producers.drift.store import Seen

_BATCH: Final = 1000
_MOMENT: Final = 0.001
_BY_CLOCK: Final = ("freshness", "volume")


class Replay:
    """Monitors over history; `found` is what they would have told."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self.monitors = list(monitors)
        self.engine = Engine(self.monitors, lambda keys: {}, {}, memory=200_000)
        self.found: list[dict[str, Any]] = []
        self._timed = any(item.detector in _BY_CLOCK or item.no_data_after is not None for item in self.monitors)
        self._clock: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}
        self._segments: dict[Key, Segment] = {}

    def feed(self, monitors: Sequence[Monitor], sample: Sample, row: int) -> None:
        """The next row, for monitors of its source; rows come in the order in which they are looked at."""
        if self._timed:
            self.until(sample.now, row)
        self.engine.feed(monitors, [sample])
        self._note(row)

    def until(self, now: float, row: int) -> None:
        """Look at every clock that is due by then."""
        while self._clock and self._clock[0][0] <= now:
            at, key = heapq.heappop(self._clock)
            if self._due.get(key) != at:
                continue
            del self._due[key]
            due = self._segments[key].due()
            if due is None or due > at:
                self._await(key, due)
                continue
            self.engine.tick([key], at)
            self._note(row)
            # Sums of times are rounded: one that is due a moment later must not be due for ever.
            if self._due.get(key) == at:
                self._await(key, at + _MOMENT)

    def _await(self, key: Key, due: float | None) -> None:
        if due is not None:
            self._due[key] = due
            heapq.heappush(self._clock, (due, key))

    def _note(self, row: int) -> None:
        engine = self.engine
        if self._timed:
            for key, segment in engine.dirty.items():
                self._segments[key] = segment
                due = segment.due()
                # One entry a segment, unless an earlier time comes up; a later one is found when its turn comes.
                if due is not None and due < self._due.get(key, float("inf")):
                    self._await(key, due)
        for told in engine.told:
            turn, reading = told.turn, told.reading
            self.found.append(
                {"row": row, "at": turn.at, "monitor": told.monitor.name,
                 "segment": told.segment if told.monitor.segment else None,
                 "level": ("warning", "critical")[turn.level - 1], "turn": turn.turn, "episode": turn.episode,
                 "baseline": reading.baseline, "observed": reading.observed, "note": reading.note}
            )  # fmt: skip
        engine.told, engine.dirty = [], {}


def replay(monitors: Iterable[Monitor], rows: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Engine]:
    """What fires on rows in their order, a second apart; every monitor sees all of them."""
    made = Replay(list(monitors))
    for number, row in enumerate(rows, 1):
        made.feed(made.monitors, Sample(row, float(number), float(number)), number)
    return made.found, made.engine


def replay_topics(
    monitors: Iterable[Monitor], history: History, messages: Messages, now: float, progress: Callable[[int, int], None]
) -> tuple[list[dict[str, Any]], Engine]:
    """The same of the messages of topics, each at the moment it was written, up to `now`.

    Args:
        progress: told now and then how many messages of how many are read.
    """
    made = Replay(list(monitors))
    seen = {monitor.source: Seen([]) for monitor in made.monitors}
    records, number = iter(history), 0
    while batch := list(islice(records, _BATCH)):
        for record in batch:
            number += 1
            for group, samples in messages.read([record], None, seen, made.engine.counted):
                for sample in samples:
                    made.feed(group.monitors, sample, number)
        for item in seen.values():
            item.saved()
        progress(number, history.total)
    made.until(now, number)
    return made.found, made.engine


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
