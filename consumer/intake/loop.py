"""The loop of intake: a thread that polls, has batches admitted, and goes on through every outage.

A turn: have sessions, a fresh roster, the subscription and the partitions in place; poll; prepare a batch; see the one
before it committed and hand this one in; tell Kafka. Only while messages flow do two batches overlap. Any
failure that time can cure lifts all partitions, keeps polling (so the group keeps us) and begins again from the stored
positions after a growing pause. So does a message that the database takes in no form: nothing is passed by, and each
try says where it stands. Configuration errors and a client that failed for good end the loop.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Final

from consumer import activate, db, dedup, telemetry
from consumer.agents.door import Agent
from consumer.dedup import Calendar, RosterChanged
from consumer.errors import ConfigurationError, Outage, RowcallError, TransactionConflict
from consumer.intake.assignment import Assignment, shown
from consumer.intake.backpressure import Backlog
from consumer.intake.causation import alert_queued
from consumer.intake.pipeline import Overlap, Pipeline
from consumer.intake.roster import Reminder, View, view
from consumer.intake.routing import subscriptions
from consumer.intake.unread import Unread
from consumer.kafka import Brokers, Consumer, Place, Record
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.telemetry import HEALTH, Health
from consumer.wire import Decoder

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("intake")

IDLE_SECONDS: Final = 0.5
"""Longest wait of one poll: how soon a stop is seen."""
ROSTER_SECONDS: Final = 5.0
"""How old the roster may be while nothing arrives; each admission checks it anyway."""
_CALENDAR_SECONDS: Final = 600.0
_PRUNE_SECONDS: Final = 3600.0
_PRUNE_TIMEOUT: Final = "3s"
_LAG_SECONDS: Final = 5.0
_ALERT_SECONDS: Final = 5.0
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 10.0
_KAFKA_FATAL: Final = "kafka_fatal"
_CALM_SECONDS: Final = 3.0
"""After an outage, as long without a message or a failure counts as over."""


class Intake:
    """One group member. `run` blocks and belongs in a thread of its own; the properties may be read from any.

    Args:
        agents: those whose code this process has (`consumer.agents.registry.load`).
        decoder: for messages; by default one that asks SCHEMA_REGISTRY_URL.
        health: where the loop reports itself, as `intake`.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[Agent],
        *,
        decoder: Decoder | None = None,
        health: Health = HEALTH,
    ) -> None:
        self._settings = settings
        self._agents = tuple(agents)
        self._registry = SchemaRegistry(settings.schema_registry_url)
        self._decoder = decoder or Decoder(self._registry.schema, epoch=settings.epoch)
        self._health = health
        self._brokers = Brokers(settings)
        self._consumer = Consumer(settings)
        self._assignment = Assignment(self._brokers, self._consumer)
        self._backlog = Backlog(settings.backlog_limit)
        self._calendar = Calendar(settings.dedup_days)
        self._reader: db.SyncSession | None = None
        self._writer: db.SyncSession | None = None
        self._pipeline: Pipeline | None = None
        self._overlap = Overlap()
        self._handed_in: dict[Place, int] = {}
        self._view: View | None = None
        self._reminder = Reminder()
        self._subscribed: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}
        self._blocked_until = 0.0
        self._outages = 0
        self._timeouts = 0
        self._paused: str | None = "starting"
        self._progress = time.time()
        self._lag: dict[Place, int] = {}
        self._unread = Unread(health)
        self._pulse = health.loop("intake")
        health.expect("intake")

    @property
    def last_progress(self) -> float:
        """When a batch was last admitted, or all was read; seconds since 1970."""
        return self._progress

    @property
    def partitions(self) -> frozenset[Place]:
        """The partitions being read."""
        return frozenset(self._consumer.placed)

    @property
    def lag(self) -> int:
        """Messages of these partitions that are not admitted yet, as last known."""
        return sum(self._lag.values())

    @property
    def paused_reason(self) -> str | None:
        """Why nothing is read, or None."""
        return self._paused

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop` is set.

        Raises:
            ConfigurationError: an operator must act.
            RowcallError: the Kafka client failed for good; start a new process.
        """
        try:
            while not stop.is_set():
                self._pulse.beat()
                try:
                    self._turn()
                except RosterChanged:
                    self._abandon()
                    self._assignment.lift()
                    self._due.pop("roster", None)
                except RowcallError as error:
                    if _is_final(error):
                        raise
                    self._bear(error)
                explained = self._outages > 0 or self._paused is not None
                self._unread.look(self._consumer.owned, self._consumer.placed, explained=explained)
        finally:
            self._pulse.end()
            self._health.report("intake", ready=False, detail="stopped")
            self._overlap.close()
            self._consumer.close()
            self._registry.close()
            self._close_sessions()

    def _turn(self) -> None:
        wait = self._blocked_until - time.monotonic()
        if wait > 0:
            self._poll(min(wait, IDLE_SECONDS))
            return
        session, pipeline = self._ensure_sessions()
        self._brokers.cluster_id()  # at the start: a cluster that cannot be found is said now
        known = self._ensure_view(session)
        if self._is_due("alerts", _ALERT_SECONDS):
            alert_queued(session)
        if self._backlog.check(session):
            self._settle()
            self._assignment.lift()
            self._pause("backlog", f"more than {self._settings.backlog_limit} jobs wait")
            self._poll(IDLE_SECONDS)
            return
        if self._consumer.owned - self._consumer.placed:
            self._settle()
            self._assignment.place(session, known)
        records = self._poll(0 if self._overlap.busy else IDLE_SECONDS)
        if records:
            self._take(records, known, pipeline)
        elif self._overlap.busy:
            self._settle()
        elif not self._outages or time.monotonic() > self._blocked_until + _CALM_SECONDS:
            self._recovered()
            self._house_keeping()

    def _poll(self, seconds: float) -> list[Record]:
        polled = self._consumer.poll(seconds)
        if polled.gone:
            self._assignment.lift(polled.gone)
        # What was polled of a partition that has been lifted or revoked since is read again by whoever has it then.
        placed = self._consumer.placed
        if all(place in placed for place in {Place(record[0], record[1]) for record in polled.records}):
            return polled.records
        return [record for record in polled.records if Place(record[0], record[1]) in placed]

    def _take(self, records: list[Record], known: View, pipeline: Pipeline) -> None:
        places = {Place(record[0], record[1]) for record in records}
        prepared = pipeline.prepare(
            records,
            cluster=self._brokers.cluster_id(),
            ids=self._assignment.ids,
            subscribed=subscriptions(places, known.by_topic, self._assignment.starts),
            stamp=known.stamp,
        )
        self._settle()
        # Partitions that the batch before was fenced from are lifted: what follows there is not ours either.
        stale = {self._assignment.ids[place] for place in places - self._consumer.placed}
        prepared.batch = prepared.batch.without(stale)
        self._handed_in = {
            place: record[2] + 1
            for record in records
            if (place := Place(record[0], record[1])) in self._consumer.placed
        }
        self._overlap.start(pipeline, prepared)
        if not self._consumer.flowing:
            self._settle()

    def _settle(self) -> None:
        """See the admission under way committed, and tell Kafka."""
        done = self._overlap.settle()
        if done is None:
            return
        self._recovered()
        fenced = {place for place in self._handed_in if self._assignment.ids[place] in done.fenced}
        if fenced:
            _log.warning(
                "another intake has read further: positions are read again",
                extra={"action": "fenced", "partitions": len(fenced)},
            )
            self._assignment.lift(fenced)
        read = {place: offset for place, offset in self._handed_in.items() if place not in fenced}
        self._assignment.next |= read
        self._consumer.commit(read)
        self._backlog.grow()
        self._progress = time.time()
        if self._is_due("lag", _LAG_SECONDS):
            self._measure_lag()

    def _recovered(self) -> None:
        if self._outages:
            _log.info("intake goes on", extra={"action": "recovered"})
        self._outages = self._timeouts = 0
        self._pause(None, None)
        if self._consumer.batch < self._settings.intake_batch:
            self._consumer.batch = min(self._settings.intake_batch, self._consumer.batch * 2)

    def _bear(self, error: RowcallError) -> None:
        """Something is away, or cannot be stored: stop reading, keep polling, and try again after a pause."""
        dependency = error.dependency if isinstance(error, Outage) else "database"
        passing = isinstance(error, Outage | TransactionConflict)
        if not passing:
            standing = {place: self._assignment.next[place] for place in self._consumer.placed}
            _log.error(
                "intake cannot go on and passes nothing by, it tries again: %s; it stands at %s",
                error,
                shown(standing) or "no partition",
                extra={"action": "intake_stuck", "code": error.code},
            )
        elif self._outages == 0:
            telemetry.OUTAGES.add(dependency=dependency)
            _log.warning("intake waits: %s", error, extra={"action": "outage", "dependency": dependency})
        timed_out = error.code == "db_25P04"
        telemetry.BATCHES.add(result="timeout" if timed_out else "outage")
        self._timeouts = self._timeouts + 1 if timed_out else 0
        if self._timeouts >= 2:
            self._consumer.batch = max(1, self._consumer.batch // 2)
        self._abandon()
        if dependency == "database":
            self._close_sessions()
        self._assignment.lift()
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._outages, 10)) * random.uniform(0.5, 1.0)
        self._blocked_until = time.monotonic() + pause
        self._outages += 1
        self._pause("outage", f"{dependency} is away: {error}" if passing else f"stuck: {error}")

    def _abandon(self) -> None:
        """Let the admission under way end, whichever way: positions tell, when the partitions are placed again."""
        try:
            self._settle()
        except RowcallError as error:
            if _is_final(error):
                raise
            _log.info("admission abandoned: %s", error, extra={"action": "admission_abandoned"})

    def _ensure_sessions(self) -> tuple[db.SyncSession, Pipeline]:
        """The session for this thread's questions, and the pipeline; the calendar is of today."""
        if self._reader is None or self._writer is None or self._pipeline is None:
            url = self._settings.database_url.get_secret_value()
            self._reader = db.connect(url, name="intake")
            self._writer = dedup.open_session(url, name="admission")
            self._pipeline = Pipeline(self._settings, self._decoder, self._writer, self._calendar, reader=self._reader)
            self._due.pop("calendar", None)
        if self._is_due("calendar", _CALENDAR_SECONDS):
            self._settle()
            self._calendar.refresh(self._reader)
        return self._reader, self._pipeline

    def _close_sessions(self) -> None:
        for session in (self._reader, self._writer):
            if session is not None:
                session.close()
        self._reader = self._writer = self._pipeline = None

    def _ensure_view(self, session: db.SyncSession) -> View:
        if self._view is None or self._is_due("roster", ROSTER_SECONDS):
            fresh = view(activate.roster(session), self._agents)
            if self._view is None or fresh.stamp != self._view.stamp:
                self._assignment.lift()
                self._report_roster(fresh)
            self._view = fresh
            self._reminder.tell(fresh)
        if self._view.topics != self._subscribed:
            self._consumer.subscribe(self._view.topics)
            self._subscribed = self._view.topics
        return self._view

    def _report_roster(self, fresh: View) -> None:
        telemetry.TOPICS_PAUSED.set(len(fresh.left_alone), reason="missing_agent")
        for name in fresh.outdated:
            _log.warning(
                "a newer version of agent %s is active than this process has",
                name,
                extra={"action": "agent_outdated", "agent": name},
            )

    def _house_keeping(self) -> None:
        """What can wait until nothing arrives."""
        if self._is_due("lag", _LAG_SECONDS):
            self._measure_lag()
        if self._is_due("prune", _PRUNE_SECONDS):
            own = db.connect(self._settings.database_url.get_secret_value(), name="prune")
            try:
                with db.translated():
                    own.execute(_SQL["bound_statement"], {"timeout": _PRUNE_TIMEOUT})
                dedup.prune(own, self._settings.dedup_days)
            except Outage as error:
                _log.info("days of event IDs not dropped yet: %s", error, extra={"action": "prune"})
            finally:
                own.close()

    def _measure_lag(self) -> None:
        gone = self._lag.keys() - self._consumer.placed
        self._lag = self._consumer.lag(self._assignment.next)
        for place in gone:
            telemetry.LAG.forget(topic=place.topic, partition=str(place.partition))
        for place, messages in self._lag.items():
            telemetry.LAG.set(messages, topic=place.topic, partition=str(place.partition))
        telemetry.PARTITIONS.set(len(self._consumer.placed))
        if not any(self._lag.values()):
            self._progress = time.time()

    def _pause(self, kind: str | None, reason: str | None) -> None:
        if reason == self._paused:
            return
        for name in ("backlog", "outage"):
            telemetry.TOPICS_PAUSED.set(len(self._subscribed) if name == kind else 0, reason=name)
        self._paused = reason
        # A backlog is no reason to be taken out of service: it is worked off here.
        self._health.report("intake", ready=kind != "outage", detail=reason or f"reads {len(self._subscribed)} topics")

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, float("-inf")):
            return False
        self._due[what] = now + seconds
        return True


def _is_final(error: RowcallError) -> bool:
    """Whether no later turn of this loop can fare better."""
    return isinstance(error, ConfigurationError) or error.code == _KAFKA_FATAL
