"""The loop of the detectors: reads topics and runs queries, saves what it found, sends what it decided.

One process owns a source, by an advisory lock of its session; others wait and take over. Promises: state and positions
are one transaction; an event is sent after that, under an ID that a crash does not change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from consumer import db, telemetry
from consumer.errors import ConfigurationError, RowcallError
from consumer.kafka import Brokers, Place, Record
from consumer.kafka.reader import Reader
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.wire import Decoder
from producers.drift import store
from producers.drift.blind import Blind
from producers.drift.engine import Engine, Sample
from producers.drift.messages import Messages
from producers.drift.monitors import Monitor, Topics, load
from producers.drift.queries import Queries
from producers.drift.upkeep import Upkeep
from producers.emit import Emitter

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("drift", "producers")
BATCH: Final = 20_000
_IDLE_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 5.0


def run(settings: Settings, stop: threading.Event) -> None:
    """Watch until told to stop.

    Raises:
        ConfigurationError: the file of monitors is wrong.
        Outage, TransactionConflict: begin again; nothing is lost.
    """
    if not settings.drift:
        raise ConfigurationError("ROWCALL_DRIFT is empty; name a TOML file with a table [monitor.NAME] a monitor")
    topics, monitors = load(Path(settings.drift))
    pulse = telemetry.HEALTH.loop("drift")
    url = settings.database_url.get_secret_value()
    try:
        with (
            db.connect(url, name="drift") as session,
            closing(Emitter(settings)) as emitter,
            closing(Watch(settings, session, topics, monitors)) as watch,
        ):
            emitter.prepare([(topics.warning_topic, "drift.warning"), (topics.critical_topic, "drift.critical"),
                             (topics.backlog_topic, "backlog.threshold")])  # fmt: skip
            store.send(session, emitter)
            telemetry.HEALTH.report("drift", ready=True, detail=f"{len(monitors)} monitors")
            while not stop.is_set():
                pulse.beat()
                if watch.turn():
                    store.send(session, emitter)
            watch.finish()
            store.send(session, emitter)
    finally:
        pulse.end()


class Watch:
    """One process's sources and their segments."""

    def __init__(
        self, settings: Settings, session: db.SyncSession, topics: Topics, monitors: Sequence[Monitor]
    ) -> None:
        self._session, self._topics, self._monitors = session, topics, monitors
        self._by_topic: dict[str, list[Monitor]] = defaultdict(list)
        for monitor in monitors:
            if monitor.topic:
                self._by_topic[monitor.topic].append(monitor)
        self._brokers = Brokers(settings)
        self._reader = Reader(settings, BATCH)
        self._registry = SchemaRegistry(settings.schema_registry_url)
        self._messages = Messages(Decoder(self._registry.schema, epoch=settings.epoch), monitors)
        self._cluster = self._brokers.cluster_id()
        self._owned: set[str] = set()
        self._topic_ids: dict[str, str] = {}
        self._reading: set[Place] = set()
        self._seen: dict[str, store.Seen] = {}
        self._read: dict[Place, store.Position] = {}
        self._looked = self._ticked = self._saved = self._took = 0.0
        self._engine = Engine(monitors, store.loader(session), store.known(session, [m.name for m in monitors]))
        self._queries = Queries(settings, session, self._brokers)
        self._upkeep = Upkeep(session, monitors, settings.drift_keep_days)
        self._blind = Blind(self._upkeep, monitors)

    def turn(self) -> int:
        """One look at everything; how many events wait to be sent because of it."""
        now = self._now()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._upkeep.look(now)
            self._own(now)
            self._place(now)
            self._blind.look(now)
        polled = self._reader.poll(_IDLE_SECONDS)
        for place in polled.gone:
            self._lost(place)
        if polled.records:
            self._take(polled.records)
        now = self._now()
        waiting = self._save(now) if self._read and store.due(self._engine, self._saved, self._took) else 0
        for monitor in self._monitors:
            if monitor.source in self._owned and (rows := self._queried(monitor, now)) is not None:
                self._engine.feed([monitor], [Sample(row, now, now) for row in rows])
                waiting += self._save(now, polled={monitor.source: now})
        if now - self._ticked >= 1.0:
            self._ticked = now
            waiting += self._tick(now)
        return waiting

    def _queried(self, monitor: Monitor, now: float) -> list[dict[str, Any]] | None:
        """The rows of a query that is due; one that is refused stops nobody else's monitor."""
        try:
            rows = self._queries.due(monitor, now)
        except ConfigurationError as error:
            _log.error("%s", error, extra={"action": "drift_query_refused", "monitor": monitor.name})
            telemetry.DRIFT_VALUES.add(1, monitor=monitor.name, outcome="query_failed")
            self._blind.query(monitor, str(error))
            return None
        if rows is not None:
            self._blind.query(monitor, None)
        return rows

    def finish(self) -> None:
        """Save what has been read since the last time."""
        if self._read:
            self._save(self._now())

    def close(self) -> None:
        """Close every connection but the session."""
        self._reader.close()
        self._registry.close()
        self._queries.close()

    def _now(self) -> float:
        with db.translated():
            row = self._session.execute(_SQL["now"]).fetchone()
        assert row is not None
        return float(row["now"])

    def _own(self, now: float) -> None:
        fresh = set()
        for source in sorted({monitor.source for monitor in self._monitors} - self._owned):
            with db.translated():
                row = self._session.execute(_SQL["own"], (source,)).fetchone()
                if row is None or not row["owned"]:
                    continue
                stored = self._session.execute(_SQL["seen"], (source,)).fetchall()
            self._seen[source] = store.Seen([bytes(item["digests"]) for item in stored])
            self._owned.add(source)
            fresh.add(source)
            _log.info("watching %s", source, extra={"action": "drift_owned", "source": source})

        self._engine.begin([monitor.name for monitor in self._monitors if monitor.source in fresh], now)
        if self._engine.dirty:
            self._save(now)

    def _place(self, now: float) -> None:
        wanted = [topic for topic in self._by_topic if f"topic:{topic}" in self._owned]
        found = self._brokers.topics(wanted)
        self._blind.topics(wanted, found, now)
        for name, topic in found.items():
            fresh = [Place(name, number) for number in topic.partitions if Place(name, number) not in self._reading]
            if not fresh:
                continue
            source = f"topic:{name}"
            with db.translated():
                rows = self._session.execute(_SQL["positions"], (source, self._cluster)).fetchall()
            held = {row["partition"]: row["next_offset"] for row in rows if row["topic_id"] == topic.id}
            # A topic met before is read on; so is one made while we run, and each of its new partitions.
            known = bool(held) or name in self._topic_ids or any(m.start == "earliest" for m in self._by_topic[name])
            self._topic_ids[name] = topic.id
            bounds = self._brokers.bounds(fresh)
            offsets = {
                place: max(held.get(place.partition, first if known else end), first)
                for place, (first, end) in bounds.items()
            }
            self._read |= {place: store.Position(source, topic.id, place.partition, at)
                           for place, at in offsets.items()}  # fmt: skip
            self._save(self._now())
            self._reader.read_from(offsets)
            self._reading |= offsets.keys()
        for topic_name in set(wanted) - self._topic_ids.keys():
            self._topic_ids[topic_name] = ""

    def _lost(self, place: Place) -> None:
        first, _ = self._brokers.bounds([place])[place]
        _log.warning("%s [%d]: messages are gone that were not read; going on at %d", place.topic, place.partition,
                     first, extra={"action": "drift_offset_lost", "topic": place.topic})  # fmt: skip
        self._reader.read_from({place: first})

    def _take(self, records: Sequence[Record]) -> None:
        now = self._now()
        nexts = {Place(record.topic, record.partition): record.offset + 1 for record in records}
        for group, samples in self._messages.read(records, now, self._seen, self._engine.counted):
            self._engine.feed(group.monitors, samples)
        self._read |= {
            place: store.Position(f"topic:{place.topic}", self._topic_ids[place.topic], place.partition, offset)
            for place, offset in nexts.items()
        }

    def _tick(self, now: float) -> int:
        names = [monitor.name for monitor in self._monitors if monitor.source in self._owned]
        with db.translated():
            rows = self._session.execute(_SQL["due"], (names,)).fetchall()
        self._engine.tick([(row["monitor"], row["segment"]) for row in rows], now)
        for source in self._owned:
            with db.translated():
                self._session.execute(_SQL["prune_seen"], (source,))
        reset = self._upkeep.reset(self._engine, names, now)
        return self._save(now, reset=reset) if rows or reset else 0

    def _save(self, now: float, **what: Any) -> int:
        counted, began = dict(self._engine.counted), time.monotonic()
        seen = {source: item for source, item in self._seen.items() if item.fresh}
        try:
            made = store.save(self._session, self._engine, self._topics, now, cluster=self._cluster,
                              positions=list(self._read.values()), seen=seen, **what)  # fmt: skip
        except RowcallError:
            _log.warning("states were not saved; reading them again", extra={"action": "drift_not_saved"})
            raise
        for (monitor, outcome), count in counted.items():
            telemetry.DRIFT_VALUES.add(count, monitor=monitor, outcome=outcome)
        self._blind.met(counted)
        self._read, self._saved = {}, time.monotonic()
        self._took = self._saved - began
        return made
