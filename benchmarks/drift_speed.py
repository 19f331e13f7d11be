"""How fast drift is: values a second over 10,000 segments with their states saved, and the time to an event.

The segments are past a baseline of the shipped length and have windows of hundreds to thousands of values.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.figures import NotMeasured, percentile, significant, summary
from benchmarks.services import Child, Services, rowcall, running, until
from consumer import db
from consumer.kafka import Record, read_topic
from consumer.records import Coordinates, Event
from consumer.schema_registry import SchemaRegistry
from consumer.settings import load
from consumer.wire import Decoder
from debezium.stack import StackInfo
from producers.drift import store
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.process import BATCH

SEGMENTS: Final = 10_000
# Windows that differ from each other; every segment begins with a copy of one of them.
_KINDS: Final = 40
_BATCHES: Final = 10
_BASELINE: Final = 520
_POSITIONS: Final = b"SELECT coalesce(sum(next_offset), 0)::bigint AS n FROM rowcall.drift_positions WHERE source = %s"


def updates(services: Services) -> tuple[float, dict[str, Any]]:
    """Values a second by the engine, and its states, positions and events written as the process writes them.

    The process reads batches of up to 20,000 and saves as `store.due` says, once at the end of a round.
    """
    monitor = Monitor.of(name="m", topic="t", value="v", segment="s")
    chance = random.Random(1)
    rounds = []
    with services.database() as url, contextlib.closing(db.connect(url, name="bench")) as session:
        engine = _settled(session, monitor, chance)
        for number in range(2 if services.quick else 5):
            batches = [_values(chance, BATCH) for _ in range(_BATCHES)]
            rounds.append(_round(session, engine, monitor, batches, number))
    rates, of_cpu = zip(*rounds, strict=True)
    return statistics.median(rates), {
        "segments": SEGMENTS, "batch": BATCH, "per_s": [round(rate) for rate in rates],
        "per_s_of_own_cpu": [round(rate) for rate in of_cpu],
    }  # fmt: skip


def _round(
    session: db.SyncSession, engine: Engine, monitor: Monitor, batches: Sequence[Sequence[Sample]], number: int
) -> tuple[float, float]:
    """Values a second of the clock, and of this process's own CPU."""
    count = sum(map(len, batches))
    began, began_cpu = time.monotonic(), time.process_time()
    saved, took = began, 0.0
    for place, batch in enumerate(batches, 1):
        engine.feed([monitor], batch)
        if store.due(engine, saved, took) or place == len(batches):
            starts = time.monotonic()
            position = store.Position("topic:t", "id", 0, (number * len(batches) + place) * BATCH)
            store.save(session, engine, Topics(), 1.0, cluster="c", positions=[position])
            saved = time.monotonic()
            took = saved - starts
    return count / (time.monotonic() - began), count / (time.process_time() - began_cpu)


def _settled(session: db.SyncSession, monitor: Monitor, chance: random.Random) -> Engine:
    """An engine whose segments have learned and have been saved."""
    states = learned(monitor, chance)
    engine = Engine(
        [monitor],
        lambda keys: {key: orjson.loads(states[int(key[1][1:]) % _KINDS]) for key in keys},
        {monitor.name: SEGMENTS},
    )
    engine.feed([monitor], [Sample({"v": chance.gauss(0, 1), "s": f"s{n}"}, 0.0, 0.0) for n in range(SEGMENTS)])
    store.save(session, engine, Topics(), 1.0)
    return engine


def learned(monitor: Monitor, chance: random.Random) -> list[bytes]:
    """States of segments past their baseline, as JSON, whose windows differ."""
    learner = Engine([monitor], lambda keys: {}, {})
    for kind in range(_KINDS):
        count = monitor.learn + chance.randrange(50, 1500)
        learner.feed([monitor], [Sample({"v": chance.gauss(0, 1), "s": f"k{kind}"}, 0.0, 0.0) for _ in range(count)])
    return [orjson.dumps(segment.dump()) for segment in learner.dirty.values()]


def _values(chance: random.Random, count: int) -> list[Sample]:
    return [Sample({"v": chance.gauss(0, 1), "s": f"s{chance.randrange(SEGMENTS)}"}, 1.0, 1.0) for _ in range(count)]


def through_topic(services: Services) -> float:
    """The same by the process itself, from a topic that holds the values: read, decoded, deduplicated, saved."""
    info = services.connected()
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    count = 40_000 if services.quick else 400_000
    settings = {"topic": topic, "value": "v", "segment": "s", "start": "earliest"}
    chance = random.Random(2)
    producer = Producer({"bootstrap.servers": info.kafka_bootstrap_servers, "linger.ms": 20})
    for _ in range(count):
        _send(producer, topic, f"s{chance.randrange(SEGMENTS)}", chance.gauss(0, 1))
    producer.flush(60)
    with contextlib.closing(db.connect(info.database_url, name="bench")) as session:
        _settled(session, Monitor.of(name="bulk", **settings), chance)
        with _watching(services, "bulk", settings) as child:
            until(lambda: _read(session, topic, child), f"the first values are read; see {child.log.name}", seconds=120)
            began, first = time.monotonic(), _read(session, topic, child)
            until(lambda: _read(session, topic, child) >= count, "all values are read", seconds=300)
            return significant((count - first) / (time.monotonic() - began))


