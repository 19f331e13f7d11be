"""The local stack for real: Postgres, Kafka, Connect with Debezium and the registry, from registries' packages.

One stack serves the whole file, attached to this process, so a killed test run leaves nothing behind. The tests build
on it in order: connectors, then what travels through them, then faults and restarts.
"""

from __future__ import annotations

import io
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import httpx
import psycopg
import pytest
from confluent_kafka import Consumer, Message
from psycopg.conninfo import conninfo_to_dict

import debezium
from debezium import stack
from debezium.reporting import Reporter
from debezium.stack import StackInfo

CONNECTORS = Path(debezium.__file__).parent / "connectors"
QUIET = Reporter(quiet=True)
# One nullable column with a default for each kind of type that a converter treats in its own way.
COLUMNS = {
    "amount": "int DEFAULT 7",
    "price": "numeric(10,2) DEFAULT 9.99",
    "reference": "uuid DEFAULT '6f8e9f6e-3c8e-4c43-9c55-0d9d5f3f1a10'",
    "placed_at": "timestamptz DEFAULT '2020-01-01T00:00:00Z'",
    "tags": "text[] DEFAULT '{a,b}'",
    "urgent": "bool DEFAULT true",
    "due": "date DEFAULT '2020-01-01'",
    "note": "varchar(40) DEFAULT 'none'",
    "document": "jsonb DEFAULT '{\"a\": 1}'",
    "weight": "double precision DEFAULT 1.5",
    "image": "bytea DEFAULT '\\x01'",
}
TABLES = f"""
CREATE TABLE public.customers (id bigint PRIMARY KEY, name text);
CREATE TABLE public.orders (id bigint PRIMARY KEY, {", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())});
ALTER TABLE public.orders REPLICA IDENTITY FULL;
CREATE TABLE public.other (id bigint);
CREATE SCHEMA rowcall;
CREATE TABLE rowcall.connector_heartbeats (connector text PRIMARY KEY, beat_at timestamptz NOT NULL);
CREATE TABLE rowcall.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL, key text,
    payload bytea, event_type text, content_type text, traceparent text, occurred_at text, cause text);
"""
OUTBOX_INSERT = """
INSERT INTO rowcall.outbox (topic, key, payload, event_type, content_type, traceparent, occurred_at, cause)
VALUES (%s, %s, %s, 'order.triaged', 'avro/binary', '00-trace', '2026-01-01T00:00:00Z', %s) RETURNING id
"""


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    directory = tmp_path_factory.mktemp("stack")
    try:
        yield stack.start(directory, attached=True, reporter=QUIET)
    finally:
        stack.stop(directory, remove=True)


@pytest.fixture(scope="module")
def early_event(info: StackInfo) -> str:
    """An outbox row that was there before its connector; the tables are made here too."""
    with psycopg.connect(info.database_url) as connection:
        connection.execute(TABLES)
        row = connection.execute(OUTBOX_INSERT, ["early", "k", b"early", None]).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture(scope="module")
def connectors(info: StackInfo, early_event: str) -> StackInfo:
    """Both connectors, the outbox one after the other."""
    for name in ("rows", "outbox"):
        apply(info, name)
    return info


def apply(info: StackInfo, name: str) -> None:
    found = conninfo_to_dict(info.database_url)
    known = {
        "DATABASE_HOST": found["host"],
        "DATABASE_PORT": found["port"],
        "DATABASE_USER": found["user"],
        "DATABASE_PASSWORD": found["password"],
        "DATABASE_NAME": found["dbname"],
        "SCHEMA_REGISTRY_URL": info.schema_registry_url,
    }
    text = re.sub(r"\$\{([A-Z_]+)\}", lambda match: str(known[match[1]]), (CONNECTORS / f"{name}.json").read_text())
    # The beat is shortened so that the test of an idle slot does not wait for ten seconds.
    config = json.loads(text) | {"heartbeat.interval.ms": "1000"}
    validate = f"{info.connect_url}/connector-plugins/PostgresConnector/config/validate"
    checked = httpx.put(validate, json=config | {"name": name}, timeout=60).json()
    assert checked["error_count"] == 0, [c["value"] for c in checked["configs"] if (c["value"] or {}).get("errors")]
    httpx.put(f"{info.connect_url}/connectors/{name}/config", json=config, timeout=60).raise_for_status()
    until(lambda: task_states(info, name) == ["RUNNING"], f"connector {name} runs")
    until(lambda: slot_active(info, config["slot.name"]), f"slot of {name} is read")


def task_states(info: StackInfo, name: str) -> list[str]:
    try:
        answer = httpx.get(f"{info.connect_url}/connectors/{name}/status", timeout=10)
    except httpx.TransportError:
        return []
    return [task["state"] for task in answer.json().get("tasks", [])] if answer.is_success else []


def slot_active(info: StackInfo, slot: str) -> bool:
    with psycopg.connect(info.database_url) as connection:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return connection.execute(query, [slot]).fetchone() == (True,)


