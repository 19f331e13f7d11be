"""The segments of all monitors of a process: which value goes to which detector, and what that gives.

Before it, a row was read; after it, `store` writes what has changed in the transaction of the row's offset. Promises:
memory is bounded, whatever the number of segments; a segment that is not in memory is loaded before it is used; bad,
missing and late values, and those of a time to come, are counted and leave the detector as it was.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from producers.drift import values
from producers.drift.detectors import LEARNING, Reading
from producers.drift.episodes import Alarm, Turn
from producers.drift.monitors import Monitor

MEMORY_SEGMENTS: Final = 20_000
"""Segments held in memory; the least recently used leave first."""

AHEAD_SECONDS: Final = 300.0
"""How far the time of a row may lie ahead of the clock. One that lies further would make all that follow late."""

_CLEAN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "shares": values.category,
    "unseen": values.category,
    "values": values.number_or_category,
    "distribution": values.number_or_category,
}
Row = values.Row
Key = tuple[str, str]
"""(monitor, segment); the segment is empty where the monitor has none."""


class Sample(NamedTuple):
    """One row, the time it happened and the time it is looked at, in seconds since 1970."""

    row: Mapping[str, Any]
    at: float
    now: float


class Told(NamedTuple):
    """A turn of a segment, with what its detector saw; the row that led to it, where it was one."""

    monitor: Monitor
    segment: str
    turn: Turn
    reading: Any
    row: Row | None = None


class _Route(NamedTuple):
    """How rows reach the detectors of one monitor; both functions raise Refused."""

    monitor: Monitor
    segment: Callable[[Row], Any] | None
    value: Callable[[Sample], Any]
    by_clock: bool


@dataclass(slots=True)
class Segment:
    """One detector with its alarm."""

    monitor: Monitor
    detector: Any
    alarm: Alarm = field(default_factory=Alarm)
    newest: float = 0.0
    begun: float = 0.0
    count: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {"of": self.monitor.fingerprint, "detector": self.detector.dump(), "alarm": self.alarm.dump(),
                "newest": self.newest, "begun": self.begun, "count": self.count, "left_out": self.left_out}  # fmt: skip

    @classmethod
    def load(cls, monitor: Monitor, state: Mapping[str, Any]) -> Segment:
        """From JSON. A detector whose definition has changed learns anew; the count of episodes goes on."""
        made = cls(monitor, monitor.make())
        made.alarm.load(state["alarm"])
        if state["of"] == monitor.fingerprint:
            made.detector.load(state["detector"])
        made.newest, made.count, made.left_out = state["newest"], state["count"], Counter(state["left_out"])
        made.begun = state.get("begun", 0.0)
        return made

    def begin(self, now: float) -> None:
        """Whatever has not come yet is waited for from now on."""
        self.begun = self.begun or now
        if self.monitor.detector == "freshness":
            self.detector.begin(now)

    def silent_since(self) -> float:
        """The time of the newest value, or since when there is none; 0 while nothing is waited for."""
        return self.newest or self.begun

    def due(self) -> float | None:
        """When the clock has to be looked at."""
        due: float | None = self.detector.due()
        silent, since = self.monitor.no_data_after, self.silent_since()
        if silent is None or self.alarm.state == "no_data" or not since:
            return due
        return since + silent if due is None else min(due, since + silent)


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
        self._routes = {name: _route(item) for name, item in self.monitors.items()}
        self.dirty: dict[Key, Segment] = {}
        self.over: set[str] = set()
        self.told: list[Told] = []
        self.counted: Counter[tuple[str, str]] = Counter()

    def feed(self, monitors: Sequence[Monitor], samples: Sequence[Sample]) -> None:
        """Give rows to monitors of one source, in their order."""
        # Thousands of rows and states are made here, and no cycles among them.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._feed(monitors, samples)
        finally:
            if collecting:
                gc.enable()

    def begin(self, names: Iterable[str], now: float) -> None:
        """From now on monitors that tell silence wait for a first value, so that a source that never gives one is told.

        One with segments cannot know which of them to wait for; it waits for those that it has met.
        """
        waiting = [item for name in names if (item := self.monitors[name]).tells_silence and not item.segment]
        self._bring((monitor.name, "") for monitor in waiting)
        for monitor in waiting:
            key = (monitor.name, "")
            segment = self._segments.get(key) or self._new(monitor, key)
            if segment is not None:
                segment.begin(now)
                self.dirty[key] = segment

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
            silent, since = segment.monitor.no_data_after, segment.silent_since()
            if silent is not None and since and now - since >= silent:
                turns = segment.alarm.fall_silent(now, tell=segment.monitor.tell_no_data)
                self._tell_silence(key, segment, turns, f"nothing has come for {now - since:.0f} seconds")

    def reset(self, keys: Sequence[Key], now: float, note: str) -> None:
        """Give up the baselines of these segments; `note` says why in the recoveries that this tells."""
        self._bring(keys)
        for key in keys:
            segment = self._segments.get(key)
            if segment is None:
                continue
            self.dirty[key] = segment
            reading = replace(segment.detector.reading(), note=note)
            turns = segment.alarm.begin_anew(now)
            segment.detector = segment.monitor.make()
            segment.begin(now)
            self.told.extend(Told(segment.monitor, key[1], turn, reading) for turn in turns)

    def saved(self) -> None:
        """What was dirty is in the database; let go of what memory has no room for."""
        self.dirty, self.told, self.counted = {}, [], Counter()
        while len(self._segments) > self._memory:
            self._segments.popitem(last=False)

    def _feed(self, monitors: Sequence[Monitor], samples: Sequence[Sample]) -> None:
        routes = [self._routes[monitor.name] for monitor in monitors]
        work = [(route, _key(route, sample.row), sample) for sample in samples for route in routes]
        self._bring(key for _, key, _ in work)
        find, dirty = self._segments.get, self.dirty
        for route, key, sample in work:
            segment = find(key) or self._new(route.monitor, key)
            if segment is not None:
                dirty[key] = segment
                self._take(route, key, segment, sample)

    def _bring(self, keys: Iterable[Key]) -> None:
        segments, missing = self._segments, []
        for key in dict.fromkeys(keys):
            if key in segments:
                segments.move_to_end(key)
            else:
                missing.append(key)
        if missing:
            for key, state in self._load(missing).items():
                segments[key] = Segment.load(self.monitors[key[0]], state)

    def _new(self, monitor: Monitor, key: Key) -> Segment | None:
        if self._known[monitor.name] >= monitor.max_segments:
            self.over.add(monitor.name)
            self.counted[monitor.name, "over_the_cap"] += 1
            return None
        self._known[monitor.name] += 1
        made = self._segments[key] = Segment(monitor, monitor.make())
        return made

    def _take(self, route: _Route, key: Key, segment: Segment, sample: Sample) -> None:
        at, newest, limit = sample.at, segment.newest, sample.now + AHEAD_SECONDS
        if at > limit:
            self._leave_out(key, segment, "ahead")
            return
        # A time beyond the limit was taken before there was one, or the clock has been put back.
        if at > newest or newest > limit:
            segment.newest = newest = at
        elif at < newest - route.monitor.late:
            self._leave_out(key, segment, "late")
            return
        try:
            value = route.value(sample)
        except values.Refused as refused:
            self._leave_out(key, segment, refused.word)
            return
        if segment.alarm.silent_at:
            self._tell_silence(key, segment, segment.alarm.end_silence(sample.now), "values come again")
        segment.count += 1
        self.counted[key[0], "fed"] += 1
        at = sample.now if route.by_clock else newest
        self._step(key, segment, segment.detector.update(value, at), at, sample.row)

    def _tell_silence(self, key: Key, segment: Segment, turns: Sequence[Turn], note: str) -> None:
        reading = Reading(threshold=segment.monitor.no_data_after, samples=segment.count, note=note)
        self.told.extend(Told(segment.monitor, key[1], turn, reading) for turn in turns)

    def _leave_out(self, key: Key, segment: Segment, word: str) -> None:
        segment.left_out[word] += 1
        self.counted[key[0], word] += 1

    def _step(self, key: Key, segment: Segment, level: int, at: float, row: Row | None = None) -> None:
        alarm = segment.alarm
        if level == LEARNING and not alarm.raised and alarm.state == "warming":
            return
        turns = alarm.step(level, at, segment.monitor.rules)
        if turns:
            reading = segment.detector.reading()
            self.told.extend(Told(segment.monitor, key[1], turn, reading, row) for turn in turns)


def _key(route: _Route, row: Row) -> Key:
    name, read = route.monitor.name, route.segment
    if read is None:
        return name, ""
    try:
        return name, values.category(read(row))
    except values.Refused as refused:
        return name, f"({refused.word})"


def _route(monitor: Monitor) -> _Route:
    segment = values.Expression(monitor.segment) if monitor.segment else None
    return _Route(monitor, segment, _value(monitor), monitor.detector in ("freshness", "volume"))


def _value(monitor: Monitor) -> Callable[[Sample], Any]:
    """What the detector takes of a sample."""
    kind = monitor.detector
    if kind == "freshness":
        return lambda sample: sample.at
    if kind == "volume":
        return lambda sample: 1.0
    if kind == "schema":
        return lambda sample: sample.row
    read = values.Expression(monitor.value)
    if kind == "null_rate":
        return lambda sample: _missing(read, sample.row)
    clean: Callable[[Any], Any] = _CLEAN.get(kind, values.number)
    return lambda sample: clean(read(sample.row))


def _missing(read: Callable[[Row], Any], row: Row) -> float:
    try:
        read(row)
    except values.Refused as refused:
        if refused.word == values.MISSING:
            return 1.0
        raise
    return 0.0
