"""What can be seen from outside: the topics that the log became, and the receiver's journal.

Re-sent records are told from second outcomes by what identifies them: a row by its key, an event by its header `id`, an
effect by being acted on.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.chaos.agents import LEDGER_TOPIC, ORDERS_TOPIC, RESULT_TOPIC
from consumer.kafka import read_topic
from consumer.records import Change, Coordinates
from consumer.records.change import Row
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.wire import Decoder


class Journal:
    """Reads the receiver's journal as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.acted: Counter[int] = Counter()
        """How often each order was acted on."""
        self.requests = 0
        self.repeats = 0
        """Requests under a key that had been acted on before."""
        self.last = -1
        """The highest order acted on."""

    def read(self) -> None:
        """Take in what is new; whole lines only."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                entry = json.loads(line)
                self.requests += 1
                if entry["acted"]:
                    self.acted[entry["order"]] += 1
                    self.last = max(self.last, entry["order"])
                else:
                    self.repeats += 1


class Log:
    """Reads the topics; asks the registry for their schemas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._decoder = Decoder(SchemaRegistry(settings.schema_registry_url).schema, epoch=settings.epoch)
        self.resent: dict[str, int] = {}
        """Records beyond the first of the same row or event, by topic, as last read."""

    def orders(self) -> set[int]:
        """The orders whose insertion is in the log."""
        return {row["id"] for row in self._inserted(ORDERS_TOPIC)}

    def ledger(self) -> Counter[int]:
        """How many rows of the ledger each order has, by the log."""
        return Counter(row["order_id"] for row in self._inserted(LEDGER_TOPIC))

    def results(self) -> Counter[int]:
        """How many events each order has on the result topic."""
        records = read_topic(self._settings, RESULT_TOPIC)
        events = {dict(record.headers or [])["id"]: int(record.key or b"-1") for record in records}
        self.resent[RESULT_TOPIC] = len(records) - len(events)
        return Counter(events.values())

    def _inserted(self, topic: str) -> list[Row]:
        records = read_topic(self._settings, topic)
        rows: dict[int, Row] = {}
        for record in records:
            place = Coordinates(record.topic, record.partition, record.offset)
            message = self._decoder.decode(record.key, record.value, record.headers or [], place)
            if isinstance(message, Change):
                rows[message.row["id"]] = message.row
        self.resent[topic] = len(records) - len(rows)
        return list(rows.values())


def repeated_calls(log: Path) -> tuple[int, int]:
    """(model calls received, of them repeats of an idempotency key) by the scripted endpoint's log."""
    keys: Counter[str] = Counter()
    with log.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                keys[json.loads(line)["idempotency_key"]] += 1
    return sum(keys.values()), sum(keys.values()) - len(keys)
