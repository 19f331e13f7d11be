"""The admission transaction: positions, event IDs, jobs and dead letters, all or nothing.

Promises: an event gives each agent one job however often and at whatever offset it arrives within the horizon; an
older one is parked for a person; an intake that another has overtaken admits nothing. Lock order: the roster's shared
lock, positions by (topic, partition), event IDs by (day, agent, ID), then new rows, and of older jobs those that take
changes in, as far as nobody holds them.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Final

import orjson

from consumer import db, dead_letters, positions
from consumer.dedup.batch import Batch, NewJob
from consumer.dedup.calendar import Calendar
from consumer.dedup.special import Admitted, sift
from consumer.dedup.staging import copy, stage
from consumer.errors import DataRefused, RowcallError, TransactionConflict

_SQL: Final = db.queries("dedup")

TRANSACTION_TIMEOUT: Final = "5s"
"""A batch takes milliseconds; what takes this long is frozen or hopeless."""

_UNIQUE_VIOLATION: Final = "db_23505"
_EPOCH: Final = dt.date(1970, 1, 1)
_AGENT: Final = itemgetter(NewJob._fields.index("agent"))

Seen = tuple[str, str]
"""(agent, event ID)."""


class RosterChanged(RowcallError):
    """The agents have changed since this batch was prepared; nothing was written. Prepare it again."""

    code = "roster_changed"


def open_session(url: str, *, name: str) -> db.SyncSession:
    """A session for admissions: its transactions end after TRANSACTION_TIMEOUT, whatever the client does."""
    session = db.connect(url, name=name)
    with db.translated():
        session.execute(_SQL["bound_session"], {"timeout": TRANSACTION_TIMEOUT})
    return session


def admit(
    session: db.SyncSession, batch: Batch, calendar: Calendar, *, look: bool = True, careful: bool = False
) -> Admitted:
    """Admit a batch.

    Args:
        look: ask first which events are known. Without it all are taken for new; a known one is a TransactionConflict.
        careful: take the slower way, on which a job that exists already is a duplicate and no error.

    Raises:
        RosterChanged: prepare the batch again.
        DataRefused: the database refuses something in it; nothing was written.
        TransactionConflict, Outage: nothing was written, as far as is known; positions tell.
    """
    calendar.ensure(session, {day for day in {job.day for job in batch.jobs} if day is not None})
    done = Admitted()
    with db.transaction(session):
        _hold_roster(session, batch.stamp)
        spans = batch.spans()
        done.fenced = {span.id for span in spans} - positions.advance(session, batch.cluster, spans)
        batch = batch.without(done.fenced)
        current, old = _by_horizon(batch.jobs, calendar)
        fresh = _unseen(session, current, calendar, look=look or careful)
        done.duplicates.update(batch.repeats)
        if fresh is not current:
            done.duplicates.update(map(_AGENT, current))
            done.duplicates.subtract(map(_AGENT, fresh))
        if batch.specials:
            fresh = sift(session, fresh, batch.specials, done)
        if careful and fresh:
            done.jobs.update(stage(session, fresh, "PENDING", None, 1))
        else:
            copy(session, "copy_jobs", fresh)
            done.jobs.update(map(_AGENT, fresh))
        if old:
            done.parked.update(stage(session, old, "PARKED", "older_than_horizon", 1))
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
        stage(session, [job], "PENDING", None, delivery)
        deliveries[job.agent] = delivery
    return deliveries


def _hold_roster(session: db.SyncSession, stamp: str | None) -> None:
    row = session.execute(_SQL["share_with_activation"]).fetchone()
    if stamp is not None and (row is None or row["stamp"] != stamp):
        raise RosterChanged("the agents have changed since this batch was prepared")


def _by_horizon(jobs: Sequence[NewJob], calendar: Calendar) -> tuple[Sequence[NewJob], Sequence[NewJob]]:
    """The jobs inside the horizon, and those beyond; nearly always all are inside."""
    outdated = {day for day in {job.day for job in jobs} if day is not None and day < calendar.oldest}
    if not outdated:
        return jobs, ()
    return [job for job in jobs if job.day not in outdated], [job for job in jobs if job.day in outdated]


def _unseen(session: db.SyncSession, jobs: Sequence[NewJob], calendar: Calendar, *, look: bool) -> Sequence[NewJob]:
    """Record the jobs' event IDs; the jobs whose ID was not there (`jobs` itself where none was).

    Copying costs half of `INSERT … ON CONFLICT`, also with a look before; the unique keys decide in any case, and an
    admission that met a key it did not know of begins again.
    """
    if not jobs:
        return jobs
    dates: dict[int | None, str] = {
        day: _date(day) for day in {job.day for job in jobs} if day is not None and calendar.is_dated(day)
    }
    fresh = jobs
    if look or _any_undated(session, jobs):
        known = _seen(session, jobs, dates.values())
        fresh = [job for job in jobs if (job.agent, job.event_id) not in known] if known else jobs
    dated, undated = [], []
    for _, agent, event_id, day, _ in fresh:
        date = dates.get(day)
        if date is not None:
            dated.append((date, agent, event_id))
        else:
            undated.append((agent, event_id))
    with _clashes_are_conflicts():
        _write(session, "copy_dated", dated)
        _write(session, "copy_undated", undated)
    return fresh


def _any_undated(session: db.SyncSession, jobs: Sequence[NewJob]) -> bool:
    """Whether an agent of these has IDs in the undated table: one there may be of a day that has a table by now."""
    row = session.execute(_SQL["any_undated"], {"agents": list(set(map(_AGENT, jobs)))}).fetchone()
    return row is None or bool(row["found"])


def _seen(session: db.SyncSession, jobs: Sequence[NewJob], dates: Iterable[str]) -> set[Seen]:
    """The (agent, event ID) of those that were there already."""
    by_agent: defaultdict[str, list[str]] = defaultdict(list)
    for _, agent, event_id, _, _ in jobs:
        by_agent[agent].append(event_id)
    firsts, number = [], 1
    for ids in by_agent.values():
        firsts.append(number)
        number += len(ids)
    rows = session.execute(
        _SQL["seen"],
        {
            "agents": list(by_agent),
            "firsts": firsts,
            # As JSON: the driver takes as long for an array of so many texts as the server for looking them up.
            "ids": orjson.dumps([*chain.from_iterable(by_agent.values())]).decode(),
            "days": list(dates),
        },
    ).fetchall()
    return {(row["agent"], row["event_id"]) for row in rows}


@contextmanager
def _clashes_are_conflicts() -> Iterator[None]:
    """A key that was not known of, or came between looking and writing: begin again and see it."""
    try:
        with db.translated():
            yield
    except DataRefused as error:
        if error.code != _UNIQUE_VIOLATION:
            raise
        raise TransactionConflict(f"one of these events is recorded already: {error}") from error


@lru_cache(maxsize=64)
def _date(day: int) -> str:
    return (_EPOCH + dt.timedelta(days=day)).isoformat()


def _write(session: db.SyncSession, query: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Copy rows in the order of their lines, which is the same for all intakes, so that two cannot deadlock."""
    if rows:
        text = "".join(sorted(["\t".join(row) + "\n" for row in rows]))
        if "\\" in text or text.count("\t") + text.count("\n") + text.count("\r") != len(rows) * len(rows[0]):
            text = "".join(sorted(["\t".join(map(_escaped, row)) + "\n" for row in rows]))
        with session.cursor().copy(_SQL[query]) as copy:
            copy.write(text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
