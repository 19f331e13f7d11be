"""A connector that Connect calls RUNNING, and whose own heartbeat rows have stopped."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer import db, settings
from consumer.connect import ConnectorStatus
from consumer.connect.client import TaskStatus
from consumer.watchdog.connectors import Connectors
from consumer.watchdog.decide import worst
from consumer.watchdog.observation import Rules
from consumer.watchdog.observe import Observers
from tests.fixtures.postgres import Clock

RUNS = ConnectorStatus("rows", "RUNNING", "w:1", "", (TaskStatus(0, "RUNNING", "w:1", ""),))
RULES = Rules(start_grace=30, misses=3)
SHIPPED = json.loads((Path(__file__).parents[2] / "debezium" / "connectors" / "rows.json").read_text())


class Watched:
    def __init__(self, database: str, session: db.SyncSession, folder: Path | None = None) -> None:
        environment = {"DATABASE_URL": database} | ({"ROWCALL_CONNECTORS": str(folder)} if folder else {})
        self.connectors = Connectors(settings.load(environment), RULES)
        self.observers = Observers(RULES, self.connectors)
        self.session = session

    def beat(self) -> None:
        self.session.execute(
            "INSERT INTO rowcall.connector_heartbeats (connector, beat_at) VALUES ('rows', rowcall.now())"
            " ON CONFLICT (connector) DO UPDATE SET beat_at = excluded.beat_at"
        )

    def now(self) -> dt.datetime:
        row = self.session.execute("SELECT rowcall.now() AS now").fetchone()
        assert row is not None
        found: dt.datetime = row["now"]
        return found

    def look(self, name: str = "rows") -> tuple[str, str]:
        now = self.now()
        (seen,) = [s for s in self.observers.observe(self.session, {}, now) if s.subject == f"connector:{name}"]
        fault = worst(seen.faults, now)
        return ("paused" if seen.paused else "up", seen.note) if fault is None else (fault.state, fault.message)


@pytest.fixture
def watched(database: str, clock: Clock) -> Iterator[Watched]:
    with db.connect(database, name="watchdog", by_key=True) as session:
        yield Watched(database, session)


def test_running_connector_whose_beats_have_stopped_is_overdue(watched: Watched, clock: Clock) -> None:
    watched.connectors.take({"rows": RUNS})
    for _ in range(20):
        watched.beat()
        assert watched.look()[0] == "up"
        clock.advance(10)
    clock.advance(50)
    assert watched.look()[0] == "up"
    clock.advance(3)
    state, message = watched.look()
    assert state == "overdue"
    assert "connector rows" in message and "/connectors/rows/restart" in message
    watched.beat()
    assert watched.look()[0] == "up"


def test_running_connector_that_never_beats_is_overdue(watched: Watched, clock: Clock) -> None:
    watched.connectors.take({"rows": RUNS})
    assert watched.look()[0] == "up"
    clock.advance(63)
    state, message = watched.look()
    assert state == "overdue" and "never" in message


def test_connector_that_was_paused_for_long_has_its_time_to_beat_again(watched: Watched, clock: Clock) -> None:
    watched.beat()
    watched.connectors.take({"rows": ConnectorStatus("rows", "PAUSED", "w:1", "", ())})
    clock.advance(100_000)
    assert watched.look()[0] == "paused"
    watched.connectors.take({"rows": RUNS})
    assert watched.look()[0] == "up"
    clock.advance(61)
    assert watched.look()[0] == "up"
    clock.advance(2)
    assert watched.look()[0] == "overdue"


def test_what_connect_says_itself_counts_before_missing_beats(watched: Watched, clock: Clock) -> None:
    failed = ConnectorStatus("rows", "RUNNING", "w:1", "", (TaskStatus(0, "FAILED", "w:1", "no such slot"),))
    watched.beat()
    watched.connectors.take({"rows": failed})
    watched.look()
    clock.advance(1000)
    state, message = watched.look()
    assert state == "failed" and "no such slot" in message


@pytest.mark.parametrize(
    "change",
    [{"heartbeat.action.query": "SELECT 1"}, {"heartbeat.interval.ms": "0"}, {"heartbeat.interval.ms": "${MS}"}],
)
def test_no_beats_are_expected_of_a_connector_that_does_not_write_them(
    database: str, clock: Clock, tmp_path: Path, change: dict[str, str]
) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(SHIPPED | change))
    with db.connect(database, name="watchdog", by_key=True) as session:
        watched = Watched(database, session, tmp_path)
        watched.connectors.take({"rows": RUNS})
        watched.look()
        clock.advance(100_000)
        assert watched.look()[0] == "up"
