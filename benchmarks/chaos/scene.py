"""Everything that runs: the stack, the tables and connectors of the chaos, the model, the receiver, the workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

import debezium
from benchmarks.chaos.agents import ANSWER
from benchmarks.chaos.load import Load
from benchmarks.chaos.workers import Workers
from benchmarks.services import Child, Services, command, python, rowcall, running, until
from consumer import db, migrate
from consumer.settings import Settings
from consumer.settings import load as load_settings
from debezium.stack import StackInfo

TABLES: Final = """
CREATE TABLE public.chaos_orders (id bigint PRIMARY KEY);
ALTER TABLE public.chaos_orders REPLICA IDENTITY FULL;
CREATE TABLE public.chaos_ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL);
ALTER TABLE public.chaos_ledger REPLICA IDENTITY FULL;
"""
WORKERS: Final = 3
ROWS_PER_SECOND: Final = 45.0
# A run takes as long as its calls: these two keep more than a hundred of them under way.
MODEL_SECONDS: Final = 3.0
RECEIVER_SECONDS: Final = 0.3
LEASE_SECONDS: Final = 6.0
ENVIRONMENT: Final = {
    "ROWCALL_AGENTS": "benchmarks.chaos.agents",
    "ROWCALL_LOG_LEVEL": "WARNING",
    "ROWCALL_HEALTH_PORT": "0",
    "ROWCALL_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "ROWCALL_BEAT_SECONDS": "1.5",
    "ROWCALL_POLL_SECONDS": "0.5",
    # the receiver is on this machine
    "ROWCALL_HTTP_ALLOW": "127.0.0.1",
    # A killed member is given up after 6 s, the least a broker allows.
    "KAFKA_OPTIONS": "session.timeout.ms=6000,heartbeat.interval.ms=2000",
    "KAFKA_GROUP": "chaos",
}


@dataclass
class Scene:
    """What the faults strike and the evidence is read from."""

    stack: StackInfo
    settings: Settings
    environment: dict[str, str]
    load: Load
    workers: Workers
    journal: Path
    calls: Path

    def session(self) -> psycopg.Connection[dict[str, Any]]:
        """A session of our own, for aiming and for telling what went wrong; never for the verdict."""
        url = self.stack.database_url
        return psycopg.connect(
            url, autocommit=True, row_factory=dict_row, connect_timeout=5, application_name="chaos aim"
        )

    def in_flight(self) -> int:
        """Runs that are leased now; 0 while the database is away."""
        try:
            with self.session() as session:
                row = session.execute(
                    "SELECT count(*) AS n FROM rowcall.agent_jobs WHERE status = 'RUNNING'"
                ).fetchone()
        except psycopg.OperationalError:
            return 0
        return int(row["n"]) if row else 0


@contextmanager
def opened(services: Services) -> Iterator[Scene]:
    """The scene with workers that wait and a load that has not begun; all of it ends with the block."""
    info = services.stack()
    folder = Path(services.directory) / "chaos"
    folder.mkdir(parents=True)
    with closing(db.connect(info.database_url, name="chaos")) as session:
        migrate.migrate(session)
        session.execute(TABLES)
    connectors(folder / "connectors")
    environment = info.environment() | ENVIRONMENT | {"ROWCALL_CONNECTORS": str(folder / "connectors")}
    command(rowcall("connectors", "apply"), environment)
    journal, calls = folder / "journal.jsonl", folder / "calls.jsonl"
    script = folder / "script.json"
    script.write_text(json.dumps({"rules": [{"replies": [{"answer": ANSWER, "delay_seconds": MODEL_SECONDS}]}]}))
    servers = [
        Child(python("tests.scripted_model", "--script", str(script), "--log", str(calls)), {}, folder / "model.log"),
        Child(
            python("benchmarks.chaos.receiver", "--journal", str(journal), "--delay", str(RECEIVER_SECONDS)),
            {},
            folder / "receiver.log",
        ),
    ]
    with ExitStack() as end:
        end.enter_context(running(servers))
        model, receiver = (f"http://127.0.0.1:{one.line().removeprefix('listening on ')}" for one in servers)
        environment |= {"MODEL_BASE_URL": f"{model}/v1", "CHAOS_RECEIVER": f"{receiver}/"}
        workers = Workers(WORKERS, environment, folder)
        end.callback(workers.close)
        load = Load(info.database_url, ROWS_PER_SECOND)
        end.callback(load.stop)
        names = {str(part.alias) for part in Settings.model_fields.values()}
        settings = load_settings({name: text for name, text in environment.items() if name in names})
        scene = Scene(info, settings, environment, load, workers, journal, calls)
        until(lambda: _activated(scene), "the workers have activated the agent", seconds=60)
        yield scene


def _activated(scene: Scene) -> bool:
    with scene.session() as session:
        return session.execute("SELECT FROM rowcall.agents").fetchone() is not None


def connectors(folder: Path) -> None:
    """The connector files that ship, the one for rows with the tables of the chaos."""
    folder.mkdir()
    for path in (Path(debezium.__file__).parent / "connectors").glob("*.json"):
        config = json.loads(path.read_text())
        if path.stem == "rows":
            config["table.include.list"] = "public.chaos_orders,public.chaos_ledger"
        (folder / path.name).write_text(json.dumps(config))
