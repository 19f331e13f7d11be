"""One batch, from records to committed jobs: routing, own writes, rows of jobs, admission.

Before: the poll. After: the offsets' commit. It needs no Kafka, so benchmarks and tests drive it with messages of
their own: `take` for one batch, `take_all` for many. `Overlap` admits one batch in a thread of its own while the next
is prepared; a batch is handed in only when the one before it is known to be committed.

Promises: what the database refuses is found by halving the batch and becomes a dead letter, the rest goes on; what not
even a dead letter can hold is raised with its coordinates and never passed by; an outage or a conflict leaves nothing
half done.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from consumer import db, dead_letters, telemetry
from consumer.dead_letters import DeadLetter
from consumer.dedup import Admitted, Batch, Calendar, NewJob, Special, admit, keep_limits
from consumer.errors import DataRefused, Outage, Poison, TransactionConflict
from consumer.intake.causation import announce, specials_of
from consumer.intake.jobs import jobs_of
from consumer.intake.own_writes import OwnWrites, cause_of, woken_by_others
from consumer.intake.routing import Routed, Subscriptions, route
from consumer.kafka import Place, Record
from consumer.positions import PartitionId
from consumer.settings import Settings
from consumer.wire import Decoder

_log = logging.getLogger(__name__)

_CONFLICT_TRIES: Final = 5
_LOOKS: Final = 20
"""Duplicates come in stretches, after a producer began again. So many admissions after the last one nothing is looked
up any more; the first event that is known makes its admission begin again, with a look."""
_TURN_SECONDS: Final = 0.0005
"""After this a thread that waits for the interpreter gets it; 5 ms is Python's own choice."""
_MISSING_PARTITION: Final = "db_23514"
"""Also the code of a broken CHECK; the calendar is made whole once before the batch is searched for a culprit."""


@dataclass(slots=True)
class Prepared:
    """A batch that is ready to be admitted. `began` is its start on the performance counter."""

    batch: Batch
    routed: Routed
    began: float


