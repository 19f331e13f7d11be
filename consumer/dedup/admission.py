"""The admission transaction: positions, event IDs, jobs and dead letters, all or nothing.

Promises: an event gives each agent one job however often and at whatever offset it arrives within the horizon; an
older one is parked for a person; an intake that another has overtaken admits nothing. Lock order: the roster's shared
lock, positions by (topic, partition), event IDs by (day, agent, ID), then new rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumer import db, dead_letters, positions
from consumer.dedup.batch import Batch, NewJob
from consumer.dedup.calendar import Calendar
from consumer.errors import RowcallError
from consumer.positions import PartitionId

_SQL: Final = db.queries("dedup")

TRANSACTION_TIMEOUT: Final = "5s"
"""A batch takes milliseconds; what takes this long is frozen or hopeless."""

Seen = tuple[str, str]
"""(agent, event ID)."""


class RosterChanged(RowcallError):
    """The agents have changed since this batch was prepared; nothing was written. Prepare it again."""

    code = "roster_changed"


@dataclass(slots=True)
class Admitted:
    """What one admission did, by agent; `fenced` are partitions that another intake has read further."""

    jobs: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    fenced: set[PartitionId] = field(default_factory=set)


def open_session(url: str, *, name: str) -> db.SyncSession:
    """A session for admissions: its transactions end after TRANSACTION_TIMEOUT, whatever the client does."""
    session = db.connect(url, name=name)
    with db.translated():
        session.execute(_SQL["bound_session"], {"timeout": TRANSACTION_TIMEOUT})
    return session


def admit(session: db.SyncSession, batch: Batch, calendar: Calendar, *, careful: bool = False) -> Admitted:
    """Admit a batch.

    Args:
        careful: take the slower way, on which a job that exists already is a duplicate and no error.

    Raises:
        RosterChanged: prepare the batch again.
        DataRefused: the database refuses something in it; nothing was written.
        TransactionConflict, Outage: nothing was written, as far as is known; positions tell.
    """
    calendar.ensure(session, {job.day for job in batch.jobs if job.day is not None})
    done = Admitted()
    with db.transaction(session):
        _hold_roster(session, batch.stamp)
        spans = batch.spans()
        done.fenced = {span.id for span in spans} - positions.advance(session, batch.cluster, spans)
        batch = batch.without(done.fenced)
        current = [job for job in batch.jobs if job.day is None or job.day >= calendar.oldest]
        fresh = _unseen(session, current, calendar)
        done.duplicates.update(batch.repeats)
        done.duplicates.update(job.agent for job in current)
        done.duplicates.subtract(job.agent for job in fresh)
        if careful and fresh:
            done.jobs.update(_stage(session, fresh, "PENDING", None, 1))
        else:
            _copy(session, "copy_jobs", fresh)
            done.jobs.update(job.agent for job in fresh)
        if len(current) < len(batch.jobs):
            old = [job for job in batch.jobs if job.day is not None and job.day < calendar.oldest]
            if careful and fresh:
                session.execute("DROP TABLE staged_jobs")
            done.parked.update(_stage(session, old, "PARKED", "older_than_horizon", 1))
        dead_letters.write(session, batch.cluster, [letter for _, letter in batch.letters])
    return done


def redrive(session: db.SyncSession, jobs: Iterable[NewJob], calendar: Calendar) -> dict[str, int]:
    """Admit jobs once more by a person's wish, inside the caller's transaction: agent → delivery number.

    An event that was never recorded for an agent is delivery 1, so that a later duplicate of it is one.
    """
    deliveries = {}
    for job in jobs:
        found = session.execute(_SQL["next_delivery"], {"agent": job.agent, "id": job.event_id}).fetchone()
        delivery = 1 if found is None else int(found["delivery"])
        values = {"agent": job.agent, "id": job.event_id, "delivery": delivery, "day": job.day}
        if job.day is None or not calendar.is_dated(job.day):
            session.execute(_SQL["record_undated"], values)
        elif job.day >= calendar.oldest:
            session.execute(_SQL["record_dated"], values)
        _stage(session, [job], "PENDING", None, delivery)
        session.execute("DROP TABLE staged_jobs")
        deliveries[job.agent] = delivery
    return deliveries


def _hold_roster(session: db.SyncSession, stamp: str | None) -> None:
    row = session.execute(_SQL["share_with_activation"]).fetchone()
    if stamp is not None and (row is None or row["stamp"] != stamp):
        raise RosterChanged("the agents have changed since this batch was prepared")


def _unseen(session: db.SyncSession, jobs: Sequence[NewJob], calendar: Calendar) -> Sequence[NewJob]:
    """Record the jobs' event IDs; the jobs whose ID was not there."""
    dated = [job for job in jobs if calendar.is_dated(job.day)]
    missing = set()
    if dated:
        missing |= _put(session, "put_dated", dated)
    if len(dated) < len(jobs):
        missing |= _put(session, "put_undated", [job for job in jobs if not calendar.is_dated(job.day)])
    return jobs if not missing else [job for job in jobs if (job.agent, job.event_id) not in missing]


def _put(session: db.SyncSession, query: str, jobs: Sequence[NewJob]) -> set[Seen]:
    """The (agent, event ID) of those that were there already."""
    ordered = sorted((job.day or 0, job.agent, job.event_id) for job in jobs)
    row = session.execute(
        _SQL[query],
        {
            "days": [item[0] for item in ordered],
            "agents": [item[1] for item in ordered],
            "ids": [item[2] for item in ordered],
            "total": len(ordered),
        },
    ).fetchone()
    if row is None or row["fresh"] == len(ordered):
        return set()
    fresh = set(zip(row["agents"] or (), row["ids"] or (), strict=True))
    return {item[1:] for item in ordered} - fresh


def _copy(session: db.SyncSession, query: str, jobs: Sequence[NewJob]) -> None:
    if jobs:
        with session.cursor().copy(_SQL[query]) as copy:
            copy.write(b"".join([job.line for job in jobs]))


def _stage(
    session: db.SyncSession, jobs: Sequence[NewJob], status: str, reason: str | None, delivery: int
) -> list[str]:
    """Insert jobs where they do not exist yet; the agents of those that are new."""
    session.execute(_SQL["create_staging"])
    _copy(session, "copy_staged", jobs)
    rows = session.execute(_SQL["put_staged"], {"status": status, "reason": reason, "delivery": delivery})
    return [row["job_type"] for row in rows]
