"""Intake on the real Kafka: where it starts, what it does when partitions and services go and come; nothing is lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg.rows import dict_row
from pydantic import BaseModel

import debezium
from consumer import activate, db
from consumer.agents.door import Agent
from consumer.connect import ConnectClient, apply, database_variables, load
from consumer.errors import ConfigurationError, Outage
from consumer.intake import Intake
from consumer.kafka import Brokers
from consumer.settings import Settings
from consumer.telemetry import Health
from consumer.wire import Decoder
from debezium.stack import StackInfo
from tests.envelopes import ORDERS, change, order

CONNECTORS = Path(debezium.__file__).parent / "connectors"
SECONDS = 40.0


class Answer(BaseModel):
    """What the test agents would answer."""

    text: str


def eventually(what: str, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


@dataclass
class Rig:
    """A database, a topic and a group of its own."""

    stack: StackInfo
    database: str
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:10]}")
    sent: int = 0

    def __post_init__(self) -> None:
        self.settings = Settings.model_validate(
            {
                "DATABASE_URL": self.database,
                "KAFKA_BOOTSTRAP_SERVERS": self.stack.kafka_bootstrap_servers,
                "SCHEMA_REGISTRY_URL": self.stack.schema_registry_url,
                "KAFKA_GROUP": self.topic,
                "ROWCALL_OWN_SOURCES": (),
            }
        )
        self.look = psycopg.connect(self.database, autocommit=True, row_factory=dict_row)
        quiet: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.stack.kafka_bootstrap_servers,
            "log_level": 0,
        }
        self.admin = AdminClient(quiet)
        self.producer = Producer({**quiet, "linger.ms": 0})
        self.schemas: Callable[[int], Any] = ORDERS.schemas.__getitem__

    def agent(self, name: str = "a", **options: Any) -> Agent:
        """An agent on the topic."""
        return Agent(name=name, version=1, answer=Answer, topics=[self.topic], **options)

    def create(self, partitions: int = 1) -> None:
        """Make the topic."""
        self.admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(20)

    def activate(self, *agents: Agent) -> None:
        """What `rowcall agents activate` does."""
        session = db.connect(self.database, name="activate")
        activate.activate(session, Brokers(self.settings), agents)
        session.close()

    def send(self, count: int, *, partition: int = 0) -> None:
        """Put the next `count` changes on the topic."""
        for number in range(self.sent, self.sent + count):
            now_ms = int(time.time()) * 1000
            message = change(ORDERS, "c", after=order(number), lsn=number, txId=number, ts_ms=now_ms)
            self.producer.produce(self.topic, message.value, message.key, partition=partition)
        self.sent += count
        self.producer.flush(20)

    @contextmanager
    def intake(self, *agents: Agent, **settings: Any) -> Iterator[Intake]:
        """A running intake; what it raised is raised at the end."""
        intake = Intake(
            self.settings.model_copy(update=settings),
            agents,
            decoder=Decoder(lambda schema_id: self.schemas(schema_id), epoch="1"),
            health=Health(),
        )
        stop, raised = threading.Event(), list[BaseException]()

        def turn() -> None:
            try:
                intake.run(stop)
            except ConfigurationError as error:
                raised.append(error)

        thread = self.thread = threading.Thread(target=turn)
        thread.start()
        try:
            yield intake
        finally:
            stop.set()
            thread.join(30)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    def ends(self) -> None:
        """Wait until the intake ends by itself."""
        self.thread.join(SECONDS)
        assert not self.thread.is_alive(), "intake goes on"

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """What the database says."""
        return self.look.execute(query.encode(), parameters).fetchall()

    def keys(self, agent: str = "a") -> list[int]:
        """The keys of the agent's jobs, in the order of their jobs."""
        found = self.rows("SELECT key_text FROM rowcall.agent_jobs WHERE job_type = %s ORDER BY id", agent)
        return [int(row["key_text"]) for row in found]

    def has(self, numbers: Sequence[int], agent: str = "a") -> None:
        """Wait until the agent has exactly one job for each of these, and no other."""
        eventually(f"{agent} has {len(numbers)} jobs", lambda: len(self.keys(agent)) >= len(numbers))
        assert sorted(self.keys(agent)) == sorted(numbers)


@pytest.fixture
def rig(stack: StackInfo, database: str) -> Iterator[Rig]:
    opened = Rig(stack, database)
    yield opened
    opened.look.close()


