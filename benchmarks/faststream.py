"""intake_over_faststream: `rowcall intake` against an application on FastStream's confluent broker, on one topic.

Both consume the whole topic from its beginning, as a process of their own, into a fresh database: decode, two
triggers, dedup and two jobs an event, one transaction a batch. The rate is that of the middle: from the tenth part of
the jobs to the last one, so that neither side's start counts. FastStream first tries several batch sizes.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.agents import INTAKE_TOPIC, WAKING
from benchmarks.figures import Measured, NotMeasured, Rounds, significant
from benchmarks.messages import take_transactions, updates
from benchmarks.services import Child, Services, python, running, until, workers
from consumer.schema_registry import SchemaRegistry
from debezium.stack import StackInfo
from tests.envelopes import ORDERS

PARTITIONS: Final = 6
SIZES: Final = (500, 2000)
SECONDS: Final = 90.0
# On a busy machine rounds take longer: after this time the third is the last.
BUDGET_SECONDS: Final = 120.0
ENOUGH_ROUNDS: Final = 3
OUR_JOBS: Final = "rowcall.agent_jobs"
THEIR_JOBS: Final = "jobs"


def measure(services: Services) -> Measured:
    """Events a second by both, in rounds; FastStream one by one once, as context."""
    events, rounds = (10_000, 2) if services.quick else (20_000, 5)
    info = services.stack()
    log = Path(services.directory) / "faststream.log"
    _fill(info, events)
    began = time.monotonic()
    tried = {size: _theirs(services, info, events, "batch", size, log) for size in SIZES}
    best = max(tried, key=tried.__getitem__)
    single = _theirs(services, info, events // 40, "single", 1, log)
    copied = _theirs(services, info, events, "copy", best, log)
    mine: list[float] = []
    peer: list[float] = []
    while len(mine) < rounds and (len(mine) < ENOUGH_ROUNDS or time.monotonic() - began < BUDGET_SECONDS):
        mine.append(_ours(services, info, events, log))
        peer.append(_theirs(services, info, events, "batch", best, log))
    result = Rounds(mine, peer)
    raw = {
        "events_a_round": events,
        "faststream_max_records": best,
        "faststream_tried_per_s": {str(size): significant(rate) for size, rate in tried.items()},
        "faststream_per_message_per_s": significant(single),
        # What it gives when its jobs are not inserted but copied, as ours are: one round, for comparison.
        "faststream_with_copy_per_s": significant(copied),
        **result.raw(),
    }
    return Measured({"intake_over_faststream": result.ratio}, raw)


def _fill(info: StackInfo, events: int) -> None:
    """Make the topic and write the messages, framed with IDs of the registry."""
    registry = SchemaRegistry(info.schema_registry_url)
    table = dataclasses.replace(
        ORDERS,
        key_id=registry.register(f"{INTAKE_TOPIC}-key", ORDERS.key_schema),
        value_id=registry.register(f"{INTAKE_TOPIC}-value", ORDERS.value_schema),
    )
    admin = AdminClient({"bootstrap.servers": info.kafka_bootstrap_servers})
    for made in admin.create_topics([NewTopic(INTAKE_TOPIC, PARTITIONS, 1)]).values():
        made.result(30)
    producer = Producer(
        {
            "bootstrap.servers": info.kafka_bootstrap_servers,
            "compression.type": "lz4",
            "queue.buffering.max.messages": events + 1,
        }
    )
    first = take_transactions(info.database_url, events)
    for number, (key, value) in enumerate(updates(events, first_txid=first, table=table)):
        producer.produce(INTAKE_TOPIC, key=key, value=value, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(60):
        raise NotMeasured(f"{left} of {events} messages could not be written to Kafka")


def _ours(services: Services, info: StackInfo, events: int, log: Path) -> float:
    with services.database() as url, psycopg.connect(url, autocommit=True) as session:
        for agent in WAKING:
            # An agent without a start reads the topic from its beginning, as one activated before the topic was made.
            session.execute(
                "INSERT INTO rowcall.agents (name, version, topics) VALUES (%s, %s, %s)",
                (agent.name, agent.version, list(agent.topics)),
            )
        environment = {**info.environment(), "DATABASE_URL": url, "KAFKA_GROUP": f"bench-{uuid.uuid4().hex[:8]}"}
        with workers("intake", "waking", environment, log) as children:
            rate = _rate(session, OUR_JOBS, events, children)
        _check(session, OUR_JOBS, events)
    return rate


def _theirs(services: Services, info: StackInfo, events: int, mode: str, size: int, log: Path) -> float:
    with services.database(migrated=False) as url, psycopg.connect(url, autocommit=True) as session:
        environment = {
            **info.environment(),
            "BENCH_DATABASE": url,
            "BENCH_TOPIC": INTAKE_TOPIC,
            "KAFKA_GROUP": f"bench-{uuid.uuid4().hex[:8]}",
        }
        child = Child(python("benchmarks.faststream_peer", mode, str(size)), environment, log)
        with running([child]):
            until(lambda: _made(child, session), "the FastStream process has made its tables", seconds=60)
            rate = _rate(session, THEIR_JOBS, events, [child])
        _check(session, THEIR_JOBS, events)
    return rate


def _made(child: Child, session: psycopg.Connection) -> bool:
    child.check()
    return session.execute("SELECT to_regclass('jobs')").fetchone() != (None,)


def _rate(session: psycopg.Connection, table: str, events: int, children: Sequence[Child]) -> float:
    """Events a second between the first commit past a tenth of the jobs and the commit of the last one.

    The newest visible job tells how far a side is: one step down an index, which disturbs nobody.
    """
    jobs = events * len(WAKING)
    query = f"SELECT max(id) FROM {table}".encode()
    first: tuple[float, int] | None = None
    deadline = time.monotonic() + SECONDS
    while True:
        row = session.execute(query).fetchone()
        now, done = time.perf_counter(), (row[0] if row else None) or 0
        if first is None and done >= jobs // 10:
            first = (now, done)
        if done >= jobs:
            break
        if time.monotonic() > deadline:
            raise NotMeasured(f"{table}: {done} of {jobs} jobs after {SECONDS:g} s")
        for child in children:
            child.check()
        time.sleep(0.01)
    if first is None or first[1] >= done:
        raise NotMeasured(f"{table}: {jobs} jobs came at once; there is no middle to measure")
    return (done - first[1]) / len(WAKING) / (now - first[0])


def _check(session: psycopg.Connection, table: str, events: int) -> None:
    """At least so many events (a peer that is stopped early has read further), two jobs each, none twice."""
    query = f"SELECT count(*), count(DISTINCT event_id) FROM {table}".encode()
    row = session.execute(query).fetchone()
    if row is None or row[0] < events * len(WAKING) or row[0] != row[1] * len(WAKING):
        raise NotMeasured(f"{table} holds (jobs, events) = {row} after {events} events for {len(WAKING)} agents")
