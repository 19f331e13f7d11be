"""A stretch of topics' history on real brokers: in the order of time, between its bounds, to its end, no further."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumer.errors import OperatorError
from consumer.kafka.history import History, Window
from consumer.settings import Settings, load
from debezium.stack import StackInfo

BEGIN = 1_760_000_000_000
COUNT = 9000
"""More than one partition may be ahead of the others."""


def written(stack: StackInfo) -> tuple[Settings, str]:
    """A topic of three partitions whose messages come one partition after the other, a second apart over all."""
    topic = f"history-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": stack.kafka_bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])[topic].result(30)
    # The last offset of each partition is the mark of a transaction, and holds no message.
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        for number in range(partition, COUNT, 3):
            producer.produce(topic, str(number), partition=partition, timestamp=BEGIN + 1000 * number)
            producer.poll(0)
    producer.commit_transaction(60)
    return load({"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers}), topic


def numbers(settings: Settings, topic: str, window: Window) -> list[int]:
    return [int(record.value or b"") for record in History(settings, [topic], window)]


def test_history_is_read_in_the_order_of_time_between_its_bounds_and_ends(stack: StackInfo) -> None:
    settings, topic = written(stack)
    assert numbers(settings, topic, Window()) == list(range(COUNT))
    bounded = Window(since_ms=BEGIN + 1000 * 100, until_ms=BEGIN + 1000 * 200)
    assert numbers(settings, topic, bounded) == list(range(100, 200))
    # The mark is one of the last offsets of each partition.
    assert numbers(settings, topic, Window(last=5)) == list(range(COUNT - 12, COUNT))
    assert numbers(settings, topic, Window(since_ms=BEGIN + 1000 * COUNT)) == []
    with pytest.raises(OperatorError, match=f"there is no topic no-{topic}"):
        History(settings, [f"no-{topic}"], Window())
