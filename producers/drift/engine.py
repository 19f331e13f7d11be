"""The segments of all monitors of a process: which value goes to which detector, and what that gives.

Before it, a row was read; after it, `store` writes what has changed in the transaction of the row's offset. Promises:
memory is bounded, whatever the number of segments; a segment that is not in memory is loaded before it is used; bad,
missing and late values are counted and leave the detector as it was.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from producers.drift import values
from producers.drift.detectors import LEARNING
from producers.drift.episodes import Alarm, Turn
from producers.drift.monitors import Monitor

MEMORY_SEGMENTS: Final = 20_000
"""Segments held in memory; the least recently used leave first."""

Key = tuple[str, str]
"""(monitor, segment); the segment is empty where the monitor has none."""


class Sample(NamedTuple):
    """One row, the time it happened and the time it is looked at, in seconds since 1970."""

    row: Mapping[str, Any]
    at: float
    now: float


class Told(NamedTuple):
    """A turn of a segment, with what its detector saw."""

    monitor: Monitor
    segment: str
    turn: Turn
    reading: Any


@dataclass(slots=True)
class Segment:
    """One detector with its alarm."""

    monitor: Monitor
    detector: Any
    alarm: Alarm = field(default_factory=Alarm)
    newest: float = 0.0
    count: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {"of": self.monitor.fingerprint, "detector": self.detector.dump(), "alarm": self.alarm.dump(),
                "newest": self.newest, "count": self.count, "left_out": dict(self.left_out)}  # fmt: skip

    @classmethod
    def load(cls, monitor: Monitor, state: Mapping[str, Any]) -> Segment:
        """From JSON. A detector whose definition has changed learns anew; the count of episodes goes on."""
        made = cls(monitor, monitor.make())
        made.alarm.load(state["alarm"])
        if state["of"] == monitor.fingerprint:
            made.detector.load(state["detector"])
        made.newest, made.count, made.left_out = state["newest"], state["count"], Counter(state["left_out"])
        return made

    def due(self) -> float | None:
        """When the clock has to be looked at."""
        silent = self.monitor.no_data_after
        times = [self.detector.due()]
        if silent is not None and self.alarm.state != "no_data" and self.newest:
            times.append(self.newest + silent)
        return min((time for time in times if time is not None), default=None)


class Engine:
    """All segments of some monitors.

    Args:
        load: gives the stored states of keys, those that exist.
        known: monitor → how many segments are stored.
    """

    def __init__(
        self,
        monitors: Iterable[Monitor],
        load: Callable[[Sequence[Key]], Mapping[Key, Mapping[str, Any]]],
        known: Mapping[str, int],
        *,
        memory: int = MEMORY_SEGMENTS,
    ) -> None:
        self.monitors = {monitor.name: monitor for monitor in monitors}
        self._load, self._memory = load, memory
        self._known = Counter(known)
        self._segments: OrderedDict[Key, Segment] = OrderedDict()
        self._reads = {
            name: (values.Expression(item.value) if item.value else None,
                   values.Expression(item.segment) if item.segment else None)
            for name, item in self.monitors.items()
        }  # fmt: skip
        self.dirty: dict[Key, Segment] = {}
        self.over: set[str] = set()
        self.told: list[Told] = []
        self.counted: Counter[tuple[str, str]] = Counter()

    def feed(self, monitors: Sequence[Monitor], samples: Sequence[Sample]) -> None:
        """Give rows to monitors of one source, in their order."""
        work = [(monitor, self._key(monitor, sample), sample) for sample in samples for monitor in monitors]
        self._bring(key for _, key, _ in work)
        for monitor, key, sample in work:
            segment = self._segments.get(key)
            if segment is None:
                segment = self._new(monitor, key)
                if segment is None:
                    continue
            self.dirty[key] = segment
            self._take(key, segment, sample)

    def tick(self, keys: Sequence[Key], now: float) -> None:
        """Look at the clock for segments whose time has come."""
        self._bring(keys)
        for key in keys:
            segment = self._segments.get(key)
            if segment is None:
                continue
            self.dirty[key] = segment
            level = segment.detector.tick(now)
            if level is not None:
                self._step(key, segment, level, now)
            silent = segment.monitor.no_data_after
            if silent is not None and segment.newest and now - segment.newest >= silent:
                segment.alarm.fall_silent()

    def saved(self) -> None:
        """What was dirty is in the database; let go of what memory has no room for."""
        self.dirty, self.told, self.counted = {}, [], Counter()
        while len(self._segments) > self._memory:
            self._segments.popitem(last=False)

    def _key(self, monitor: Monitor, sample: Sample) -> Key:
        read = self._reads[monitor.name][1]
        if read is None:
            return monitor.name, ""
        try:
            return monitor.name, values.category(read(sample.row))
        except values.Refused as refused:
            return monitor.name, f"({refused.word})"

    def _bring(self, keys: Iterable[Key]) -> None:
        wanted = dict.fromkeys(keys)
        for key in wanted:
            if key in self._segments:
                self._segments.move_to_end(key)
        missing = [key for key in wanted if key not in self._segments]
        if missing:
            for key, state in self._load(missing).items():
                self._segments[key] = Segment.load(self.monitors[key[0]], state)

    def _new(self, monitor: Monitor, key: Key) -> Segment | None:
        if self._known[monitor.name] >= monitor.max_segments:
            self.over.add(monitor.name)
            self.counted[monitor.name, "over_the_cap"] += 1
            return None
        self._known[monitor.name] += 1
        made = self._segments[key] = Segment(monitor, monitor.make())
        return made

    def _take(self, key: Key, segment: Segment, sample: Sample) -> None:
        monitor = segment.monitor
        if sample.at < segment.newest - monitor.late:
            self._leave_out(key, segment, "late")
            return
        segment.newest = max(segment.newest, sample.at)
        try:
            value = self._value(monitor, sample)
        except values.Refused as refused:
            self._leave_out(key, segment, refused.word)
            return
        segment.count += 1
        self.counted[monitor.name, "fed"] += 1
        at = sample.now if monitor.detector in ("freshness", "volume") else segment.newest
        self._step(key, segment, segment.detector.update(value, at), at)

    def _value(self, monitor: Monitor, sample: Sample) -> Any:
        kind = monitor.detector
        if kind == "freshness":
            return sample.at
        if kind == "volume":
            return 1.0
        if kind == "schema":
            return sample.row
        read = self._reads[monitor.name][0]
        assert read is not None
        if kind == "null_rate":
            try:
                read(sample.row)
            except values.Refused as refused:
                if refused.word == values.MISSING:
                    return 1.0
                raise
            return 0.0
        value = read(sample.row)
        if kind in ("shares", "unseen"):
            return values.category(value)
        if kind in ("values", "distribution"):
            return values.number_or_category(value)
        return values.number(value)

    def _leave_out(self, key: Key, segment: Segment, word: str) -> None:
        segment.left_out[word] += 1
        self.counted[key[0], word] += 1

    def _step(self, key: Key, segment: Segment, level: int, at: float) -> None:
        alarm = segment.alarm
        if level == LEARNING and not alarm.raised and alarm.state == "warming":
            return
        turns = alarm.step(level, at, segment.monitor.rules)
        if turns:
            reading = segment.detector.reading()
            self.told.extend(Told(segment.monitor, key[1], turn, reading) for turn in turns)
