"""Positions: how far intake has read each partition, kept in the database that admits what was read.

A partition is known by cluster ID, topic ID and number, so a topic that was deleted and made again starts afresh.
Admission writes positions in its own transaction. Promises: a position moves forward only, and an intake that another
one has overtaken cannot move it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from consumer import db

_SQL: Final = db.queries("positions")


class PartitionId(NamedTuple):
    """A partition's identity inside one cluster."""

    topic_id: str
    partition: int


class Span(NamedTuple):
    """What a batch has read of one partition: offsets from `first` up to, not including, `next`."""

    id: PartitionId
    topic: str
    first: int
    next: int


def read(session: db.SyncSession, cluster: str, partitions: Iterable[PartitionId]) -> dict[PartitionId, int]:
    """The next offset of each partition that has been read before."""
    wanted = list(partitions)
    with db.translated():
        rows = session.execute(
            _SQL["read"],
            {
                "cluster": cluster,
                "topic_ids": [item.topic_id for item in wanted],
                "partitions": [item.partition for item in wanted],
            },
        ).fetchall()
    return {PartitionId(row["topic_id"], row["partition"]): row["next_offset"] for row in rows}


def advance(session: db.SyncSession, cluster: str, spans: Sequence[Span]) -> set[PartitionId]:
    """Move positions forward, inside the caller's transaction; the partitions that are ours to admit."""
    rows = session.execute(
        _SQL["advance"],
        {
            "cluster": cluster,
            "topic_ids": [span.id.topic_id for span in spans],
            "partitions": [span.id.partition for span in spans],
            "topics": [span.topic for span in spans],
            "firsts": [span.first for span in spans],
            "nexts": [span.next for span in spans],
        },
    ).fetchall()
    return {PartitionId(row["topic_id"], row["partition"]) for row in rows}


def reset(session: db.SyncSession, cluster: str, partition: PartitionId, *, seen: int, to: int) -> bool:
    """Put a position whose offsets are gone to what Kafka still has; False when another intake was quicker."""
    parameters: Mapping[str, object] = {
        "cluster": cluster,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "seen": seen,
        "next": to,
    }
    return session.execute(_SQL["reset"], parameters).fetchone() is not None
