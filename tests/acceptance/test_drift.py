"""The detectors' process on the real brokers, registry and database, killed in the middle of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import orjson
from click.testing import CliRunner
from confluent_kafka import Producer

from consumer import db
from consumer.cli import main
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


def checked(environment: dict[str, str], file: Path, *options: str) -> Any:
    """What `rowcall drift check --json` prints."""
    argv = [sys.executable, "-m", "consumer.cli", "drift", "check", str(file), "--json", *options]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout)


def decided(url: str) -> list[tuple[Any, ...]]:
    """What the loop has told, in its order."""
    with db.connect(url, name="test") as session:
        rows = session.execute("SELECT topic, payload FROM rowcall.drift_events ORDER BY number").fetchall()
    found = []
    for row in rows:
        data = orjson.loads(row["payload"])
        level = orjson.loads(data["evidence"])["level"]
        found.append((data["segment"], level, data["turn"], data["detected_at"] / 1000, data["baseline"],
                      data["observed"]))  # fmt: skip
    return found


def positions(url: str) -> list[Any]:
    with db.connect(url, name="test") as session:
        return session.execute("SELECT * FROM rowcall.drift_positions ORDER BY 1, 2, 3, 4").fetchall()


def ask(url: str, query: str, *values: Any) -> list[Any]:
    with db.connect(url, name="test") as session:
        found = session.execute(query.encode(), values or None)
        return found.fetchall() if found.description else []


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
        # The replay of the topic decides what the killed processes decided, and moves nothing.
        before = positions(database)
        found = checked(environment, tmp_path / "drift.toml", "--topic")
        assert found["values"]["amount fed"] == 1940
        assert [(item["segment"], item["level"], item["turn"], item["at"], item["baseline"], item["observed"])
                for item in found["events"]] == decided(database)  # fmt: skip
        assert positions(database) == before
        part = checked(environment, tmp_path / "drift.toml", "--topic", "--last", "900")
        assert part["values"]["amount fed"] == 900
    finally:
        first.kill()
        if second is not None:
            second.kill()


def test_query_that_is_refused_stops_no_other_monitor_is_shown_and_recovers(
    stack: StackInfo, database: str, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    monitors = {
        "wrong-sql": "SELEC 1", "missing": "SELECT v FROM public.late_table", "slow": "SELECT pg_sleep(30)::text AS v",
        "writes": "CREATE TABLE public.mine ()", "two": "SELECT 1; SELECT 2", "good": "SELECT 1 AS v",
    }  # fmt: skip
    (tmp_path / "drift.toml").write_text(
        f"[topics]\nwarning_topic = 'w-{mark}'\ncritical_topic = 'c-{mark}'\nbacklog_topic = 'b-{mark}'\n"
        + "".join(f"[monitor.{name}]\nsql = '{sql}'\nvalue = 'v'\nevery = 0.2\ntimeout = 0.2\n"
                  "detector = 'threshold'\nwarning = 5\ncritical = 9\n" for name, sql in monitors.items())
    )  # fmt: skip
    environment = dict(os.environ) | stack.environment() | {
        "DATABASE_URL": database, "ROWCALL_DRIFT": str(tmp_path / "drift.toml"), "ROWCALL_HEALTH_PORT": "0",
    }  # fmt: skip
    process = Process([sys.executable, "-m", "consumer.cli", "drift", "run"], environment, tmp_path / "log")

    def listed() -> dict[str, Any]:
        done = CliRunner().invoke(main, ["drift", "list", "--json"], env=environment)
        return {row["monitor"]: row for row in orjson.loads(done.stdout)}

    try:
        refused = monitors.keys() - {"good"}
        eventually("all are shown", lambda: {n for n, row in listed().items() if row["state"] == "refused"} == refused)
        assert "late_table" in listed()["missing"]["error"] and "timeout" in listed()["slow"]["error"]
        said = {line["monitor"] for line in process.records("drift_query_refused")}
        metrics = process.get("/metrics")
        for name in refused:
            assert name in said
            assert f'rowcall_drift_values_total{{monitor="{name}",outcome="query_failed"}}' in metrics
        samples = listed()["good"]["samples"]
        eventually("the others go on", lambda: listed()["good"]["samples"] > samples + 3)
        ask(database, "CREATE TABLE public.late_table AS SELECT 6 AS v")
        eventually("it is mended", lambda: listed()["missing"]["state"] == "warning")
        assert listed()["missing"]["error"] is None
        warned = [("missing", 6.0)]
        eventually("its event is sent", lambda: warned == [(data["monitor"], data["observed"])
                                                           for _, data in told(stack, f"w-{mark}")])  # fmt: skip
        assert len(process.records("drift_owned")) == len(monitors)
        assert process.stop() == 0
    finally:
        process.kill()


def test_lag_of_intake_is_told_and_so_is_its_end(stack: StackInfo, database: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    topic, backlog = f"lag-{mark}", f"b-{mark}"
    (tmp_path / "drift.toml").write_text(
        f"[topics]\nwarning_topic = 'w-{mark}'\ncritical_topic = 'c-{mark}'\nbacklog_topic = '{backlog}'\n"
        "[monitor.lag]\nwatch = 'lag'\nevery = 0.2\nwarning = 30\ncritical = 1000\n"
    )
    environment = dict(os.environ) | stack.environment() | {
        "DATABASE_URL": database, "ROWCALL_DRIFT": str(tmp_path / "drift.toml"), "ROWCALL_HEALTH_PORT": "0",
    }  # fmt: skip
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers})
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    send(producer, topic, 1, 20, 1)
    brokers = Brokers(settings)
    known = eventually("the topic is made", lambda: brokers.topics([topic]))[topic]
    # Where intake has read to; and where it had read to in a topic of this name that was deleted.
    for identity in (known.id, "an older one"):
        ask(database, "INSERT INTO rowcall.positions (cluster_id, topic_id, partition, topic, next_offset)"
                      " SELECT %s, %s, p, %s, 0 FROM unnest(%s::int[]) p",
            brokers.cluster_id(), identity, topic, list(known.partitions))  # fmt: skip
    process = Process([sys.executable, "-m", "consumer.cli", "drift", "run"], environment, tmp_path / "log")
    try:
        eventually("it is looked at", lambda: ask(database, "SELECT 1 FROM rowcall.drift_state WHERE status = 'ok'"))
        send(producer, topic, 1, 20, 2)
        (_, data) = eventually("a warning", lambda: told(stack, backlog))[0]
        assert (data["queue"], data["measure"], data["level"], data["value"]) == (
            f"topic:{topic}",
            "lag",
            "warning",
            40,
        )
        ask(database, "UPDATE rowcall.positions SET next_offset = 40")
        found = eventually("a recovery", lambda: told(stack, backlog)[1:])
        assert [data["turn"] for _, data in found] == ["recovered"]
        assert process.stop() == 0
    finally:
        process.kill()
