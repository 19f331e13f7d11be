"""The loop of intake: which failures it goes on through, and which end it. No broker is asked here."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from consumer.errors import AgentError, ConfigurationError, DataRefused, RowcallError
from consumer.intake import Intake
from consumer.intake.unread import UNREAD_SECONDS
from consumer.kafka import Place
from consumer.settings import Settings
from consumer.telemetry import Health


class Failing(Intake):
    """Each turn fails as told; the last one ends the loop."""

    def __init__(self, *failures: RowcallError) -> None:
        settings = Settings.model_validate({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
        super().__init__(settings, [], health=Health())
        self.failures = list(failures)
        self.pauses: list[float] = []
        self.stop = threading.Event()

    def _turn(self) -> None:
        self.pauses.append(self._blocked_until)
        error = self.failures.pop(0)
        if not self.failures:
            self.stop.set()
        raise error


@pytest.mark.parametrize("error", [DataRefused("orders/0@7 is refused", code="db_22008"), AgentError("of no use")])
def test_what_leaves_the_pipeline_is_borne_and_said_aloud(
    error: RowcallError, caplog: pytest.LogCaptureFixture
) -> None:
    intake = Failing(error, error, error)
    intake.run(intake.stop)
    loud = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(loud) == 3
    assert all(str(error) in record.getMessage() for record in loud)
    assert intake.pauses == sorted(set(intake.pauses))
    assert "stuck" in (intake.paused_reason or "")


@pytest.mark.parametrize("error", [ConfigurationError("change it"), RowcallError("gone", code="kafka_fatal")])
def test_what_no_time_can_cure_ends_the_loop(error: RowcallError) -> None:
    intake = Failing(error, error)
    with pytest.raises(RowcallError) as caught:
        intake.run(intake.stop)
    assert caught.value is error


class Unplaced(Intake):
    """Turns that leave an owned partition unread, twenty seconds each, and find no cause."""

    def __init__(self, health: Health, ahead: list[float]) -> None:
        settings = Settings.model_validate({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
        super().__init__(settings, [], health=health)
        self.ahead = ahead
        self.stop = threading.Event()

    def _turn(self) -> None:
        self._pause(None, None)
        self._consumer.owned = {Place("orders", 3)}
        self.ahead[0] += 20
        if self.ahead[0] > UNREAD_SECONDS + 20:
            self.stop.set()


def test_a_partition_that_no_turn_places_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead, real, health = [0.0], time.monotonic, Health()
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    intake = Unplaced(health, ahead)
    intake.run(intake.stop)
    assert "orders/3" in health.ready()["partitions"].detail
    assert [record.levelno for record in caplog.records if record.name == "consumer.intake.unread"] == [logging.WARNING]