def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def read(info: StackInfo, topic: str, wanted: Callable[[list[Message]], bool], seconds: float = 30) -> list[Message]:
    """Every message of a topic from its beginning, until `wanted` holds for them."""
    settings = {
        "bootstrap.servers": info.kafka_bootstrap_servers,
        "group.id": f"test-{time.monotonic_ns()}",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
        "allow.auto.create.topics": False,
        # A broker that is being restarted is part of these tests.
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    messages: list[Message] = []
    deadline = time.monotonic() + seconds
    try:
        while not wanted(messages):
            assert time.monotonic() < deadline, f"{topic}: {len(messages)} messages, not those wanted"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                messages.append(message)
    finally:
        consumer.close()
    return messages


def decode(info: StackInfo, message: Message) -> dict[str, Any]:
    """The Debezium envelope of a message framed with a magic byte and the schema's id."""
    body = message.value()
    assert isinstance(body, bytes)
    magic, identifier = struct.unpack(">bI", body[:5])
    assert magic == 0
    answer = httpx.get(f"{info.schema_registry_url}/apis/ccompat/v7/schemas/ids/{identifier}").raise_for_status()
    schema = fastavro.parse_schema(json.loads(answer.json()["schema"]))
    record = fastavro.schemaless_reader(io.BytesIO(body[5:]), schema, None)
    assert isinstance(record, dict)
    return record


def insert_order(info: StackInfo, identifier: int) -> None:
    with psycopg.connect(info.database_url) as connection:
        connection.execute("INSERT INTO public.orders (id) VALUES (%s)", [identifier])


def order_arrives(info: StackInfo, identifier: int) -> dict[str, Any]:
    def has(messages: list[Message]) -> bool:
        return any((decode(info, m)["after"] or {}).get("id") == identifier for m in messages[-1:])

    return decode(info, read(info, "cdc.public.orders", has)[-1])


def test_every_service_answers(info: StackInfo) -> None:
    found = stack.status(info.directory).services
    assert {name: service.health for name, service in found.items()} == dict.fromkeys(stack.DEFAULT_SERVICES, "ready")
    assert set(info.environment()) == {"DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "CONNECT_URL"}


def test_postgres_is_durable_and_ready_for_logical_decoding(info: StackInfo) -> None:
    with psycopg.connect(info.database_url) as connection:
        names = ["fsync", "synchronous_commit", "full_page_writes", "wal_level", "listen_addresses"]
        values = [connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in names]
        assert values == [("on",), ("on",), ("on",), ("logical",), ("127.0.0.1",)]


def test_a_second_start_changes_nothing(info: StackInfo) -> None:
    again = stack.start(info.directory, attached=True, reporter=QUIET)
    assert {n: s.pid for n, s in again.services.items()} == {n: s.pid for n, s in info.services.items()}


def test_rows_still_flow_after_the_outbox_connector_came(connectors: StackInfo) -> None:
    insert_order(connectors, 1)
    assert order_arrives(connectors, 1)["op"] == "c"


def test_null_is_kept_in_columns_with_a_default(connectors: StackInfo) -> None:
    names = ", ".join(COLUMNS)
    with psycopg.connect(connectors.database_url) as connection:
        nulls = ", ".join("NULL" for _ in COLUMNS)
        connection.execute(f"INSERT INTO public.orders (id, {names}) VALUES (2, {nulls})")
        connection.execute("INSERT INTO public.orders (id) VALUES (3)")
    with psycopg.connect(connectors.database_url) as connection:
        connection.execute("UPDATE public.orders SET amount = 1 WHERE id = 2")
    messages = read(connectors, "cdc.public.orders", lambda found: len(found) >= 4)
    changes = [decode(connectors, message) for message in messages]
    after = {(change["op"], change["after"]["id"]): change["after"] for change in changes}
    assert {name: after["c", 2][name] for name in COLUMNS} == dict.fromkeys(COLUMNS)
    assert all(after["c", 3][name] is not None for name in COLUMNS)
    update = next(change for change in changes if change["op"] == "u")
    assert {name: update["before"][name] for name in COLUMNS} == dict.fromkeys(COLUMNS)
    assert {name: update["after"][name] for name in COLUMNS} == dict.fromkeys(COLUMNS) | {"amount": 1}
    assert update["transaction"]["total_order"] == 1


def test_topics_have_partitions_to_share(connectors: StackInfo) -> None:
    consumer = Consumer({"bootstrap.servers": connectors.kafka_bootstrap_servers, "group.id": "look"})
    topics = consumer.list_topics("cdc.public.orders", timeout=10).topics
    consumer.close()
    assert len(topics["cdc.public.orders"].partitions) == 6


def test_the_outbox_passes_bytes_and_headers_unchanged(connectors: StackInfo) -> None:
    payload = bytes(range(256))
    with psycopg.connect(connectors.database_url) as connection:
        row = connection.execute(OUTBOX_INSERT, ["orders.triaged", "order-1", payload, '{"depth": 1}']).fetchone()
        connection.execute(OUTBOX_INSERT, ["orders.triaged", None, b"no cause", None])
    assert row is not None
    messages = read(connectors, "orders.triaged", lambda found: len(found) == 2)
    first = next(message for message in messages if message.value() == payload)
    assert first.key() == b"order-1"
    headers = dict(first.headers() or [])
    assert headers["event_type"] == b"order.triaged"
    assert headers["content_type"] == b"avro/binary"
    assert headers["traceparent"] == b"00-trace"
    assert headers["occurred_at"] == b"2026-01-01T00:00:00Z"
    assert headers["cause"] == b'{"depth": 1}'
    assert headers["id"] == str(row[0]).encode()


def test_an_outbox_row_older_than_its_slot_is_sent_once(connectors: StackInfo, early_event: str) -> None:
    messages = read(connectors, "early", lambda found: len(found) >= 1)
    assert [dict(message.headers() or [])["id"] for message in messages] == [early_event.encode()]
    assert messages[0].value() == b"early"


def test_slots_move_on_while_their_tables_are_idle(connectors: StackInfo) -> None:
    with psycopg.connect(connectors.database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO public.other SELECT generate_series(1, 1000)")
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        behind = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn < %s::pg_lsn"
        until(lambda: connection.execute(behind, [row[0]]).fetchone() == (0,), "both slots have passed the other table")


def test_connect_comes_back_after_sigkill(connectors: StackInfo) -> None:
    stack.kill(connectors.directory, "connect")
    assert stack.status(connectors.directory).services["connect"].health == "stopped"
    insert_order(connectors, 10)
    assert stack.restart(connectors.directory, "connect").connect_url == connectors.connect_url
    assert order_arrives(connectors, 10)["after"]["id"] == 10


@pytest.mark.parametrize(("service", "order"), [("registry", 11), ("kafka", 12), ("postgres", 13)])
def test_a_restart_keeps_the_data(connectors: StackInfo, service: str, order: int) -> None:
    subjects = f"{connectors.schema_registry_url}/apis/ccompat/v7/subjects"
    before = httpx.get(subjects).json()
    assert before
    restarted = stack.restart(connectors.directory, service)
    assert restarted.environment() == connectors.environment()
    assert restarted.services[service].pid != connectors.services[service].pid
    until(lambda: httpx.get(subjects).is_success, "the registry answers")
    assert httpx.get(subjects).json() == before
    revive(connectors)
    insert_order(connectors, order)
    assert order_arrives(connectors, order)["after"]["id"] == order


def revive(info: StackInfo) -> None:
    """Restart what has failed, as an operator would: a converter that needs a new schema while the registry is away
    ends its task for good."""
    for name in ("rows", "outbox"):
        revive_one(info, name)


def revive_one(info: StackInfo, name: str) -> None:
    failed = f"{info.connect_url}/connectors/{name}/restart?includeTasks=true&onlyFailed=true"
    until(lambda: httpx.post(failed, timeout=60).is_success, f"{name} is told to restart")
    until(lambda: task_states(info, name) == ["RUNNING"], f"connector {name} runs")


def test_postgres_comes_back_after_sigkill(connectors: StackInfo) -> None:
    stack.kill(connectors.directory, "postgres")
    restarted = stack.restart(connectors.directory, "postgres")
    with psycopg.connect(restarted.database_url) as connection:
        assert connection.execute("SELECT count(*) FROM public.orders WHERE id = 1").fetchone() == (1,)


def test_a_registry_uses_a_database_from_outside(info: StackInfo, tmp_path: Path) -> None:
    given = {"DATABASE_URL": info.database_url}
    try:
        other = stack.start(tmp_path, services=("postgres", "registry"), external=given, attached=True, reporter=QUIET)
        assert list(other.services) == ["registry"]
        assert other.database_url == info.database_url
        assert other.schema_registry_url != info.schema_registry_url
    finally:
        stack.stop(tmp_path, remove=True)


def test_the_tiny_model_answers_with_the_json_asked_for(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"urgency": {"enum": ["low", "high"]}}, "required": ["urgency"]}
    try:
        started = stack.start(tmp_path, services=(), model=True, attached=True, reporter=QUIET)
        found = started.environment()
        answer = httpx.post(
            f"{found['MODEL_BASE_URL']}/chat/completions",
            headers={"Authorization": f"Bearer {found['MODEL_API_KEY']}"},
            json={
                "model": found["MODEL_NAME"],
                "messages": [{"role": "user", "content": "How urgent is a late order of 3 chairs?"}],
                "max_tokens": 64,
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            },
            timeout=60,
        ).raise_for_status()
        assert json.loads(answer.json()["choices"][0]["message"]["content"])["urgency"] in {"low", "high"}
    finally:
        stack.stop(tmp_path, remove=True)
