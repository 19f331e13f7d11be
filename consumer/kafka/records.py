"""What leaves Kafka and names its parts, as plain tuples; nothing here knows the client library."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One message as Kafka holds it. `timestamp_ms` since 1970, where the message has one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int | None


class Polled(NamedTuple):
    """What one poll gave: records in the order of their partitions, and partitions whose offset Kafka has lost."""

    records: list[Record]
    gone: list[Place]


class Topic(NamedTuple):
    """A topic that exists."""

    id: str
    partitions: tuple[int, ...]