def event_ms(services: Services) -> tuple[float, dict[str, Any]]:
    """From the value that shows a drift to its event: both times are the brokers', at the end of each topic's log.

    Segments get a baseline, then values four spreads away, one every 20 ms over all segments; each tells both levels.
    """
    info = services.connected()
    mark = uuid.uuid4().hex[:8]
    topics = {"warning_topic": f"bench-w-{mark}", "critical_topic": f"bench-c-{mark}",
              "backlog_topic": f"bench-b-{mark}"}  # fmt: skip
    topic = f"bench-v-{mark}"
    _appended([topic, *topics.values()], info)
    chance = random.Random(3)
    names = [f"s{number}" for number in range(3 if services.quick else 50)]
    producer = Producer({"bootstrap.servers": info.kafka_bootstrap_servers})
    for name in names * _BASELINE:
        _send(producer, topic, name, chance.gauss(0, 1))
    producer.flush(60)
    with (
        contextlib.closing(db.connect(info.database_url, name="bench")) as session,
        _watching(
            services, "bench", {"topic": topic, "value": "v", "segment": "s", "start": "earliest"}, topics
        ) as child,
    ):
        baselines = len(names) * _BASELINE
        until(lambda: _read(session, topic, child) >= baselines, "the baselines are read", seconds=120)
        for name in names * 15:
            _send(producer, topic, name, chance.gauss(4, 1))
            producer.flush(10)
            time.sleep(0.02)
        wanted = 2 * len(names)
        until(lambda: len(_spans(info, list(topics.values())[:2])) >= wanted, "both events of each", seconds=60,
              every=1.0)  # fmt: skip
        spans = _spans(info, list(topics.values())[:2])
    return percentile(spans, 0.99), summary(spans)


def _read(session: db.SyncSession, topic: str, child: Child) -> int:
    """How many values the process has read and saved."""
    child.check()
    row = session.execute(_POSITIONS, (f"topic:{topic}",)).fetchone()
    return int(row["n"]) if row else 0


def _spans(info: StackInfo, topics: Sequence[str]) -> list[float]:
    """Milliseconds, of each event that raises a level."""
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": info.kafka_bootstrap_servers})
    found = []
    with SchemaRegistry(info.schema_registry_url) as registry:
        decoder = Decoder(registry.schema, epoch="1")
        for topic in topics:
            for record in read_topic(settings, topic):
                event = _decoded(decoder, record)
                if event.data["turn"] == "raised":
                    found.append((record.timestamp_ms or 0) - event.data["detected_at"].timestamp() * 1000)
    return found


def _decoded(decoder: Decoder, record: Record) -> Event:
    where = Coordinates(record.topic, record.partition, record.offset)
    event = decoder.decode(record.key, record.value, record.headers, where)
    if not isinstance(event, Event):
        raise NotMeasured(f"{record.topic} holds something that is no event")
    return event


def _send(producer: Producer, topic: str, segment: str, value: float) -> None:
    body = orjson.dumps({"v": value, "s": segment})
    try:
        producer.produce(topic, body, segment, headers={"id": str(uuid.uuid4())})
    except BufferError:
        producer.flush(60)
        producer.produce(topic, body, segment, headers={"id": str(uuid.uuid4())})


def _appended(topics: Sequence[str], info: StackInfo) -> None:
    """Topics whose messages carry the time they were appended."""
    client = AdminClient({"bootstrap.servers": info.kafka_bootstrap_servers})
    made = client.create_topics(
        [NewTopic(name, 1, 1, config={"message.timestamp.type": "LogAppendTime"}) for name in topics]
    )
    for done in made.values():
        done.result(30)


@contextlib.contextmanager
def _watching(
    services: Services, name: str, settings: dict[str, str], topics: dict[str, str] | None = None
) -> Iterator[Child]:
    """`rowcall drift run` with one monitor."""
    lines = ["[topics]", *_lines(topics or {}), f"[monitor.{name}]", *_lines(settings)]
    file = services.directory / f"{name}.toml"
    file.write_text("\n".join(lines))
    environment = {**services.connected().environment(), "ROWCALL_DRIFT": str(file), "ROWCALL_HEALTH_PORT": "0"}
    with running([Child(rowcall("drift", "run"), environment, services.directory / f"{name}.log")]) as children:
        yield children[0]


def _lines(table: dict[str, str]) -> list[str]:
    return [f"{name} = '{text}'" for name, text in table.items()]
