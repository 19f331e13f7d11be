"""Partitions read outside any group, from offsets the caller keeps: what detectors read with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, TopicPartition

from consumer.errors import Outage
from consumer.kafka import Place, Polled, Record, _client, _record
from consumer.kafka.options import member_options
from consumer.settings import Settings

_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_PASSING: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})


class Reader:
    """Reads what it is told to. Not safe to share between threads; nothing is committed to Kafka."""

    def __init__(self, settings: Settings, batch: int) -> None:
        self._batch = batch
        self._client = _client({**member_options(settings), "group.id": f"{settings.kafka_group}-drift"})

    def read_from(self, offsets: Mapping[Place, int]) -> None:
        """Read these partitions too, or on from another offset."""
        for place, offset in offsets.items():
            held = {(item.topic, item.partition) for item in self._client.assignment()}
            item = TopicPartition(place.topic, place.partition, offset)
            if tuple(place) in held:
                self._client.incremental_unassign([item])
            self._client.incremental_assign([item])

    def poll(self, idle_seconds: float) -> Polled:
        """What is there, at most one batch; waits up to `idle_seconds` for the first message.

        Raises:
            Outage: the brokers have refused the read.
        """
        first = self._client.consume(1, idle_seconds)
        messages = first + self._client.consume(self._batch - 1, 0) if first else []
        records: list[Record] = []
        gone: list[Place] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() in _GONE:
                gone.append(Place(str(message.topic()), int(message.partition() or 0)))
            elif error.code() not in _PASSING:
                raise Outage(f"{message.topic()} cannot be read: {error.str()}", dependency="broker")
        return Polled(records, gone)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