def test_what_was_sent_becomes_jobs_in_order_within_milliseconds(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with rig.intake(rig.agent()) as intake:
        eventually("the partition is read", lambda: len(intake.partitions) == 1)
        rig.send(500)
        rig.has(range(500))
        assert rig.keys() == list(range(500))
        waits = []
        for _ in range(20):
            began = time.perf_counter()
            rig.send(1)
            eventually("the job", lambda: len(rig.keys()) == rig.sent)
            waits.append(time.perf_counter() - began)
        assert sorted(waits)[10] < 0.25
        eventually("no lag", lambda: intake.lag == 0 and intake.paused_reason is None)


def test_a_restart_goes_on_from_the_stored_position_whatever_kafka_has_committed(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with rig.intake(rig.agent()):
        rig.send(30)
        rig.has(range(30))
    rig.send(30)
    with rig.intake(rig.agent()):
        rig.has(range(60))
    # A database restored to an earlier moment forgets jobs and position together, and reads them again.
    rig.rows("DELETE FROM rowcall.agent_jobs WHERE source_offset >= 10 RETURNING 1")
    rig.rows("DELETE FROM rowcall.processed_events RETURNING 1")
    rig.rows("UPDATE rowcall.positions SET next_offset = 10 RETURNING 1")
    with rig.intake(rig.agent()):
        rig.has(range(60))


def test_a_topic_that_does_not_exist_yet_is_read_from_its_beginning(rig: Rig) -> None:
    rig.activate(rig.agent())
    with rig.intake(rig.agent()) as intake:
        time.sleep(1.5)
        assert intake.paused_reason is None
        rig.create(partitions=2)
        rig.send(5, partition=0)
        rig.send(5, partition=1)
        rig.has(range(10))


def test_a_new_agent_starts_at_now_and_the_others_lose_nothing(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent("a"))
    rig.send(10)
    rig.activate(rig.agent("b"))
    rig.send(10)
    with rig.intake(rig.agent("a"), rig.agent("b")):
        rig.has(range(20), "a")
        rig.has(range(10, 20), "b")


def test_an_agent_activated_while_intake_lacks_its_code_misses_no_event(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent("a"))
    with rig.intake(rig.agent("a")) as intake:
        rig.send(10)
        rig.has(range(10), "a")
        rig.activate(rig.agent("b"))
        rig.send(10)
        eventually("the topic is left alone", lambda: not intake.partitions)
        assert rig.keys("a") == list(range(10))
    with rig.intake(rig.agent("a"), rig.agent("b")):
        rig.has(range(20), "a")
        rig.has(range(10, 20), "b")


def test_offsets_that_kafka_has_deleted_leave_a_row_that_names_them(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with rig.intake(rig.agent()):
        rig.send(10)
        rig.has(range(10))
    rig.send(10)
    for future in rig.admin.delete_records([TopicPartition(rig.topic, 0, 15)]).values():
        future.result(20)
    with rig.intake(rig.agent()):
        rig.has([*range(10), *range(15, 20)])
    (letter,) = rig.rows("SELECT * FROM rowcall.dead_letters")
    assert (letter["error_code"], letter["offset"]) == ("offset_gap", 10)
    assert "offsets 10 to 14" in letter["error"]


def test_members_that_come_and_go_share_the_partitions_and_repeat_nothing(rig: Rig) -> None:
    rig.create(partitions=4)
    rig.activate(rig.agent())
    with rig.intake(rig.agent()) as first:
        eventually("the first reads all", lambda: len(first.partitions) == 4)
        for partition in range(4):
            rig.send(50, partition=partition)
        with rig.intake(rig.agent()) as second:
            eventually("both read two", lambda: len(first.partitions) == len(second.partitions) == 2)
            for partition in range(4):
                rig.send(50, partition=partition)
            rig.has(range(400))
        eventually("the first reads all again", lambda: len(first.partitions) == 4)
        rig.send(50, partition=3)
        rig.has(range(450))
    assert rig.rows("SELECT * FROM rowcall.dead_letters") == []


def test_lost_database_connections_lose_and_repeat_nothing(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with rig.intake(rig.agent()) as intake:
        for _ in range(5):
            rig.send(100)
            rig.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN"
                     " ('rowcall intake', 'rowcall admission') AND datname = current_database()")  # fmt: skip
            time.sleep(0.2)
        rig.has(range(500))
        eventually("it goes on", lambda: intake.paused_reason is None)
    assert rig.rows("SELECT * FROM rowcall.dead_letters") == []


def test_a_registry_outage_is_waited_for_and_is_no_poison(rig: Rig) -> None:
    def away(schema_id: int) -> Any:
        raise Outage("the registry does not answer", dependency="registry")

    rig.create()
    rig.activate(rig.agent())
    rig.schemas = away
    with rig.intake(rig.agent()) as intake:
        rig.send(10)
        eventually("it waits", lambda: "registry" in (intake.paused_reason or ""))
        time.sleep(1)
        assert rig.keys() == []
        rig.schemas = ORDERS.schemas.__getitem__
        rig.has(range(10))
    assert rig.rows("SELECT * FROM rowcall.dead_letters") == []


def test_a_backlog_over_the_limit_stops_reading_until_it_is_worked_off(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with rig.intake(rig.agent(), backlog_limit=20, intake_batch=10) as intake:
        rig.send(30)
        eventually("it stops", lambda: "jobs wait" in (intake.paused_reason or ""))
        before = len(rig.keys())
        rig.send(30)
        time.sleep(1.5)
        assert 20 < before == len(rig.keys())
        rig.rows("UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = rowcall.now() RETURNING 1")
        rig.has(range(60))


def test_brokers_that_cannot_be_found_or_a_database_that_is_not_there_end_it_with_one_clear_line(rig: Rig) -> None:
    rig.create()
    rig.activate(rig.agent())
    with (
        pytest.raises(ConfigurationError, match="no_such_database"),
        rig.intake(
            rig.agent(),
            database_url=Settings.model_validate(
                {"DATABASE_URL": rig.database.rpartition("/")[0] + "/no_such_database"}
            ).database_url,
        ),
    ):
        rig.ends()
    with (
        pytest.raises(ConfigurationError, match="cannot be resolved"),
        rig.intake(rig.agent(), kafka_bootstrap_servers="no-such-host.invalid:9092"),
    ):
        rig.ends()


def test_rows_committed_in_postgres_arrive_as_jobs_through_debezium(rig: Rig) -> None:
    mark = f"i{uuid.uuid4().hex[:8]}"
    environment = database_variables(rig.database) | {"SCHEMA_REGISTRY_URL": rig.stack.schema_registry_url}
    rows = next(file for file in load(CONNECTORS, environment) if file.name == "rows")
    own = {
        "slot.name": mark,
        "publication.name": mark,
        "topic.prefix": mark,
        "table.include.list": "public.parcels",
    }
    rig.look.execute("CREATE TABLE public.parcels (id bigint PRIMARY KEY, weight int DEFAULT 7)")
    rig.look.execute("ALTER TABLE public.parcels REPLICA IDENTITY FULL")
    rig.topic = f"{mark}.public.parcels"
    settings = rig.settings.model_copy(update={"own_sources": (mark,)})
    heavy = rig.agent()

    @heavy.when
    def is_heavy(message: Any) -> bool:
        return message.row["weight"] is None or message.row["weight"] > 10

    with ConnectClient(rig.stack.connect_url) as client:
        apply(client, [replace(rows, name=mark, config={**rows.config, **own})])
        try:
            rig.activate(heavy)
            intake = Intake(settings, [heavy], health=Health())
            stop = threading.Event()
            thread = threading.Thread(target=intake.run, args=(stop,))
            thread.start()
            eventually("the connector runs", lambda: _healthy(client, mark))
            with rig.look.transaction():
                for number in range(20):
                    rig.look.execute("INSERT INTO public.parcels VALUES (%s, %s)", (number, number * 2 or None))
            try:
                rig.has([0, *range(6, 20)])
            finally:
                stop.set()
                thread.join(30)
        finally:
            client.delete(mark)
            _drop_slots(rig)


def _healthy(client: ConnectClient, name: str) -> bool:
    status = client.status(name)
    return status is not None and status.healthy


def _drop_slots(rig: Rig) -> None:
    own = "FROM pg_replication_slots WHERE database = current_database()"
    eventually("the slot is let go", lambda: not rig.rows(f"SELECT 1 AS one {own} AND active"))
    rig.rows(f"SELECT pg_drop_replication_slot(slot_name) {own}")
