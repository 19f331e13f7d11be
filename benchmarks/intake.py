"""intake_over_fastavro: intake's own path, without Kafka, against nothing but reading the same messages by fastavro.

Ours is `consumer.intake.Pipeline.take_all`, as the loop of intake works while messages flow: decode to `Change`, event
ID, two triggers that read every column, own-write lookup, and one durable transaction a batch with positions, event IDs
and two jobs an event. The reference is `fastavro.schemaless_reader` over the values alone. Both take the same batches,
one side after the other, in short rounds.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from typing import Any, Final

import fastavro

from benchmarks.agents import INTAKE_TOPIC, WAKING
from benchmarks.figures import Measured, NotMeasured, Rounds, significant
from benchmarks.messages import take_transactions, updates
from benchmarks.services import Services
from consumer import activate, db, dedup
from consumer.intake import Pipeline
from consumer.intake.routing import Subscriptions
from consumer.kafka import Place, Record, Topic
from consumer.positions import PartitionId
from consumer.settings import load
from consumer.wire import Decoder
from tests.envelopes import ORDERS

BATCH: Final = 2000
"""The default of ROWCALL_INTAKE_BATCH."""
PARTITIONS: Final = 6


class _NoBrokers:
    """Topics that do not exist yet: agents activated now read them from their beginning."""

    def cluster_id(self) -> str:
        """A cluster of this name alone."""
        return "bench"

    def topics(self, names: Any) -> dict[str, Topic]:
        """None."""
        return {}

    def ends(self, places: Any) -> dict[Place, int]:
        """None."""
        return {}


def measure(services: Services) -> Measured:
    """Events a second by both, in rounds of several batches."""
    rounds, batches = (2, 3) if services.quick else (9, 6)
    total = BATCH * batches * (rounds + 1)
    with (
        services.database() as url,
        contextlib.closing(dedup.open_session(url, name="intake")) as writer,
        contextlib.closing(db.connect(url, name="intake reader")) as reader,
    ):
        records = _records(total, take_transactions(url, total))
        settings = load({"DATABASE_URL": url})
        calendar = dedup.Calendar(settings.dedup_days)
        calendar.refresh(writer)
        activate.activate(writer, _NoBrokers(), WAKING)
        decoder = Decoder(ORDERS.schemas.__getitem__, epoch=settings.epoch)
        pipeline = Pipeline(settings, decoder, writer, calendar, reader=reader)
        schema = fastavro.parse_schema(ORDERS.value_schema)
        parts = [records[start : start + BATCH * batches] for start in range(0, total, BATCH * batches)]
        _ours(pipeline, parts[0]), _bare(parts[0], schema)  # plans and caches, of both sides
        pairs = []
        cpu = {"ours": 0.0, "reference": 0.0}
        for part in parts[1:]:
            start = time.process_time()
            ours = _ours(pipeline, part)
            middle = time.process_time()
            pairs.append((ours, _bare(part, schema)))
            cpu["ours"] += middle - start
            cpu["reference"] += time.process_time() - middle
        _check(writer, total)
    result = Rounds([BATCH * batches / pair[0] for pair in pairs], [BATCH * batches / pair[1] for pair in pairs])
    events = BATCH * batches * rounds
    raw = {
        "batch": BATCH,
        "batches_a_round": batches,
        "value_bytes": len(records[0].value or b""),
        # Ours needs two cores to itself (Postgres works meanwhile): on a busy machine the ratio of times falls below
        # that of the CPU this process used.
        "cpu_us_an_event": {side: significant(seconds / events * 1e6) for side, seconds in cpu.items()},
        **result.raw(),
    }
    return Measured({"intake_over_fastavro": result.ratio}, raw)


def _ours(pipeline: Pipeline, records: Sequence[Record]) -> float:
    places = [Place(INTAKE_TOPIC, number) for number in range(PARTITIONS)]
    ids = {place: PartitionId("bench-topic", place.partition) for place in places}
    subscribed: Subscriptions = {place: [(agent, 0) for agent in WAKING] for place in places}
    batches = [records[start : start + BATCH] for start in range(0, len(records), BATCH)]
    began = time.perf_counter()
    jobs = 0
    for done in pipeline.take_all(batches, cluster="bench", ids=ids, subscribed=subscribed):
        jobs += done.jobs.total()
    seconds = time.perf_counter() - began
    if jobs != len(records) * len(WAKING):
        raise NotMeasured(f"{len(records)} events gave {jobs} jobs")
    return seconds


def _records(count: int, first_txid: int) -> list[Record]:
    now_ms = int(time.time() * 1000)
    return [
        Record(INTAKE_TOPIC, number % PARTITIONS, number // PARTITIONS, key, value, None, now_ms)
        for number, (key, value) in enumerate(updates(count, first_txid=first_txid))
    ]


def _bare(batch: Sequence[Record], schema: Any) -> float:
    read, stream = fastavro.schemaless_reader, io.BytesIO
    values = [record.value or b"" for record in batch]
    began = time.perf_counter()
    for value in values:
        data = stream(value)
        data.seek(5)
        read(data, schema)
    return time.perf_counter() - began


def _check(session: db.SyncSession, events: int) -> None:
    """Every event has its two jobs and its two dedup rows, and no dead letter."""
    row = session.execute(
        "SELECT (SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'PENDING') AS jobs,"
        " (SELECT count(*) FROM rowcall.processed_events) AS seen, (SELECT count(*) FROM rowcall.dead_letters) AS dead"
    ).fetchone()
    wanted = {"jobs": events * len(WAKING), "seen": events * len(WAKING), "dead": 0}
    if row != wanted:
        raise NotMeasured(f"after {events} events the database has {row}, not {wanted}")
