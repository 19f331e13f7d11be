"""What stands in the database of detectors: states, positions, digests of IDs, events that wait to be sent.

`save` is one transaction: states with the positions they were computed from and the events they decided. Promises: a
process killed at any point loses none of them and repeats an event only under its own ID.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from consumer import db
from producers.drift import events
from producers.drift.engine import Engine, Key
from producers.drift.monitors import Topics
from producers.emit import Emitter

_SQL: Final = db.queries("drift", "producers")
_DIGEST: Final = 8
REMEMBERED: Final = 100_000
"""IDs of a source that are remembered, at least."""
SAVE_SECONDS: Final = (1.0, 10.0)
"""States wait at least and at most so long for more values, so that each is written once for many."""
_SAVE_SHARE: Final = 4


class Position(NamedTuple):
    """The next offset of a partition."""

    source: str
    topic_id: str
    partition: int
    offset: int


class Seen:
    """The IDs of a source's last messages, by digest."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        whole = b"".join(reversed(stored))
        self._held = dict.fromkeys(whole[at : at + _DIGEST] for at in range(0, len(whole), _DIGEST))
        self.fresh: list[bytes] = []

    def first(self, identifier: str) -> bool:
        """Whether this ID is new; it is remembered."""
        digest = hashlib.blake2b(identifier.encode("utf-8", "replace"), digest_size=_DIGEST).digest()
        if digest in self._held:
            return False
        self._held[digest] = None
        self.fresh.append(digest)
        return True

    def saved(self) -> None:
        """The fresh ones are in the database; forget the oldest."""
        self.fresh = []
        for digest in list(self._held)[: max(0, len(self._held) - 2 * REMEMBERED)]:
            del self._held[digest]


def loader(session: db.SyncSession) -> Any:
    """A function that loads states by key."""

    def load(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        with db.translated():
            rows = session.execute(_SQL["load"], ([key[0] for key in keys], [key[1] for key in keys])).fetchall()
        return {(row["monitor"], row["segment"]): orjson.loads(row["state"]) for row in rows}

    return load


def known(session: db.SyncSession, monitors: Sequence[str]) -> dict[str, int]:
    """How many segments each monitor has."""
    with db.translated():
        return {row["monitor"]: row["segments"] for row in session.execute(_SQL["known"], (list(monitors),))}


def due(engine: Engine, saved: float, took: float) -> bool:
    """Whether it is time to save: at once when something is to be told, else so that a fifth of the time goes into it.

    Args:
        saved: the monotonic time when the last save ended.
        took: how many seconds it took.
    """
    least, most = SAVE_SECONDS
    wait = min(max(least, _SAVE_SHARE * took), most)
    return bool(engine.told or engine.over) or time.monotonic() - saved >= wait


def save(
    session: db.SyncSession,
    engine: Engine,
    topics: Topics,
    now: float,
    *,
    cluster: str = "",
    positions: Sequence[Position] = (),
    polled: Mapping[str, float] | None = None,
    seen: Mapping[str, Seen] | None = None,
    reset: Mapping[str, Any] | None = None,
) -> int:
    """Write everything that has changed, in one transaction; how many events wait to be sent because of it.

    Raises:
        Outage, TransactionConflict, DataRefused: nothing was written, and the engine is ahead of the database: drop it.
    """
    made = [events.of(told, topics) for told in engine.told]
    made += [events.too_many(engine.monitors[name], topics, now) for name in sorted(engine.over)]
    engine.over.clear()
    with db.transaction(session):
        if positions:
            session.execute(_SQL["advance"], {
                "cluster": cluster,
                "sources": [item.source for item in positions],
                "topic_ids": [item.topic_id for item in positions],
                "partitions": [item.partition for item in positions],
                "offsets": [item.offset for item in positions],
            })  # fmt: skip
        for source, at in (polled or {}).items():
            session.execute(_SQL["poll"], {"source": source, "at": at})
        for source, item in (seen or {}).items():
            if item.fresh:
                session.execute(_SQL["note_seen"], (source, b"".join(item.fresh), len(item.fresh)))
        if engine.dirty:
            session.execute(_SQL["save"], _states(engine))
        if reset:
            session.execute(_SQL["reset_reached"], reset)
        for event in made:
            session.execute(_SQL["write_event"], event)
    engine.saved()
    for item in (seen or {}).values():
        item.saved()
    return len(made)


def send(session: db.SyncSession, emitter: Emitter) -> int:
    """Send what waits, in the order it was decided; how many events.

    Raises:
        Outage: not confirmed; they stay and are sent again under the same IDs.
    """
    total = 0
    while True:
        with db.translated():
            rows = session.execute(_SQL["unsent"]).fetchall()
        if not rows:
            return total
        emitter.emit([events.produced(row) for row in rows])
        with db.translated():
            session.execute(_SQL["sent"], ([row["number"] for row in rows],))
        total += len(rows)


def _states(engine: Engine) -> dict[str, Any]:
    items = sorted(engine.dirty.items())
    return {
        "monitors": [key[0] for key, _ in items],
        "segments": [key[1] for key, _ in items],
        "statuses": [segment.alarm.state for _, segment in items],
        "episodes": [segment.alarm.number for _, segment in items],
        "samples": [segment.count for _, segment in items],
        "dues": [segment.due() for _, segment in items],
        "states": [orjson.dumps(segment.dump()).decode() for _, segment in items],
    }
