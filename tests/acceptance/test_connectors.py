"""Connectors against the real Kafka Connect, Debezium and Postgres: apply, refuse, compare, restart, delete."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer

import debezium
from consumer import db
from consumer.connect import (
    ConnectClient,
    ConnectorFile,
    ConnectorStatus,
    Difference,
    apply,
    clashes,
    database_variables,
    diff,
    load,
)
from consumer.errors import ConfigurationError, OperatorError, Outage
from consumer.operate.capture import await_capture, standing
from consumer.records import Change, Coordinates
from consumer.schema_registry import SchemaRegistry
from consumer.wire import Decoder
from debezium import ports
from debezium.stack import StackInfo

CONNECTORS = Path(debezium.__file__).parent / "connectors"
TABLE = "CREATE TABLE public.parcels (id bigint PRIMARY KEY, weight int DEFAULT 7, price numeric(8,2))"


@dataclass(frozen=True)
class Bench:
    """A database of its own, and connector files whose names nobody else uses."""

    client: ConnectClient
    database: str
    files: list[ConnectorFile]

    @property
    def rows(self) -> ConnectorFile:
        return next(file for file in self.files if file.config["table.include.list"] == "public.parcels")

    @property
    def outbox(self) -> ConnectorFile:
        return next(file for file in self.files if file is not self.rows)

    def wait(self, name: str, ready: Callable[[ConnectorStatus], bool], seconds: float = 60.0) -> ConnectorStatus:
        """Wait until the connector's status is as wanted."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            status = self.client.status(name)
            if status is not None and ready(status):
                return status
            time.sleep(0.2)
        raise AssertionError(f"{name} did not get there: {self.client.status(name)}")


@pytest.fixture
def bench(stack: StackInfo, database: str) -> Iterator[Bench]:
    mark = f"t{uuid.uuid4().hex[:8]}"
    environment = database_variables(database) | {"SCHEMA_REGISTRY_URL": stack.schema_registry_url}
    files = []
    for file in load(CONNECTORS, environment):
        name = f"{file.name}_{mark}"
        own = {"slot.name": name, "publication.name": name, "topic.prefix": f"{file.name}{mark}"}
        if file.name == "rows":
            own["table.include.list"] = "public.parcels"
        files.append(replace(file, name=name, config={**file.config, **own}))
    with ConnectClient(stack.connect_url) as client, psycopg.connect(database, autocommit=True) as session:
        session.execute(TABLE)
        yield Bench(client, database, files)
        for name in client.names():
            if name.endswith(mark):
                client.delete(name)
        drop_slots(session)


def drop_slots(session: psycopg.Connection[tuple[object, ...]]) -> None:
    """Drop the slots of this database, which would keep it from being dropped, once their connectors have let go."""
    until = time.monotonic() + 30
    own = "FROM pg_replication_slots WHERE database = current_database()"
    while session.execute(f"SELECT 1 {own} AND active".encode()).fetchone() and time.monotonic() < until:
        time.sleep(0.2)
    session.execute(f"SELECT pg_drop_replication_slot(slot_name) {own}".encode())


def changed(file: ConnectorFile, **settings: str) -> ConnectorFile:
    """The file with other settings; underscores stand for dots."""
    return replace(file, config={**file.config, **{key.replace("_", "."): value for key, value in settings.items()}})


def test_apply_twice_changes_nothing_the_second_time(bench: Bench) -> None:
    first = apply(bench.client, bench.files)
    assert [applied.action for applied in first] == ["created", "created"]
    for file in bench.files:
        assert bench.wait(file.name, lambda status: status.healthy).reason == ""
    second = apply(bench.client, bench.files)
    assert [(applied.action, applied.changed, applied.advice) for applied in second] == [("unchanged", (), ())] * 2
    assert list(diff(bench.client, bench.files).values()) == [[], []]


def test_changed_setting_updates_that_connector_alone(bench: Bench) -> None:
    apply(bench.client, bench.files)
    again = apply(bench.client, [changed(bench.rows, poll_interval_ms="20"), bench.outbox])
    assert [applied.action for applied in again] == ["updated", "unchanged"]
    assert again[0].changed == (Difference("poll.interval.ms", "20", "10"),)
    running = bench.client.config(bench.rows.name)
    assert running is not None
    assert running["poll.interval.ms"] == "20"


def test_bad_value_is_refused_with_connects_own_message_and_nothing_is_touched(bench: Bench) -> None:
    with pytest.raises(ConfigurationError) as error:
        apply(bench.client, [bench.outbox, changed(bench.rows, poll_interval_ms="fast")])
    assert "poll.interval.ms" in str(error.value)
    assert "A long value is expected" in str(error.value)
    assert bench.client.status(bench.outbox.name) is None
    assert bench.client.status(bench.rows.name) is None


def test_database_that_refuses_the_login_is_named_without_the_password(bench: Bench) -> None:
    secret = "wrong-" + uuid.uuid4().hex
    file = changed(bench.rows, database_password=secret, database_user="nobody")
    file = replace(file, mask=replace(file.mask, secrets=file.mask.secrets | {secret}))
    with pytest.raises(ConfigurationError, match="nobody") as error:
        apply(bench.client, [file])
    assert secret not in str(error.value)


def test_class_that_connect_lacks_is_said_in_its_words(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match=r"org\.example\.Nothing"):
        apply(bench.client, [changed(bench.rows, connector_class="org.example.Nothing")])


