"""What the admission tests share: a pipeline on one database, fed without Kafka, and messages to feed it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel

from consumer import dedup
from consumer.agents.door import Agent
from consumer.dedup import Admitted, Calendar
from consumer.intake import Pipeline
from consumer.kafka import Place, Record
from consumer.positions import PartitionId
from consumer.settings import Settings
from consumer.wire import Decoder
from tests.envelopes import ORDERS, Message, change, order

CLUSTER = "cluster-1"
DAY_MS = 86_400_000


class Answer(BaseModel):
    """What the test agents would answer."""

    text: str


def agent(name: str, **options: Any) -> Agent:
    """An agent on the orders topic."""
    return Agent(name=name, version=1, answer=Answer, topics=[ORDERS.topic], **options)


@dataclass
class Rig:
    """A pipeline on one database, fed without Kafka."""

    url: str
    agents: Sequence[Agent]
    own_sources: tuple[str, ...] = ()
    ids: dict[Place, PartitionId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = Settings.model_validate({"DATABASE_URL": self.url, "ROWCALL_OWN_SOURCES": self.own_sources})
        self.session = dedup.open_session(self.url, name="test")
        self.calendar = Calendar(self.settings.dedup_days)
        self.calendar.refresh(self.session)
        self.decoder = Decoder(ORDERS.schemas.__getitem__, epoch="1")
        self.pipeline = Pipeline(self.settings, self.decoder, self.session, self.calendar)
        self.look = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)

    def take(self, records: Sequence[Record], *, stamp: str | None = None, starts: int = 0) -> Admitted:
        """Admit records of any topic to every agent."""
        places = {Place(record.topic, record.partition) for record in records}
        self.ids |= {place: PartitionId(f"id-of-{place.topic}", place.partition) for place in places}
        return self.pipeline.take(
            records,
            cluster=CLUSTER,
            ids=self.ids,
            subscribed={place: [(item, starts) for item in self.agents] for place in places},
            stamp=stamp,
        )

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """What the database says."""
        return self.look.execute(query.encode(), parameters).fetchall()

    def jobs(self) -> list[tuple[str, str, str]]:
        """(agent, key, status) in the order of their IDs."""
        found = self.rows("SELECT job_type, key_text, status FROM rowcall.agent_jobs ORDER BY id")
        return [(row["job_type"], row["key_text"], row["status"]) for row in found]

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, oldest first."""
        return self.rows("SELECT * FROM rowcall.dead_letters ORDER BY id")

    def position(self, topic: str = ORDERS.topic) -> int | None:
        """The stored position of partition 0."""
        found = self.rows("SELECT next_offset FROM rowcall.positions WHERE topic = %s AND partition = 0", topic)
        return found[0]["next_offset"] if found else None

    def close(self) -> None:
        """Close what was opened."""
        self.session.close()
        self.look.close()


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def event(number: int, **source: Any) -> Message:
    """The change of order `number`; the same number is the same event."""
    values = {"lsn": 1000 + number, "txId": 700 + number, "ts_ms": now_ms() // DAY_MS * DAY_MS} | source
    return change(ORDERS, "c", after=order(number), **values)


def at(offset: int, message: Message, *, partition: int = 0, **changes: Any) -> Record:
    """A message at its place."""
    record = Record(message.topic, partition, offset, message.key, message.value, message.headers, 1_760_000_000_000)
    return record._replace(**changes)


def sent(offset: int, event_id: str, *, data: Mapping[str, Any] | None = None, **headers: str | bytes) -> Record:
    """An application event."""
    values = [("id", event_id.encode("utf-8", "surrogateescape"))]
    values += [(name, text if isinstance(text, bytes) else text.encode()) for name, text in headers.items()]
    return Record("orders.triaged", 0, offset, b"7", orjson.dumps(data or {"n": 1}), list(values), None)