class Pipeline:
    """Takes batches; new sessions need a new pipeline.

    Args:
        session: admits; of `consumer.dedup.open_session`.
        calendar: refreshed on this database.
        reader: looks up the runs that wrote rows while another batch is admitted; needed where two batches overlap.
    """

    def __init__(
        self,
        settings: Settings,
        decoder: Decoder,
        session: db.SyncSession,
        calendar: Calendar,
        *,
        reader: db.SyncSession | None = None,
    ) -> None:
        self._decoder = decoder
        self._writer = session
        self._reader = session if reader is None else reader
        self._calendar = calendar
        self._own_writes = OwnWrites(settings.own_sources)
        self._max_depth = settings.max_depth
        keep_limits(session, max_depth=settings.max_depth, root_runs=settings.root_runs_per_minute)
        self._looks = _LOOKS

    def take(
        self,
        records: Sequence[Record],
        *,
        cluster: str,
        ids: Mapping[Place, PartitionId],
        subscribed: Subscriptions,
        stamp: str | None = None,
    ) -> Admitted:
        """Prepare a batch of records and admit it; their partitions must be in `ids` and `subscribed`.

        Raises:
            Outage: database or registry is away; positions tell what was admitted.
            RosterChanged: nothing was admitted.
            DataRefused: one message cannot be stored in any form; what came before it was admitted.
        """
        return self.commit(self.prepare(records, cluster=cluster, ids=ids, subscribed=subscribed, stamp=stamp))

    def take_all(
        self,
        batches: Iterable[Sequence[Record]],
        *,
        cluster: str,
        ids: Mapping[Place, PartitionId],
        subscribed: Subscriptions,
    ) -> Iterator[Admitted]:
        """`take` for many batches, as the loop does it while messages flow: one is admitted, the next one prepared."""
        overlap = Overlap()
        try:
            for records in batches:
                prepared = self.prepare(records, cluster=cluster, ids=ids, subscribed=subscribed, stamp=None)
                done = overlap.settle()
                if done is not None:
                    yield done
                overlap.start(self, prepared)
            done = overlap.settle()
            if done is not None:
                yield done
        finally:
            overlap.close()

    def prepare(
        self,
        records: Sequence[Record],
        *,
        cluster: str,
        ids: Mapping[Place, PartitionId],
        subscribed: Subscriptions,
        stamp: str | None,
    ) -> Prepared:
        """Decode, ask the triggers, find the writing runs, build the rows. Writes nothing.

        Args:
            stamp: of the roster that `subscribed` comes from; None leaves it unchecked.

        Raises:
            Outage: database or registry is away.
        """
        began = time.perf_counter()
        with _uncollected():
            routed = route(records, self._decoder, subscribed)
            coalescing = any(agent.coalesce for agents in subscribed.values() for agent, _ in agents)
            return Prepared(self._batch(records, routed, cluster, ids, stamp, coalescing), routed, began)

    def commit(self, prepared: Prepared) -> Admitted:
        """Admit a prepared batch, with all it takes.

        Raises:
            Outage, RosterChanged, DataRefused: as `take`.
        """
        done = self._admit(prepared.batch)
        prepared.routed.count()
        _count(done)
        announce(done.loops)
        telemetry.BATCH_SECONDS.observe(time.perf_counter() - prepared.began)
        return done

    def _batch(
        self,
        records: Sequence[Record],
        routed: Routed,
        cluster: str,
        ids: Mapping[Place, PartitionId],
        stamp: str | None,
        coalescing: bool,
    ) -> Batch:
        writers = self._own_writes.writers(self._reader, routed.hits)
        seen: set[tuple[str, str]] = set()
        jobs: list[NewJob] = []
        repeats: dict[str, int] = {}
        specials: dict[tuple[str, str], Special] = {}
        for found in routed.hits:
            writer = self._own_writes.writer_of(found.message, writers)
            hit = woken_by_others(found, writer, routed)
            if hit is None:
                continue
            cause = cause_of(hit.message, writer)
            try:
                given = jobs_of(hit, cause)
            except Poison as error:
                letter = DeadLetter(hit.record, error.code, str(error), None, hit.message.id)
                routed.letters.append((hit.number, letter))
                continue
            if coalescing or cause.root is not None:
                # The first of a repeated event is the one that is admitted.
                for event, special in specials_of(hit, cause, self._max_depth):
                    specials.setdefault(event, special)
            for job in given:
                event = (job.agent, job.event_id)
                if event in seen:
                    repeats[job.agent] = repeats.get(job.agent, 0) + 1
                else:
                    seen.add(event)
                    jobs.append(job)
        return Batch(cluster, stamp, records, ids, jobs, routed.letters, repeats, specials)

    def _admit(self, batch: Batch, *, whole: bool = True) -> Admitted:
        try:
            done = self._persevere(batch, careful=False)
        except DataRefused as error:
            if whole and error.code == _MISSING_PARTITION:
                self._calendar.refresh(self._writer)
                return self._admit(batch, whole=False)
            telemetry.BATCHES.add(result="isolated")
            if len(batch.records) == 1:
                return self._isolated(batch)
            first, second = batch.halves()
            done = self._admit(first, whole=False)
            # What follows a fenced half must not move the position past what the other intake has not read.
            _merge(done, self._admit(second.without(done.fenced), whole=False))
            done.duplicates.update(batch.repeats)
            return done
        dead_letters.announce([letter for _, letter in batch.letters])
        return done

    def _isolated(self, batch: Batch) -> Admitted:
        """One message that was refused: once more the careful way, then as a dead letter."""
        try:
            done = self._persevere(batch, careful=True)
        except DataRefused as error:
            batch = batch.refused(error.code, str(error))
            try:
                done = self._persevere(batch, careful=False)
            except DataRefused as last:
                record = batch.records[0]
                raise DataRefused(
                    f"the message at {record.topic}/{record.partition}@{record.offset} can be stored neither as jobs "
                    f"nor as a dead letter: {last}",
                    code=last.code,
                ) from last
        dead_letters.announce([letter for _, letter in batch.letters])
        return done

    def _persevere(self, batch: Batch, *, careful: bool) -> Admitted:
        for attempt in range(_CONFLICT_TRIES):
            try:
                done = admit(self._writer, batch, self._calendar, look=self._looks > 0, careful=careful)
            except TransactionConflict as error:
                self._looks = _LOOKS
                telemetry.BATCHES.add(result="conflict")
                _log.info("admission again: %s", error, extra={"action": "admission_conflict", "attempt": attempt + 1})
                time.sleep(random.uniform(0, 0.01) * 2**attempt)
                continue
            self._looks = _LOOKS if done.duplicates.total() else self._looks - 1
            telemetry.BATCHES.add(result="committed")
            return done
        raise Outage(f"{_CONFLICT_TRIES} admissions in a row met a conflict", dependency="database")


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection while a batch is built: its thousands of rows hold no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Overlap:
    """One admission at a time in a thread of its own, while the next batch is prepared.

    The thread waits for Postgres most of the time, but needs the interpreter for a moment between two waits. It would
    get it after 5 ms only, many times a batch, while the other thread computes: threads take turns sooner from now on.
    """

    def __init__(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), _TURN_SECONDS))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rowcall-admission")
        self._pending: Future[Admitted] | None = None

    @property
    def busy(self) -> bool:
        """Whether an admission was started and not settled."""
        return self._pending is not None

    def start(self, pipeline: Pipeline, prepared: Prepared) -> None:
        """Begin to admit; the one before must be settled."""
        if self._pending is not None:
            raise RuntimeError("an admission is under way")
        self._pending = self._thread.submit(pipeline.commit, prepared)

    def settle(self) -> Admitted | None:
        """Wait for the admission under way, if there is one; raises what it raised."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Let the admission under way end; its outcome is in the database."""
        self._thread.shutdown(wait=True)
        self._pending = None


def _merge(done: Admitted, other: Admitted) -> None:
    done.jobs.update(other.jobs)
    done.duplicates.update(other.duplicates)
    done.parked.update(other.parked)
    done.coalesced.update(other.coalesced)
    done.loops += other.loops
    done.fenced |= other.fenced


def _count(done: Admitted) -> None:
    outcomes = {
        "admitted": done.jobs,
        "duplicate": done.duplicates,
        "parked": done.parked,
        "coalesced": done.coalesced,
    }
    for outcome, counts in outcomes.items():
        for agent, number in counts.items():
            if number:
                telemetry.EVENTS.add(number, agent=agent, outcome=outcome)
