"""A stretch of topics' history, read once in the order of time: what checks look at.

Read outside any group and without committing anything. Promises: it ends at the end the topics had when it began, also
where the last offsets hold no message; memory is bounded, for a partition that is ahead is paused; the order is that of
the messages' times over all partitions, and inside a partition that of its offsets.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition

from consumer.errors import OperatorError, Outage
from consumer.kafka import Brokers, Place, Record, _client, _record
from consumer.kafka.options import member_options
from consumer.settings import Settings

_AHEAD: Final = 2000
"""Messages of a partition that wait for those of others; then it is paused."""

_SILENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Window:
    """What is read: from a time or a number of messages of each partition, until a time; all in ms since 1970."""

    since_ms: int | None = None
    until_ms: int | None = None
    last: int | None = None


@dataclass(slots=True)
class _Part:
    """One partition on its way to `end`."""

    place: Place
    end: int
    held: deque[Record] = field(default_factory=deque)
    done: bool = False
    paused: bool = False


class History:
    """The messages of a window; `total` is how many offsets it spans."""

    def __init__(self, settings: Settings, topics: Sequence[str], window: Window) -> None:
        """Look up where the window begins and ends.

        Raises:
            OperatorError: a topic does not exist.
            Outage, ConfigurationError: the brokers do not answer, or refuse us.
        """
        brokers = Brokers(settings)
        found = brokers.topics(topics)
        if missing := sorted(set(topics) - found.keys()):
            raise OperatorError(f"there is no topic {', '.join(missing)}")
        places = [Place(name, number) for name, topic in found.items() for number in topic.partitions]
        bounds = brokers.bounds(places)
        self._client = _client({
            **member_options(settings), "group.id": f"{settings.kafka_group}-history", "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        firsts = {place: first for place, (first, _) in bounds.items()}
        ends = {place: end for place, (_, end) in bounds.items()}
        if window.since_ms is not None:
            firsts |= self._at(window.since_ms, ends)
        if window.until_ms is not None:
            ends |= self._at(window.until_ms, ends)
        if window.last is not None:
            firsts = {place: max(first, ends[place] - window.last) for place, first in firsts.items()}
        self._starts = {place: first for place, first in firsts.items() if first < ends[place]}
        self._parts = {place: _Part(place, ends[place]) for place in self._starts}
        self.total = sum(ends[place] - first for place, first in self._starts.items())

    def __iter__(self) -> Iterator[Record]:
        """The messages, once.

        Raises:
            Outage: the brokers stay silent before the end, or refuse the read.
        """
        with closing(self._client):
            self._client.assign([TopicPartition(*place, first) for place, first in self._starts.items()])
            heap: list[tuple[int, Place, int]] = []
            waiting = {place: part for place, part in self._parts.items() if not part.done}
            heard = time.monotonic()
            while waiting or heap:
                for place in [place for place, part in waiting.items() if part.held or part.done]:
                    self._offer(heap, waiting.pop(place))
                if not waiting:
                    if heap:
                        yield self._next(heap, waiting)
                    continue
                if self._fill():
                    heard = time.monotonic()
                elif time.monotonic() - heard > _SILENCE_SECONDS:
                    raise Outage("the brokers give no more messages; try again", dependency="broker")

    def _at(self, moment_ms: int, ends: dict[Place, int]) -> dict[Place, int]:
        """The first offset of each partition whose message is not older; its end where there is none."""
        asked = [TopicPartition(*place, moment_ms) for place in ends]
        found = self._client.offsets_for_times(asked, timeout=30)
        offsets = {Place(item.topic, item.partition): item.offset for item in found}
        return {place: offset if 0 <= offset <= ends[place] else ends[place] for place, offset in offsets.items()}

    def _offer(self, heap: list[tuple[int, Place, int]], part: _Part) -> None:
        if part.held:
            record = part.held[0]
            heapq.heappush(heap, (record.timestamp_ms or 0, part.place, record.offset))

    def _next(self, heap: list[tuple[int, Place, int]], waiting: dict[Place, _Part]) -> Record:
        part = self._parts[heapq.heappop(heap)[1]]
        record = part.held.popleft()
        if part.paused and not part.done and len(part.held) < _AHEAD // 4:
            part.paused = False
            self._client.resume([TopicPartition(*part.place)])
        if part.held or not part.done:
            waiting[part.place] = part
        return record

    def _fill(self) -> bool:
        messages = self._client.consume(1000, 0.5)
        for message in messages:
            self._take(message)
        return bool(messages)

    def _take(self, message: Any) -> None:
        place = Place(str(message.topic()), int(message.partition() or 0))
        part, error = self._parts.get(place), message.error()
        if part is None or part.done:
            return
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise Outage(f"{place.topic} cannot be read: {error.str()}", dependency="broker")
        # An end that holds no message, as after a transaction's mark, is told by the end of the partition alone.
        if error is not None or message.offset() >= part.end:
            part.done = True
        else:
            part.held.append(_record(message))
            part.done = message.offset() >= part.end - 1
        if part.done or (len(part.held) >= _AHEAD and not part.paused):
            part.paused = True
            self._client.pause([TopicPartition(*place)])
