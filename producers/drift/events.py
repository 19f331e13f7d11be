"""The events of drift: what is said, under which ID, on which topic."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, NamedTuple

import orjson

from producers.drift.engine import Told
from producers.drift.monitors import Monitor, Topics
from producers.emit import Produced, identity

_SCHEMAS: Final = {1: "drift.warning", 2: "drift.critical"}
# What is watched of a queue, and the measure that its events name.
_MEASURES: Final = {"backlog": "jobs", "age": "age", "lag": "lag"}


class Event(NamedTuple):
    """An event as it waits in the database."""

    id: str
    topic: str
    schema: str
    key: str
    payload: str
    occurred_at: dt.datetime
    event_type: str


def of(told: Told, topics: Topics) -> Event:
    """The event of a turn. Its ID is the same whenever the same turn is decided again."""
    monitor, turn, reading = told.monitor, told.turn, told.reading
    segment = told.segment if monitor.segment else None
    level = ("warning", "critical")[turn.level - 1]
    again = (turn.reminder,) if turn.reminder else ()
    if turn.silence:
        return _silence(told, topics)
    number = identity("drift", monitor.name, segment or "", turn.episode, level, turn.turn, *again)
    episode = str(identity("drift episode", monitor.name, segment or "", turn.episode))
    at = _moment(turn.at)
    where = f"{monitor.name}{'' if segment is None else f' [{segment}]'}"
    still = f", told again ({turn.reminder})" if turn.reminder else ""
    message = f"{where}: {level} {turn.turn}{still}; {reading.note}"
    if monitor.watch in _MEASURES:
        record: dict[str, Any] = {
            "queue": segment or "", "measure": _MEASURES[monitor.watch], "turn": turn.turn, "level": level,
            "episode": episode, "value": reading.observed or 0.0,
            "threshold": (monitor.warning, monitor.critical)[turn.level - 1],
            "oldest_seconds": (told.row or {}).get("oldest_seconds"), "detected_at": _ms(turn.at), "message": message,
        }  # fmt: skip
        return _event(number, topics.backlog_topic, "backlog.threshold", segment or "", record, at, turn.turn)
    record = _record(told, segment, episode, message) | {"evidence": _evidence(level, reading)}
    topic = topics.warning_topic if turn.level == 1 else topics.critical_topic
    return _event(number, topic, _SCHEMAS[turn.level], _key(monitor, segment), record, at, turn.turn)


def _silence(told: Told, topics: Topics) -> Event:
    """A monitor that tells it has had no value for too long, or has one again: a warning, of whatever it watches."""
    monitor, turn = told.monitor, told.turn
    segment = told.segment if monitor.segment else None
    number = identity("drift silence", monitor.name, segment or "", turn.silence, turn.turn)
    episode = str(identity("drift silence", monitor.name, segment or "", turn.silence))
    where = f"{monitor.name}{'' if segment is None else f' [{segment}]'}"
    record = _record(told, segment, episode, f"{where}: no data {turn.turn}; {told.reading.note}")
    record |= {"detector": "no_data", "evidence": _evidence("warning", told.reading)}
    at = _moment(turn.at)
    return _event(number, topics.warning_topic, _SCHEMAS[1], _key(monitor, segment), record, at, turn.turn)


def _record(told: Told, segment: str | None, episode: str, message: str) -> dict[str, Any]:
    monitor, turn, reading = told.monitor, told.turn, told.reading
    return {
        "monitor": monitor.name, "detector": monitor.detector, "source": monitor.source,
        "column": monitor.value or None, "segment": segment, "turn": turn.turn, "episode": episode,
        "previous_state": turn.previous, "statistic": reading.statistic, "threshold": reading.threshold,
        "baseline": reading.baseline, "observed": reading.observed, "samples": reading.samples,
        "began_at": _ms(turn.began_at), "detected_at": _ms(turn.at), "message": message,
    }  # fmt: skip


def _evidence(level: str, reading: Any) -> str:
    return orjson.dumps({"level": level, "note": reading.note}).decode()


def too_many(monitor: Monitor, topics: Topics, now: float) -> Event:
    """A monitor has met more segments than it may watch; told once."""
    number = identity("drift", monitor.name, "segments", monitor.max_segments)
    message = f"{monitor.name}: more than {monitor.max_segments} segments; new ones are not watched"
    record = {
        "monitor": monitor.name, "detector": "segments", "source": monitor.source, "column": monitor.segment,
        "segment": None, "turn": "raised", "episode": str(number), "previous_state": "ok", "statistic": None,
        "threshold": float(monitor.max_segments), "baseline": None, "observed": None, "samples": 0,
        "began_at": _ms(now), "detected_at": _ms(now), "message": message, "evidence": "",
    }  # fmt: skip
    at = _moment(now)
    return _event(number, topics.warning_topic, "drift.warning", _key(monitor, None), record, at, "raised")


def produced(row: Any) -> Produced:
    """A stored event, ready to be sent; the same each time."""
    return Produced(row["topic"], row["key"], orjson.loads(row["payload"]), row["id"], row["occurred_at"],
                    event_type=row["event_type"], schema=row["schema"])  # fmt: skip


def _event(number: Any, topic: str, schema: str, key: str, record: Any, at: dt.datetime, kind: str) -> Event:
    return Event(str(number), topic, schema, key, orjson.dumps(record).decode(), at, kind)


def _key(monitor: Monitor, segment: str | None) -> str:
    return monitor.name if segment is None else f"{monitor.name}:{segment}"


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(seconds * 1000) / 1000, dt.UTC)
