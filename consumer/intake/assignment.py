"""Where each partition is read from: our own stored position, else where the first of its agents starts.

Before: the group gave us partitions. After: `routing` gets their messages. Whatever stops intake (an outage, a backlog,
a changed roster, a position another intake moved) only lifts partitions; placing them again reads the positions anew,
so there is one way to begin and nothing in memory can be wrong. Offsets that Kafka has lost become a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from consumer import activate, db, dead_letters, positions
from consumer.dead_letters import OFFSET_GAP, DeadLetter
from consumer.intake.roster import View
from consumer.kafka import Brokers, Consumer, Place, Record
from consumer.positions import PartitionId, Span

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Assignment:
    """The partitions being read. `next` is the position of each, `starts` where its agents begin."""

    brokers: Brokers
    consumer: Consumer
    ids: dict[Place, PartitionId] = field(default_factory=dict)
    next: dict[Place, int] = field(default_factory=dict)
    starts: dict[Place, Mapping[str, int]] = field(default_factory=dict)

    def place(self, session: db.SyncSession, view: View) -> None:
        """Begin to read every owned partition that is not read yet and whose topic exists.

        Raises:
            Outage, ConfigurationError: of the brokers or the database; some partitions may not be read then.
        """
        waiting = {place for place in self.consumer.owned - self.consumer.placed if place.topic in view.by_topic}
        if not waiting:
            return
        cluster = self.brokers.cluster_id()
        topics = self.brokers.topics({place.topic for place in waiting})
        bounds = self.brokers.bounds(place for place in waiting if place.topic in topics)
        ids = {place: PartitionId(topics[place.topic].id, place.partition) for place in bounds}
        stored = positions.read(session, cluster, ids.values())
        starts = activate.starts(session, cluster, {item.topic_id for item in ids.values()})
        chosen = {}
        for place, (first, end) in bounds.items():
            own = starts.get(ids[place], {})
            known = stored.get(ids[place])
            # An agent without a start here was activated before the partition existed: it reads all of it.
            wanted = min(own.get(agent.name, 0) for agent in view.by_topic[place.topic]) if known is None else known
            if first <= wanted <= end:
                chosen[place] = wanted
            elif self._close_gap(session, cluster, place, ids[place], known, wanted, first):
                chosen[place] = first
            else:
                continue  # another intake has moved it meanwhile: look again in the next turn
            self.ids[place], self.starts[place] = ids[place], own
        self.next |= chosen
        self.consumer.place(chosen)
        if chosen:
            _log.info("partitions placed", extra={"action": "place", "partitions": shown(chosen)})

    def lift(self, places: Iterable[Place] | None = None) -> None:
        """Stop reading these partitions, or all; what was fetched and not admitted is read again after `place`."""
        self.consumer.lift(self.consumer.placed if places is None else places)

    def _close_gap(
        self,
        session: db.SyncSession,
        cluster: str,
        place: Place,
        partition: PartitionId,
        known: int | None,
        wanted: int,
        first: int,
    ) -> bool:
        """Go on at the first offset Kafka has, and leave a row that says what is missing."""
        if wanted < first:
            error = f"offsets {wanted} to {first - 1} were deleted by Kafka before they were read"
        else:
            error = f"the log ends before offset {wanted}, which was to be read next; reading again from {first}"
        record = Record(place.topic, place.partition, min(wanted, first), None, None, None, None)
        letter = DeadLetter(record, OFFSET_GAP, error)
        with db.transaction(session):
            if known is None:
                ours = positions.advance(session, cluster, [Span(partition, place.topic, first, first)])
                moved = partition in ours
            else:
                moved = positions.reset(session, cluster, partition, seen=known, to=first)
            if moved:
                dead_letters.write(session, cluster, [letter])
        if moved:
            dead_letters.announce([letter])
            _log.error("%s", error, extra={"action": OFFSET_GAP, "topic": place.topic, "partition": place.partition})
        return moved


def shown(chosen: Mapping[Place, int]) -> str:
    """Positions as people read them: topic/partition@offset."""
    return ", ".join(f"{topic}/{number}@{offset}" for (topic, number), offset in sorted(chosen.items()))