@pytest.mark.parametrize("setting", ["slot.name", "publication.name", "topic.prefix"])
def test_name_of_a_running_connector_is_refused(bench: Bench, setting: str) -> None:
    apply(bench.client, [bench.outbox])
    file = changed(bench.rows, **{setting: bench.outbox.config[setting]})
    with pytest.raises(ConfigurationError, match=setting) as error:
        apply(bench.client, [file])
    assert error.value.code == "connector_clash"
    assert bench.client.status(file.name) is None
    assert len(clashes({file.name: file.config}, bench.client.configs())) == 1


def test_difference_shows_no_password(bench: Bench) -> None:
    apply(bench.client, bench.files)
    file = changed(bench.rows, database_password="another-secret", poll_interval_ms="30")
    (found,) = diff(bench.client, [file]).values()
    assert found == [Difference("database.password", "***", "***"), Difference("poll.interval.ms", "30", "10")]
    assert diff(bench.client, [replace(file, name="never-applied")]) == {"never-applied": None}


def test_failed_task_says_why_and_runs_after_the_cause_is_gone_and_a_restart(bench: Bench) -> None:
    file = changed(bench.rows, publication_autocreate_mode="disabled")
    apply(bench.client, [file])
    failed = bench.wait(file.name, lambda status: status.failed)
    assert not failed.healthy
    assert "ublication" in failed.tasks[0].reason
    assert "\n" not in failed.tasks[0].reason
    with psycopg.connect(bench.database, autocommit=True) as session:
        session.execute(f"CREATE PUBLICATION {file.config['publication.name']} FOR TABLE public.parcels".encode())
    bench.client.restart_failed(file.name)
    bench.wait(file.name, lambda status: status.healthy)


def test_a_failure_from_before_the_mending_is_not_taken_for_a_new_one(bench: Bench) -> None:
    wrong = changed(bench.rows, publication_autocreate_mode="disabled")
    with db.connect(bench.database, name="test") as session:
        apply(bench.client, [wrong])
        with pytest.raises(ConfigurationError, match="ublication"):
            await_capture(session, bench.client, [wrong], seconds=60)
        before = standing(session, bench.client, [wrong])
        apply(bench.client, [bench.rows])
        await_capture(session, bench.client, [bench.rows], seconds=60, before=before)
        running = standing(session, bench.client, [bench.rows])
        assert running[bench.rows.name].reader is not None


def test_what_ran_before_a_change_is_not_taken_for_its_success(bench: Bench) -> None:
    wrong = changed(bench.rows, publication_autocreate_mode="disabled", publication_name=f"no_{bench.rows.name}")
    with db.connect(bench.database, name="test") as session:
        apply(bench.client, [bench.rows])
        await_capture(session, bench.client, [bench.rows], seconds=60)
        before = standing(session, bench.client, [bench.rows])
        apply(bench.client, [wrong])
        with pytest.raises(ConfigurationError, match="ublication"):
            await_capture(session, bench.client, [wrong], seconds=60, before=before)


def test_deleted_connector_is_gone_and_a_second_delete_says_so(bench: Bench) -> None:
    apply(bench.client, [bench.outbox])
    bench.client.delete(bench.outbox.name)
    assert bench.client.status(bench.outbox.name) is None
    assert bench.client.config(bench.outbox.name) is None
    for attempt in (bench.client.delete, bench.client.restart_failed):
        with pytest.raises(OperatorError, match=bench.outbox.name):
            attempt(bench.outbox.name)


def test_connect_that_is_away_is_an_outage() -> None:
    with ConnectClient(f"http://127.0.0.1:{ports.choose()}") as client, pytest.raises(Outage) as error:
        client.names()
    assert error.value.dependency == "connect"


def test_something_else_in_connects_place_is_an_outage(stack: StackInfo) -> None:
    with ConnectClient(stack.schema_registry_url) as client, pytest.raises(Outage) as error:
        client.names()
    assert error.value.dependency == "connect"


def test_committed_row_arrives_as_a_change_with_null_kept(bench: Bench, stack: StackInfo) -> None:
    apply(bench.client, bench.files)
    bench.wait(bench.rows.name, lambda status: status.healthy)
    topic = f"{bench.rows.config['topic.prefix']}.public.parcels"
    with psycopg.connect(bench.database, autocommit=True) as session:
        wait_for_slot(session, bench.rows.config["slot.name"])
        session.execute("INSERT INTO public.parcels VALUES (1, NULL, 1.50)")
        row = session.execute("SELECT xmin::text::bigint FROM public.parcels").fetchone()
    ((key, value, coordinates),) = consume(stack, topic, 1)
    with SchemaRegistry(stack.schema_registry_url) as registry:
        change = Decoder(registry.schema, epoch="1").decode(key, value, [], coordinates)
    assert isinstance(change, Change)
    assert change.after is not None
    assert {name: str(value) for name, value in change.after.items()} == {"id": "1", "weight": "None", "price": "1.50"}
    assert row is not None
    assert change.origin.txid == row[0]


def wait_for_slot(session: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    until = time.monotonic() + 30
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    while session.execute(query, (name,)).fetchone() is None:
        assert time.monotonic() < until, f"slot {name} is not in use"
        time.sleep(0.1)


def consume(stack: StackInfo, topic: str, count: int) -> list[tuple[bytes | None, bytes | None, Coordinates]]:
    settings = {
        "bootstrap.servers": stack.kafka_bootstrap_servers,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
        "allow.auto.create.topics": False,
    }
    consumer = Consumer(settings)
    found: list[tuple[bytes | None, bytes | None, Coordinates]] = []
    try:
        consumer.subscribe([f"^{topic}$"])
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                place = Coordinates(topic, message.partition() or 0, message.offset() or 0)
                found.append((message.key(), message.value(), place))
    finally:
        consumer.close()
    assert len(found) == count
    return found
