"""The channel `webhook` against a real HTTP server: what is sent, and what each answer means."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from consumer.errors import ConfigurationError, Outage
from consumer.watchdog.channels.webhook import Webhook
from debezium import ports
from tests.receiver import receive
from tests.unit.watchdog.alerts import alert, dripping

SECRET = "whsec_" + base64.b64encode(b"a secret of the test, 32 bytes !").decode()


def test_an_alert_is_posted_signed_with_its_id_and_a_repeat_is_the_same_body() -> None:
    with receive() as receiver:
        channel = Webhook("pager", f"{receiver.url}/hook", SECRET)
        channel.send(alert())
        channel.send(alert())
    (_, path, headers, body), (_, _, again, same) = receiver.asked
    told = Verifier(SECRET).verify(body, headers)
    assert path == "/hook" and body == same
    assert headers["webhook-id"] == again["webhook-id"] == str(alert().id)
    assert (told["type"], told["timestamp"]) == ("watchdog.overdue", "2026-03-01T07:01:01.000Z")
    assert told["data"] == {
        "id": str(alert().id), "subject": "agent:order-triage", "kind": "agent", "state": "overdue",
        "previous_state": "late", "due_at": "2026-03-01T07:00:00.000Z", "last_beat_at": "2026-03-01T06:00:00.000Z",
        "run_id": None, "reminder": 0, "detected_at": "2026-03-01T07:01:01.000Z", "message": alert().message,
    }  # fmt: skip


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_an_answer_that_may_change_is_an_outage_with_the_wait_it_asks_for(status: int) -> None:
    with receive() as receiver, pytest.raises(Outage) as raised:
        Webhook("pager", f"{receiver.url}/token-in-the-path?do={status}&after=7", SECRET).send(alert())
    assert raised.value.retry_after_seconds == 7
    assert f"answered {status}" in str(raised.value) and "token" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "correct url and secret"), (401, "same secret"), (404, "correct url"), (410, "switched this webhook off"),
     (302, "final address")],
)  # fmt: skip
def test_an_answer_for_good_needs_an_operator_and_says_what_to_do(status: int, advice: str) -> None:
    with receive() as receiver, pytest.raises(ConfigurationError, match=advice) as raised:
        Webhook("pager", f"{receiver.url}/token-in-the-path?do={status}", SECRET).send(alert())
    assert "token" not in str(raised.value) and "channel pager" in str(raised.value)
    assert len(receiver.asked) == 1


def test_the_deadline_holds_for_the_whole_request_however_the_server_drips() -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y") as port:
        begun = time.monotonic()
        with pytest.raises(Outage, match=r"within 0\.5 s") as raised:
            Webhook("pager", f"http://127.0.0.1:{port}/", SECRET, seconds=0.5).send(alert())
    assert raised.value.code == "timeout"
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("do", ["reset", "cut"])
def test_a_connection_that_breaks_is_an_outage(do: str) -> None:
    with receive() as receiver, pytest.raises(Outage):
        Webhook("pager", f"{receiver.url}/token-in-the-path?do={do}", SECRET).send(alert())


def test_nobody_there_is_an_outage_that_does_not_show_the_path() -> None:
    with pytest.raises(Outage) as raised:
        Webhook("pager", f"http://127.0.0.1:{ports.choose()}/token-in-the-path", SECRET).send(alert())
    assert "token" not in str(raised.value) and raised.value.__suppress_context__


def test_a_secret_that_is_no_base64_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError, match="base64") as raised:
        Webhook("pager", "http://127.0.0.1/", "geheim!geheim!geheim!geheim!")
    with pytest.raises(ConfigurationError, match="can be guessed") as short:
        Webhook("pager", "http://127.0.0.1/", "whsec_geheimgeheim")
    assert "geheim" not in str(raised.value) + str(short.value)
