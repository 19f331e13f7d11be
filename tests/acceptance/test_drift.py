"""The detectors' process on the real brokers, registry and database, killed in the middle of it."""

from __future__ import annotations

import os
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from consumer.kafka import Brokers, read_topic
from consumer.records import Coordinates, Event
from consumer.schema_registry import SchemaRegistry
from consumer.settings import load
from consumer.wire import Decoder
from debezium.stack import StackInfo
from tests.fixtures.process import Process, eventually


def told(stack: StackInfo, topic: str) -> list[tuple[str, Any]]:
    """ID and data of each event on a topic."""
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers})
    found = []
    with SchemaRegistry(stack.schema_registry_url) as registry:
        decoder = Decoder(registry.schema, epoch="1")
        for record in read_topic(settings, topic):
            where = Coordinates(record.topic, record.partition, record.offset)
            event = decoder.decode(record.key, record.value, record.headers, where)
            assert isinstance(event, Event)
            found.append((event.id, event.data))
    return found


def send(producer: Producer, topic: str, middle: float, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        body = orjson.dumps({"amount": chance.gauss(middle, 1), "shop": "a"})
        producer.produce(topic, body, "a", headers={"id": str(uuid.uuid4())})
    assert producer.flush(30) == 0


def test_drift_is_told_on_two_topics_once_whatever_is_killed(stack: StackInfo, database: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    rows, warning, critical = f"rows-{mark}", f"drift-w-{mark}", f"drift-c-{mark}"
    (tmp_path / "drift.toml").write_text(
        f"[topics]\nwarning_topic = '{warning}'\ncritical_topic = '{critical}'\nbacklog_topic = 'backlog-{mark}'\n"
        f"[monitor.amount]\ntopic = '{rows}'\nvalue = 'amount'\nsegment = 'shop'\nlearn = 200\nstart = 'earliest'\n"
    )
    environment = dict(os.environ) | stack.environment() | {
        "DATABASE_URL": database, "ROWCALL_DRIFT": str(tmp_path / "drift.toml"), "ROWCALL_HEALTH_PORT": "0",
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    argv = [sys.executable, "-m", "consumer.cli", "drift", "run"]
    first = Process(argv, environment, tmp_path / "first.log")
    second = None
    try:
        send(producer, rows, 100, 1000, 1)
        first.says("drift_owned")
        settings = load({"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers})
        eventually("the topics are made", lambda: len(Brokers(settings).topics([warning, critical])) == 2)
        send(producer, rows, 104, 40, 2)
        eventually("a warning", lambda: told(stack, warning))
        first.kill()
        send(producer, rows, 104, 100, 3)
        second = Process(argv, environment, tmp_path / "second.log")
        eventually("a critical event", lambda: told(stack, critical))
        send(producer, rows, 100, 800, 4)
        eventually("a recovery", lambda: [1 for _, data in told(stack, critical) if data["turn"] == "recovered"])
        for topic in (warning, critical):
            found = told(stack, topic)
            assert sorted({(data["turn"], data["segment"]) for _, data in found}) == [
                ("raised", "a"), ("recovered", "a"),
            ]  # fmt: skip
            assert len({number for number, _ in found}) == 2
        assert second.stop() == 0
    finally:
        first.kill()
        if second is not None:
            second.kill()
