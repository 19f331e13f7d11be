"""Delivery of alerts: each channel by itself, until it is sent or given up for all to see."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from consumer import db
from consumer.errors import ConfigurationError, Outage
from consumer.watchdog import control
from consumer.watchdog.alert import Alert, Listener
from consumer.watchdog.decide import Decision
from consumer.watchdog.deliver import Delivery
from consumer.watchdog.store import Store
from tests.fixtures.postgres import Clock
from tests.fixtures.process import eventually
from tests.integration.watching import Told, rows

ALERTS = "SELECT * FROM rowcall.watch_alerts ORDER BY channel, id"


class Hanging(Told):
    """A channel that never comes back."""

    def __init__(self) -> None:
        super().__init__("hanging")
        self.release = threading.Event()

    def send(self, alert: Alert) -> None:
        super().send(alert)
        self.release.wait()


class Failing(Told):
    """A channel that fails so many times before it works."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        super().__init__("failing")
        self.times = times
        self.error = error or Outage("it is away", dependency="mail")

    def send(self, alert: Alert) -> None:
        super().send(alert)
        if len(self.alerts) <= self.times:
            raise self.error


@contextmanager
def delivering(database: str, *channels: Listener, tries: int = 25) -> Iterator[Delivery]:
    delivery = Delivery(database, channels, first_pause=0.01, tries=tries)
    delivery.start()
    yield delivery
    delivery.stop()


def flip(database: str, *channels: Listener, subject: str = "agent:a") -> None:
    decision = Decision(subject, "new", "overdue", True, True, None, None, 7, "nothing is heard of it")
    with db.connect(database, name="watchdog") as session:
        store = Store(session, channels)
        store.begin_watching([decision])
        assert store.move(decision)


def test_a_channel_that_hangs_stops_no_other(database: str) -> None:
    hanging, told = Hanging(), Told()
    with delivering(database, hanging, told) as delivery:
        for name in ("a", "b"):
            flip(database, hanging, told, subject=f"agent:{name}")
        delivery.wake()
        eventually("both alerts", lambda: len(told.alerts) == 2)
        assert [alert.subject for alert in told.alerts] == ["agent:a", "agent:b"] and len(hanging.alerts) == 1
        hanging.release.set()


def test_an_alert_is_tried_again_until_it_is_sent_and_keeps_its_id(database: str) -> None:
    failing = Failing(3)
    with delivering(database, failing) as delivery:
        flip(database, failing)
        delivery.wake()
        eventually("it is sent", lambda: rows(database, f"{ALERTS}")[0]["sent_at"])
    assert len({alert.id for alert in failing.alerts}) == 1
    (alert, *_) = failing.alerts
    assert (alert.subject, alert.kind, alert.state, alert.previous_state, alert.run_id, alert.reminder) == (
        "agent:a", "agent", "overdue", "new", 7, 0
    )  # fmt: skip
    (row,) = rows(database, ALERTS)
    assert (row["attempts"], row["last_error"]) == (4, None)


def test_an_alert_is_given_up_after_a_bound_and_everybody_sees_it(database: str) -> None:
    failing = Failing(99)
    with delivering(database, failing, tries=3) as delivery:
        flip(database, failing)
        delivery.wake()
        eventually("it is given up", lambda: rows(database, ALERTS)[0]["gave_up_at"])
    assert len(failing.alerts) == 3
    with db.connect(database, name="test") as session:
        assert control.flips(session, None, 5)[0]["alerts"] == ["failing GAVE_UP: it is away"]
        assert control.watched(session)[0]["gave_up"] == 1


@pytest.mark.parametrize("error", [ConfigurationError("no such mailbox"), RuntimeError("a fault\x00 in the channel")])
def test_a_channel_that_refuses_or_is_broken_keeps_its_alert_and_its_thread(database: str, error: Exception) -> None:
    failing = Failing(1, error)
    with delivering(database, failing) as delivery:
        for name in ("a", "b"):
            flip(database, failing, subject=f"agent:{name}")
        delivery.wake()
        eventually("the next one", lambda: any(row["sent_at"] for row in rows(database, ALERTS)))
    (refused, *_) = [row for row in rows(database, ALERTS) if row["last_error"] or row["attempts"] > 1]
    assert refused["sent_at"] or str(error)[:7] in refused["last_error"]


@pytest.mark.parametrize(("asked", "delay"), [(90.0, 90), (0.001, 0.01), (1e9, 3600)])
def test_a_receiver_that_asks_for_a_pause_gets_it_within_bounds(
    database: str, clock: Clock, asked: float, delay: float
) -> None:
    failing = Failing(1, Outage("too many", dependency="webhook", retry_after_seconds=asked))
    with delivering(database, failing) as delivery:
        flip(database, failing)
        delivery.wake()
        eventually("a try", lambda: rows(database, ALERTS)[0]["last_error"])
        (row,) = rows(database, f"SELECT extract(epoch FROM next_try - rowcall.now())::float AS s FROM ({ALERTS}) x")
    assert row["s"] == pytest.approx(delay)


def test_an_alert_that_a_channel_does_not_want_is_not_shown_as_sent_to_it(database: str) -> None:
    picky, told = Told("picky"), Told()
    picky.wanted = False
    with delivering(database, picky, told) as delivery:
        flip(database, picky, told)
        delivery.wake()
        eventually("it is sent", lambda: rows(database, ALERTS)[0]["sent_at"])
    assert [row["channel"] for row in rows(database, ALERTS)] == ["told"] and not picky.alerts
    with db.connect(database, name="test") as session:
        assert control.flips(session, None, 5)[0]["alerts"] == ["told sent"]


def test_alerts_for_a_channel_that_is_in_nobodys_file_are_given_up_after_a_day(
    database: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    gone, here = Told("gone"), Told()
    flip(database, gone, here)
    with db.connect(database, name="watchdog", by_key=True) as session:
        clock.advance(80_000)
        Store(session, [here]).prune()
        assert not [row for row in rows(database, ALERTS) if row["gave_up_at"]]
        clock.advance(10_000)
        Store(session, [here]).prune()
    (row,) = [row for row in rows(database, ALERTS) if row["gave_up_at"]]
    assert (row["channel"], row["last_error"]) == ("gone", "no watchdog has a channel of this name")
    assert "1 alerts for the channel gone were GIVEN UP" in caplog.text


def test_several_watchdogs_send_an_alert_once(database: str) -> None:
    first, second = Told(), Told()
    with delivering(database, first) as one, delivering(database, second) as two:
        for number in range(30):
            flip(database, first, subject=f"agent:{number}")
        one.wake()
        two.wake()
        eventually("all are sent", lambda: all(row["sent_at"] for row in rows(database, ALERTS)))
    assert len({alert.id for alert in first.alerts + second.alerts}) == len(first.alerts + second.alerts) == 30


def test_two_channels_of_one_name_are_refused(database: str) -> None:
    with pytest.raises(ConfigurationError, match="one name"):
        Delivery(database, [Told(), Told()])
