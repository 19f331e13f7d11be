"""One FastStream process of intake_over_faststream: `python -m benchmarks.faststream_peer MODE MAX_RECORDS`.

Does what intake does for two agents with what an application built on FastStream would use: the confluent broker, the
values decoded by fastavro, an event ID from the log position, one transaction with the event IDs of both agents
(`ON CONFLICT DO NOTHING RETURNING`) and a job for each that is new; offsets are committed after it. MODE `batch` takes
up to MAX_RECORDS messages a transaction with `batch=True`; `copy` does too, but writes its jobs by COPY; `single` takes
one message a transaction. FastStream is at its fastest: raw bodies (its own decoder would parse each message again), no
dependency injection, no logs, no delay between polls. Tables are plain, without lanes, checks or history.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import fastavro
import httpx
import orjson
import psycopg
from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker

TABLES = """
CREATE TABLE seen (agent text, event_id text, seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent, event_id));
CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, agent text NOT NULL, event_id text NOT NULL,
    status text NOT NULL DEFAULT 'PENDING', payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
"""
AGENTS = ("first", "second")
DEDUP = """
INSERT INTO seen (agent, event_id) SELECT * FROM unnest(%s::text[], %s::text[]) ON CONFLICT DO NOTHING
RETURNING agent, event_id
"""
JOBS = "INSERT INTO jobs (agent, event_id, payload) SELECT * FROM unnest(%s::text[], %s::text[], %s::json[])"
FRAME_BYTES = 5


class Intake:
    """Decodes messages and stores them, on one session."""

    def __init__(self, session: psycopg.AsyncConnection, registry: str, *, copy: bool) -> None:
        self._session = session
        self._copy = copy
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    async def take(self, values: Sequence[bytes]) -> None:
        """One transaction for these messages."""
        events: dict[str, str] = {}
        for value in values:
            change = self._decode(value)
            source, row = change["source"], change["after"]
            if not all(agent_wants(row) for _ in AGENTS):
                continue
            event_id = f"{source['table']}:{source['lsn']}:{source['txId']}:{row['id']}"
            events[event_id] = orjson.dumps(
                {"before": change["before"], "after": row, "source": source}, default=str
            ).decode()
        pairs = [(agent, event_id) for event_id in events for agent in AGENTS]
        async with self._session.transaction():
            cursor = await self._session.execute(DEDUP, (*map(list, zip(*pairs, strict=True)),))
            fresh = await cursor.fetchall()
            if fresh and self._copy:
                async with cursor.copy("COPY jobs (agent, event_id, payload) FROM STDIN") as copy:
                    for agent, event_id in fresh:
                        await copy.write_row((agent, event_id, events[event_id]))
            elif fresh:
                columns = zip(*[(agent, event_id, events[event_id]) for agent, event_id in fresh], strict=True)
                await self._session.execute(JOBS, (*map(list, columns),))

    async def take_one(self, value: bytes) -> None:
        """One transaction for one message."""
        await self.take([value])

    def _decode(self, value: bytes) -> Any:
        schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
        schema = self._schemas.get(schema_id)
        if schema is None:
            answer = httpx.get(f"{self._registry}/apis/ccompat/v7/schemas/ids/{schema_id}").raise_for_status().json()
            schema = self._schemas[schema_id] = fastavro.parse_schema(orjson.loads(answer["schema"]))
        stream = io.BytesIO(value)
        stream.seek(FRAME_BYTES)
        return fastavro.schemaless_reader(stream, schema)


def agent_wants(row: dict[str, Any]) -> bool:
    """A trigger that reads every column."""
    return all(value is not None for value in row.values())


async def _raw(message: Any) -> Any:
    return message.body


async def main(mode: str, max_records: int) -> None:
    """Consume until SIGTERM."""
    broker = KafkaBroker(
        os.environ["KAFKA_BOOTSTRAP_SERVERS"], logger=None, apply_types=False, log_level=logging.CRITICAL
    )
    session = await psycopg.AsyncConnection.connect(os.environ["BENCH_DATABASE"], autocommit=True)
    await session.execute(TABLES)
    intake = Intake(session, os.environ["SCHEMA_REGISTRY_URL"], copy=mode == "copy")
    options: dict[str, Any] = {
        "group_id": os.environ["KAFKA_GROUP"],
        "auto_offset_reset": "earliest",
        "ack_policy": AckPolicy.ACK,
        "polling_interval": 0.05,
        "decoder": _raw,
    }
    topic = os.environ["BENCH_TOPIC"]
    if mode in ("batch", "copy"):
        broker.subscriber(topic, batch=True, max_records=max_records, **options)(intake.take)
    else:
        broker.subscriber(topic, **options)(intake.take_one)

    await FastStream(broker, logger=None).run(log_level=logging.CRITICAL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
