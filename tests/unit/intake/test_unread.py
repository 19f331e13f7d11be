"""Partitions that the group gave and nobody reads are told of, unless their cause has a message of its own."""

from __future__ import annotations

import logging
import time

import pytest

from consumer.intake.unread import UNREAD_SECONDS, Unread
from consumer.kafka import Place
from consumer.telemetry import REGISTRY, Health

OWNED = {Place("orders", 0), Place("orders", 1)}
READ = {Place("orders", 0)}


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock is ahead."""
    ahead = [0.0]
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    return ahead


def gauge() -> float | None:
    return REGISTRY.get_sample_value("rowcall_unread_partitions")


def test_a_partition_that_is_owned_and_not_read_is_told_of_once_and_until_it_is_read(
    passed: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    health = Health()
    unread = Unread(health)
    unread.look(OWNED, READ, explained=False)
    assert gauge() == 0 and "partitions" not in health.ready()
    passed[0] += UNREAD_SECONDS + 1
    for _ in range(2):
        unread.look(OWNED, READ, explained=False)
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert said.__dict__["action"] == "partitions_unread" and "orders/1" in said.getMessage()
    assert gauge() == 1
    assert not health.ready()["partitions"].ok and "orders/1" in health.ready()["partitions"].detail
    unread.look(OWNED, OWNED, explained=False)
    assert gauge() == 0 and health.ready()["partitions"].ok


def test_the_time_of_an_outage_or_a_backlog_does_not_count(
    passed: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    unread = Unread(Health())
    unread.look(OWNED, set(), explained=False)
    passed[0] += UNREAD_SECONDS + 1
    unread.look(OWNED, set(), explained=True)
    unread.look(OWNED, set(), explained=False)
    assert not caplog.records
