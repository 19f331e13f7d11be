"""Builds the rows of new jobs, as COPY takes them, for a whole batch.

Before: `routing` says who is woken, `own_writes` by whose doing. After: `consumer.dedup` admits. What all agents of a
message share is built once. A key's jobs run in order, so the key is hashed into a lane; without a key each job has a
lane of its own.
"""

from __future__ import annotations

import datetime as dt
import random
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

from consumer.dedup import NewJob
from consumer.errors import Poison
from consumer.intake.own_writes import Cause
from consumer.intake.routing import Hit
from consumer.records import Change, Event, encode
from consumer.records import payload as payloads
from consumer.records.jobs import storable

KEY_TEXT_LIMIT: Final = 200
"""Characters of a key that people are shown."""

_DAY_MS: Final = 86_400_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY: Final = dt.timedelta(days=1)
_NULL: Final = b"\\N"
_RANDOM: Final = random.SystemRandom()
# Postgres' timestamps reach further; Python's, which agents get, end here.
_MAX_MS: Final = int((dt.datetime(9999, 12, 31, tzinfo=dt.UTC) - _EPOCH).total_seconds() * 1000)


class Built(NamedTuple):
    """What the jobs of one message share."""

    day: int | None
    line: bytes


def jobs_of(hit: Hit, cause: Cause) -> list[NewJob]:
    """The jobs that a message gives its agents.

    Raises:
        Poison: it holds what cannot be stored.
    """
    try:
        built = build(hit, cause)
    except (TypeError, ValueError, OverflowError) as error:
        raise Poison(f"the message cannot be stored: {type(error).__name__}: {error}") from error
    number, event_id, (day, line) = hit.number, hit.message.id, built
    return [
        NewJob(number, agent.name, event_id, day, line + _agent_columns(agent.name, agent.max_attempts))
        for agent in hit.agents
    ]


def build(hit: Hit, cause: Cause) -> Built:
    """The shared columns: payload to not_attributable, in the order of `copy_jobs`."""
    message, record = hit.message, hit.record
    if isinstance(message, Change):
        kind = b"change"
        day, occurred = _moment_of_change(message)
        lane, key_text = _lane_of_change(message)
    else:
        kind = b"event"
        day, occurred = _moment_of_event(message)
        lane, key_text = _lane_of_event(message, record.topic)
    event_id = _field(message.id)
    line = b"\t".join(
        (
            payloads.to_bytes(message).replace(b"\\", b"\\\\"),
            kind,
            b"%d" % lane,
            _NULL if key_text is None else _field(key_text),
            event_id,
            occurred,
            _topic(record.topic),
            b"%d\t%d" % (record.partition, record.offset),
            _cause(event_id, cause),
        )
    )
    return Built(day, line)


def lane_of(hit: Hit) -> int | None:
    """The lane in which all jobs of a message run; None without a key: each job then has a lane of its own."""
    message = hit.message
    if isinstance(message, Change):
        return _lane_of_change(message)[0] if message.key else None
    return None if message.key is None else _lane_of_event(message, hit.record.topic)[0]


def lane(identity: list[object]) -> int:
    """The lane of a key: the first 64 bits, signed, of the SHA-256 of its JSON."""
    try:
        text = orjson.dumps(identity, default=str, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        text = encode(identity).encode()
    return int.from_bytes(sha256(text).digest()[:8], "big", signed=True)


def _lane_of_change(change: Change) -> tuple[int, str | None]:
    key = change.key
    if not key:
        return _own_lane(), None
    values = list(key.values())
    text = str(values[0]) if len(values) == 1 else ", ".join(f"{name}={value}" for name, value in key.items())
    return lane([change.origin.schema, change.origin.table, key]), _short(text)


def _lane_of_event(event: Event, topic: str) -> tuple[int, str | None]:
    if event.key is None:
        return _own_lane(), None
    return lane([topic, event.key]), _short(event.key)


def _own_lane() -> int:
    return _RANDOM.getrandbits(64) - (1 << 63)


def _short(text: str) -> str:
    text = text[:KEY_TEXT_LIMIT]
    return text if text.isprintable() else storable(text)


def _moment_of_change(change: Change) -> tuple[int | None, bytes]:
    """(day that the ID fixes, commit time): a snapshot row's ID fixes none, its time is the snapshot's."""
    milliseconds = change.origin.committed_ms
    if not 0 <= milliseconds <= _MAX_MS:
        raise Poison(f"commit time {milliseconds} ms since 1970 is out of range")
    return None if change.origin.snapshot else milliseconds // _DAY_MS, _timestamp(milliseconds)


@lru_cache(maxsize=4096)
def _timestamp(milliseconds: int) -> bytes:
    # The rows of one transaction have the same time.
    return (_EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat().encode()


def _moment_of_event(event: Event) -> tuple[int | None, bytes]:
    if event.occurred_at is None:
        return None, _NULL
    return (event.occurred_at - _EPOCH) // _DAY, event.occurred_at.isoformat().encode()


def _cause(event_id: bytes, cause: Cause) -> bytes:
    """root_event to not_attributable, with the tab after it."""
    root, job, depth, chain, attributable = cause
    if root is None:
        return event_id + (b"\t\\N\t0\t{}\tf\t" if attributable else b"\t\\N\t0\t{}\tt\t")
    return b"%s\t%s\t%d\t%s\tf\t" % (_field(root), _NULL if job is None else b"%d" % job, depth, _chain(chain))


@lru_cache(maxsize=1024)
def _topic(name: str) -> bytes:
    return _field(name)


@lru_cache(maxsize=1024)
def _agent_columns(name: str, max_attempts: int) -> bytes:
    return _field(name) + b"\t%d\n" % max_attempts


def _field(text: str) -> bytes:
    """A text column as COPY takes it."""
    if text.isprintable() and "\\" not in text:
        return text.encode()
    data = text.encode("utf-8", "surrogateescape")
    return data.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def _chain(names: tuple[str, ...]) -> bytes:
    quoted = ['"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names]
    return _field("{" + ",".join(quoted) + "}")
