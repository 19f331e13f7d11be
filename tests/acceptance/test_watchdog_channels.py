"""The topic of alerts on the real brokers and registry: what `rowcall watchdog test` sends wakes an agent, once."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from consumer.errors import Outage
from consumer.kafka import read_topic
from consumer.records import Coordinates, Event
from consumer.schema_registry import SchemaRegistry
from consumer.settings import load
from consumer.wire import Decoder
from debezium import ports
from debezium.stack import StackInfo
from producers.overdue import OverdueTopics
from tests.fixtures.process import ROOT, Process, eventually
from tests.unit.watchdog.alerts import AT, alert

AGENTS = """
from pydantic import BaseModel
from consumer.agents.door import Agent

class Note(BaseModel):
    subject: str
    state: str
    message: str

desk = Agent(name="desk", version=1, answer=Note, topics=["TOPIC"])
AGENTS = [desk]

@desk.run
async def look(ctx, event):
    return Note(subject=event.data["subject"], state=event.data["state"], message=event.data["message"])
"""


def told(stack: StackInfo, topic: str) -> list[Event]:
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers})
    found = []
    with SchemaRegistry(stack.schema_registry_url) as registry:
        decoder = Decoder(registry.schema, epoch="1")
        for record in read_topic(settings, topic):
            where = Coordinates(record.topic, record.partition, record.offset)
            event = decoder.decode(record.key, record.value, record.headers, where)
            assert isinstance(event, Event)
            found.append(event)
    return found


def test_an_alert_is_an_event_under_its_own_id_however_often_it_is_sent(stack: StackInfo) -> None:
    topic = f"overdue-{uuid.uuid4().hex}"
    settings = load(
        {"KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers, "SCHEMA_REGISTRY_URL": stack.schema_registry_url}
    )
    with closing(OverdueTopics(settings)) as topics:
        channel = topics.channel("agents", topic)
        for _ in range(2):
            channel.send(alert(run_id=7, subject="agent:a\x00\ud800", message="m" * 20_000))
    first, second = told(stack, topic)
    assert first.id == second.id and first.id.endswith(str(alert().id))
    assert first.occurred_at == second.occurred_at == alert().detected_at
    assert (first.data["due_at"], first.data["run_id"], first.data["state"]) == (AT, 7, "overdue")
    assert len(first.data["message"]) == 10_000


def test_brokers_away_is_an_outage(stack: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.overdue._DELIVERY_SECONDS", 2.0)
    away = {"KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports.choose()}", "SCHEMA_REGISTRY_URL": stack.schema_registry_url}
    with closing(OverdueTopics(load(away))) as topics, pytest.raises(Outage):
        topics.channel("agents", f"overdue-{uuid.uuid4().hex}").send(alert())


def test_an_agent_that_subscribes_is_woken_by_an_alert(stack: StackInfo, database: str, tmp_path: Path) -> None:
    topic = f"overdue-{uuid.uuid4().hex}"
    (tmp_path / "overdue_agents.py").write_text(AGENTS.replace("TOPIC", topic))
    (tmp_path / "watchdog.toml").write_text(f"[channel.agents]\ntype = 'topic'\ntopic = '{topic}'\n")
    environment = dict(os.environ) | stack.environment() | {
        "DATABASE_URL": database, "ROWCALL_WATCHDOG": str(tmp_path / "watchdog.toml"), "ROWCALL_HEALTH_PORT": "0",
        "ROWCALL_AGENTS": "overdue_agents", "PYTHONPATH": str(tmp_path), "KAFKA_GROUP": topic,
        "ROWCALL_OUTBOX_SLOT": "", "ROWCALL_KEEP_CONNECTORS": "false",
    }  # fmt: skip
    test = [sys.executable, "-m", "consumer.cli", "watchdog", "test"]
    done = subprocess.run(test, env=environment, capture_output=True, text=True, timeout=90, check=False, cwd=ROOT)
    assert (done.returncode, "delivered" in done.stdout) == (0, True), done.stderr
    worker = Process([sys.executable, "-m", "consumer.cli", "worker"], environment, tmp_path / "worker.log")
    try:
        with psycopg.connect(database, autocommit=True) as session:
            eventually(
                "the agent starts at now", lambda: session.execute("SELECT 1 FROM rowcall.agent_starts").fetchall()
            )
            subprocess.run(test, env=environment, capture_output=True, timeout=90, check=True, cwd=ROOT)
            found = eventually("the agent has run", lambda: session.execute(
                "SELECT result->>'subject', result->>'state' FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED'"
            ).fetchall())  # fmt: skip
        assert found == [("watchdog:test", "test")]
        assert worker.stop() == 0
    finally:
        worker.kill()
