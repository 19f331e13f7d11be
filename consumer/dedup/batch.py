"""What one admission is given: the messages that were read, the jobs they give, the ones that could not be handled."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from consumer.dead_letters import DeadLetter
from consumer.kafka import Place, Record
from consumer.positions import PartitionId, Span


class NewJob(NamedTuple):
    """A job that an event gives an agent, unless it did so before.

    `number` is the message's place in its batch, `day` the UTC day (since 1970) that the event ID fixes or None, `line`
    the job's row as COPY takes it.
    """

    number: int
    agent: str
    event_id: str
    day: int | None
    line: bytes


class Merge(NamedTuple):
    """How a job of a coalescing agent takes in later ones of its lane.

    `window` and `longest` in seconds; `latest` is whether a later input replaces the earlier. `payload` is the input as
    stored, `occurred_at` when it happened, where that is known.
    """

    window: float
    longest: float
    latest: bool
    lane: int
    kind: str
    payload: str
    occurred_at: dt.datetime | None


class Special(NamedTuple):
    """What must be looked at before a job is admitted like all others.

    `root` is the event at the root where a run caused the job, with that run, its depth and chain; `fault` says why the
    job is parked whatever else holds.
    """

    root: str | None = None
    parent: int | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    fault: str | None = None
    merge: Merge | None = None


Specials = Mapping[tuple[str, str], Special]
"""By (agent, event ID); most batches have none."""


@dataclass(slots=True)
class Batch:
    """Messages in the order they were read; jobs and letters in the order of their messages.

    `stamp` is that of the roster it was prepared with, None to leave it unchecked; `repeats` counts, by agent, events
    that came twice in the batch itself.
    """

    cluster: str
    stamp: str | None
    records: Sequence[Record]
    ids: Mapping[Place, PartitionId]
    jobs: list[NewJob] = field(default_factory=list)
    letters: list[tuple[int, DeadLetter]] = field(default_factory=list)
    repeats: dict[str, int] = field(default_factory=dict)
    specials: Specials = field(default_factory=dict)

    def spans(self) -> list[Span]:
        """What has been read of each partition."""
        first: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        for record in self.records:
            place = record[:2]
            if place not in first:
                first[place] = record[2]
            last[place] = record[2]
        return [Span(self.ids[Place(*place)], place[0], start, last[place] + 1) for place, start in first.items()]

    def halves(self) -> tuple[Batch, Batch]:
        """The first and the second half of the messages, with what belongs to each."""
        middle = len(self.records) // 2
        return self._part(0, middle), self._part(middle, len(self.records))

    def without(self, fenced: set[PartitionId]) -> Batch:
        """The batch without the messages of these partitions."""
        if not fenced:
            return self
        kept = [index for index, record in enumerate(self.records) if self.ids[Place(*record[:2])] not in fenced]
        renumbered = {old: new for new, old in enumerate(kept)}
        return Batch(
            self.cluster,
            self.stamp,
            [self.records[index] for index in kept],
            self.ids,
            [job._replace(number=renumbered[job.number]) for job in self.jobs if job.number in renumbered],
            [(renumbered[index], letter) for index, letter in self.letters if index in renumbered],
            specials=self.specials,
        )

    def refused(self, code: str, error: str) -> Batch:
        """A batch of one message as a dead letter instead of jobs."""
        letter = DeadLetter(self.records[0], code, error, None, self.jobs[0].event_id if self.jobs else None)
        return Batch(self.cluster, self.stamp, self.records, self.ids, [], [(0, letter)])

    def _part(self, start: int, end: int) -> Batch:
        return Batch(
            self.cluster,
            self.stamp,
            self.records[start:end],
            self.ids,
            [job._replace(number=job.number - start) for job in self.jobs if start <= job.number < end],
            [(index - start, letter) for index, letter in self.letters if start <= index < end],
            specials=self.specials,
        )
