"""From a topic's messages to samples: decoded, each ID once, for the monitors whose operations they are.

Used by the loop and by the replay of a topic's history, so that both see the same. What cannot be read is counted and
left out; intake is who keeps it for a person.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from consumer.errors import Poison
from consumer.kafka import Record
from consumer.records import Change, Coordinates, Event
from consumer.wire import Decoder
from producers.drift.engine import Sample
from producers.drift.monitors import Monitor
from producers.drift.store import Seen

_log = logging.getLogger(__name__)


class Group(NamedTuple):
    """Monitors of one topic that want the same operations."""

    operations: frozenset[str]
    monitors: tuple[Monitor, ...]


class Messages:
    """Reads messages for some monitors."""

    def __init__(self, decoder: Decoder, monitors: Iterable[Monitor]) -> None:
        self._decoder = decoder
        alike: dict[str, dict[frozenset[str], list[Monitor]]] = defaultdict(lambda: defaultdict(list))
        for monitor in monitors:
            if monitor.topic:
                alike[monitor.topic][frozenset(monitor.operations)].append(monitor)
        self._groups = {
            topic: [Group(wanted, tuple(found)) for wanted, found in groups.items()] for topic, groups in alike.items()
        }

    def read(
        self,
        records: Sequence[Record],
        now: float | None,
        seen: Mapping[str, Seen],
        counted: Counter[tuple[str, str]],
    ) -> list[tuple[Group, list[Sample]]]:
        """The samples of records, by the monitors that want them, in their order.

        Args:
            now: when they are looked at; None for the moment each was written.
            seen: the IDs of each source, `topic:NAME`.
            counted: (topic, reason) of what is left out.
        """
        found: dict[int, tuple[Group, list[Sample]]] = {}
        for record in records:
            read = self._message(record, seen, counted)
            if read is None:
                continue
            written = (now or 0.0) if record.timestamp_ms is None else record.timestamp_ms / 1000
            sample = _sample(read, written, written if now is None else now)
            for group in self._groups[record.topic]:
                if isinstance(read, Event) or read.operation.value in group.operations:
                    found.setdefault(id(group), (group, []))[1].append(sample)
        return list(found.values())

    def _message(
        self, record: Record, seen: Mapping[str, Seen], counted: Counter[tuple[str, str]]
    ) -> Change | Event | None:
        place = Coordinates(record.topic, record.partition, record.offset)
        try:
            message = self._decoder.decode(record.key, record.value, record.headers or [], place)
        except Poison as error:
            _log.warning("a message of %s cannot be read: %s", record.topic, error,
                         extra={"action": "drift_undecodable", "code": error.code, "topic": record.topic})  # fmt: skip
            counted[record.topic, "undecodable"] += 1
            return None
        if not isinstance(message, Change | Event):
            return None
        if not seen[f"topic:{record.topic}"].first(message.id):
            counted[record.topic, "duplicate"] += 1
            return None
        return message


def _sample(message: Change | Event, written: float, now: float) -> Sample:
    if isinstance(message, Change):
        return Sample(message.row, message.origin.committed_ms / 1000, now)
    data = message.data if isinstance(message.data, dict) else {"value": message.data}
    return Sample(data, message.occurred_at.timestamp() if message.occurred_at else written, now)
