"""One batch, from records to committed jobs: routing, own writes, rows of jobs, admission.

Before: the poll. After: the offsets' commit. `take` needs no Kafka, so benchmarks and tests drive it with messages of
their own. Promises: what the database refuses is found by halving the batch and becomes a dead letter, the rest goes
on; an outage or a conflict leaves nothing half done.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from consumer import db, dead_letters, telemetry
from consumer.dead_letters import DeadLetter
from consumer.dedup import Admitted, Batch, Calendar, NewJob, admit
from consumer.errors import DataRefused, Outage, Poison, TransactionConflict
from consumer.intake.jobs import jobs_of
from consumer.intake.own_writes import OwnWrites, cause_of, woken_by_others
from consumer.intake.routing import Routed, Subscriptions, route
from consumer.kafka import Place, Record
from consumer.positions import PartitionId
from consumer.settings import Settings
from consumer.wire import Decoder

_log = logging.getLogger(__name__)

_CONFLICT_TRIES: Final = 5
_MISSING_PARTITION: Final = "db_23514"
"""Also the code of a broken CHECK; the calendar is made whole once before the batch is searched for a culprit."""


class Pipeline:
    """Takes batches on one session; a new session needs a new pipeline.

    Args:
        session: of `consumer.dedup.open_session`.
        calendar: refreshed on this database.
    """

    def __init__(self, settings: Settings, decoder: Decoder, session: db.SyncSession, calendar: Calendar) -> None:
        self._decoder = decoder
        self._session = session
        self._calendar = calendar
        self._own_writes = OwnWrites(settings.own_sources)

    def take(
        self,
        records: Sequence[Record],
        *,
        cluster: str,
        ids: Mapping[Place, PartitionId],
        subscribed: Subscriptions,
        stamp: str | None = None,
    ) -> Admitted:
        """Admit a batch of records; their partitions must be in `ids` and `subscribed`.

        Raises:
            Outage: database or registry is away; positions tell what was admitted.
            RosterChanged: nothing was admitted.
        """
        began = time.perf_counter()
        routed = route(records, self._decoder, subscribed)
        batch = self._batch(records, routed, cluster, ids)
        done = self._admit(batch, stamp)
        routed.count()
        _count(done)
        telemetry.BATCH_SECONDS.observe(time.perf_counter() - began)
        return done

    def _batch(
        self, records: Sequence[Record], routed: Routed, cluster: str, ids: Mapping[Place, PartitionId]
    ) -> Batch:
        writers = self._own_writes.writers(self._session, routed.hits)
        seen: set[tuple[str, str]] = set()
        jobs: list[NewJob] = []
        repeats: dict[str, int] = {}
        for found in routed.hits:
            writer = self._own_writes.writer_of(found.message, writers)
            hit = woken_by_others(found, writer, routed)
            if hit is None:
                continue
            fresh = []
            for agent in hit.agents:
                if (agent.name, hit.message.id) in seen:
                    repeats[agent.name] = repeats.get(agent.name, 0) + 1
                else:
                    seen.add((agent.name, hit.message.id))
                    fresh.append(agent)
            if not fresh:
                continue
            try:
                jobs += jobs_of(hit, cause_of(hit.message, writer), fresh)
            except Poison as error:
                letter = DeadLetter(hit.record, error.code, str(error), None, hit.message.id)
                routed.letters.append((hit.number, letter))
        return Batch(cluster, records, ids, jobs, routed.letters, repeats)

    def _admit(self, batch: Batch, stamp: str | None, *, whole: bool = True) -> Admitted:
        try:
            done = self._persevere(batch, stamp, careful=False)
        except DataRefused as error:
            if whole and error.code == _MISSING_PARTITION:
                self._calendar.refresh(self._session)
                return self._admit(batch, stamp, whole=False)
            telemetry.BATCHES.add(result="isolated")
            if len(batch.records) == 1:
                return self._isolated(batch, stamp)
            first, second = batch.halves()
            done = self._admit(first, stamp, whole=False)
            _merge(done, self._admit(second, stamp, whole=False))
            done.duplicates.update(batch.repeats)
            return done
        dead_letters.announce([letter for _, letter in batch.letters])
        return done

    def _isolated(self, batch: Batch, stamp: str | None) -> Admitted:
        """One message that was refused: once more the careful way, then as a dead letter."""
        try:
            done = self._persevere(batch, stamp, careful=True)
        except DataRefused as error:
            batch = batch.refused(error.code, str(error))
            done = self._persevere(batch, stamp, careful=False)
        dead_letters.announce([letter for _, letter in batch.letters])
        return done

    def _persevere(self, batch: Batch, stamp: str | None, *, careful: bool) -> Admitted:
        for attempt in range(_CONFLICT_TRIES):
            try:
                done = admit(self._session, batch, self._calendar, stamp=stamp, careful=careful)
            except TransactionConflict as error:
                telemetry.BATCHES.add(result="conflict")
                _log.info("admission again: %s", error, extra={"action": "admission_conflict", "attempt": attempt + 1})
                time.sleep(random.uniform(0, 0.01) * 2**attempt)
                continue
            telemetry.BATCHES.add(result="committed")
            return done
        raise Outage(f"{_CONFLICT_TRIES} admissions in a row met a conflict", dependency="database")


def _merge(done: Admitted, other: Admitted) -> None:
    done.jobs.update(other.jobs)
    done.duplicates.update(other.duplicates)
    done.parked.update(other.parked)
    done.fenced |= other.fenced


def _count(done: Admitted) -> None:
    for outcome, counts in (("admitted", done.jobs), ("duplicate", done.duplicates), ("parked", done.parked)):
        for agent, number in counts.items():
            if number:
                telemetry.EVENTS.add(number, agent=agent, outcome=outcome)
