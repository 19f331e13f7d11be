"""What is made of Kafka Connect's word about connectors."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from consumer import settings
from consumer.connect import ConnectorStatus
from consumer.connect.client import TaskStatus
from consumer.errors import Outage
from consumer.watchdog.connectors import Connectors
from consumer.watchdog.decide import worst
from consumer.watchdog.observation import Rules

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RUNS = ConnectorStatus("rows", "RUNNING", "w:1", "", (TaskStatus(0, "RUNNING", "w:1", ""),))
FAILED = replace(RUNS, tasks=(TaskStatus(0, "FAILED", "w:1", "no such slot"),))


def state(connectors: Connectors, seconds: float) -> tuple[str, str]:
    now = NOW + dt.timedelta(seconds=seconds)
    (seen,) = connectors.look(now)
    fault = worst(seen.faults, now)
    return ("paused" if seen.paused else "up", seen.note) if fault is None else (fault.state, fault.message)


@pytest.fixture
def connectors() -> Connectors:
    return Connectors(settings.load({}), Rules(start_grace=30, misses=2))


def test_failed_task_counts_after_the_keeper_had_its_time(connectors: Connectors) -> None:
    connectors.take({"rows": FAILED})
    assert state(connectors, 0)[0] == state(connectors, 29)[0] == "up"
    failed, message = state(connectors, 30)
    assert failed == "failed" and "no such slot" in message
    connectors.take({"rows": RUNS})
    assert state(connectors, 31)[0] == "up"
    connectors.take({"rows": FAILED})
    assert state(connectors, 32)[0] == "up"


def test_connector_that_restarts_and_fails_again_is_not_well_in_between(connectors: Connectors) -> None:
    connectors.take({"rows": FAILED})
    state(connectors, 0)
    assert state(connectors, 30)[0] == "failed"
    connectors.take({"rows": replace(RUNS, state="UNASSIGNED")})
    assert state(connectors, 31)[0] == "late"
    connectors.take({"rows": FAILED})
    assert state(connectors, 32)[0] == "failed"


def test_connector_that_is_not_there_is_overdue_and_one_that_a_person_paused_is_paused(connectors: Connectors) -> None:
    connectors.take({"rows": None})
    state(connectors, 0)
    assert state(connectors, 30)[0] == "overdue"
    connectors.take({"rows": replace(RUNS, state="PAUSED")})
    assert state(connectors, 31)[0] == "paused"


def test_one_question_without_an_answer_is_nothing_yet(connectors: Connectors) -> None:
    assert connectors.look(NOW) == []
    connectors.take({"rows": RUNS})
    connectors.take(Outage("away", dependency="connect"))
    assert state(connectors, 0)[0] == "up"
    connectors.take(Outage("away", dependency="connect"))
    with pytest.raises(Outage):
        connectors.look(NOW)
