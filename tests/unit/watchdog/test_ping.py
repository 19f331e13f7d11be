"""The switch outside: asked for after rounds, never in anyone's way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from consumer.telemetry import REGISTRY
from consumer.watchdog.channels import Ping
from debezium import ports
from tests.fixtures.process import eventually
from tests.receiver import receive
from tests.unit.watchdog.alerts import dripping


def count(result: str) -> float:
    return REGISTRY.get_sample_value("rowcall_watchdog_pings_total", {"result": result}) or 0.0


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    yield
    logging.getLogger("consumer.watchdog").setLevel(logging.NOTSET)


def test_rounds_ping_and_no_round_does_not() -> None:
    before = count("answered")
    with receive() as receiver, closing(Ping(f"{receiver.url}/ping/token", every_seconds=0.05)) as ping:
        time.sleep(0.3)
        assert receiver.asked == []
        ping.round_done()
        eventually("a ping", lambda: len(receiver.asked) == 1, 20)
        time.sleep(0.3)
        assert len(receiver.asked) == 1
        ping.round_done()
        eventually("another", lambda: len(receiver.asked) == 2, 20)
        eventually("counted", lambda: count("answered") == before + 2, 20)


def test_many_rounds_are_one_ping_in_its_time() -> None:
    with receive() as receiver, closing(Ping(f"{receiver.url}/ping", every_seconds=600)) as ping:
        for _ in range(20):
            ping.round_done()
            time.sleep(0.02)
        eventually("a ping", lambda: receiver.asked, 20)
        time.sleep(0.2)
        assert len(receiver.asked) == 1


def test_a_url_that_hangs_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    before = count("failed")
    with dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y") as port:
        ping = Ping(f"http://127.0.0.1:{port}/token", every_seconds=0.01, deadline_seconds=0.5)
        begun = time.monotonic()
        for _ in range(100):
            ping.round_done()
        assert time.monotonic() - begun < 0.4
        eventually("it is counted", lambda: count("failed") > before, 20)
        ping.close()
    assert "did not answer within 0.5 s" in caplog.text and "token" not in caplog.text


def test_a_refusal_is_logged_and_counted_and_the_next_round_pings_again(caplog: pytest.LogCaptureFixture) -> None:
    before = count("failed")
    with receive() as receiver, closing(Ping(f"{receiver.url}/token?status=404", every_seconds=0.01)) as ping:
        ping.round_done()
        eventually("one", lambda: count("failed") == before + 1, 20)
        ping.round_done()
        eventually("two", lambda: count("failed") == before + 2, 20)
    assert "answered 404" in caplog.text and "token" not in caplog.text
    with closing(Ping(f"http://127.0.0.1:{ports.choose()}/token", every_seconds=0.01)) as ping:
        ping.round_done()
        eventually("nobody there", lambda: count("failed") == before + 3, 20)
