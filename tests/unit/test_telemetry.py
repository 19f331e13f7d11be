"""What a process says about itself: counted right, logged without secrets, healthy only while it is."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer import settings, telemetry
from consumer.errors import ConfigurationError
from consumer.telemetry import Health, HealthServer, Metric, Status
from tests.fixtures.logs import logging_as_it_was

__all__ = ["logging_as_it_was"]

SECRETS = {
    "DATABASE_URL": "postgresql://rowcall:pass%40word-1@db/rowcall",
    "MODEL_API_KEY": "sk-0123456789abcdef",
    "KAFKA_PASSWORD": 'quote"and\\slash',
}


def configured(**more: str) -> None:
    telemetry.configure(settings.load(SECRETS | more))


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    started = telemetry.serve(settings.load({"ROWCALL_HEALTH_PORT": "0"}), health)
    yield started
    started.close()


def get(server: HealthServer, path: str, accept: str = "*/*") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def checks(server: HealthServer, path: str) -> tuple[int, dict[str, bool]]:
    code, body = get(server, path)
    return code, {name: check["ok"] for name, check in json.loads(body)["checks"].items()}


def test_every_record_has_an_action_and_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    configured()
    logging.getLogger("x").info("plain")
    logging.getLogger("x").warning("told %d", 5, extra={"action": "claim", "job_id": 7, "event_id": "rc1:a"})
    plain, told = records(capsys.readouterr().err)
    assert (plain["action"], plain["level"], plain["logger"], plain["message"]) == ("log", "INFO", "x", "plain")
    assert plain["time"].endswith("Z")
    assert (told["action"], told["job_id"], told["event_id"], told["message"]) == ("claim", 7, "rc1:a", "told 5")


def test_a_level_below_the_setting_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configured(ROWCALL_LOG_LEVEL="WARNING")
    logging.getLogger("x").info("no")
    logging.getLogger("x").warning("yes")
    assert [record["message"] for record in records(capsys.readouterr().err)] == ["yes"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_is_ever_in_a_log_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configured(ROWCALL_LOG_FORMAT=form)
    secrets = ["pass%40word-1", "pass@word-1", "sk-0123456789abcdef", 'quote"and\\slash']
    log = logging.getLogger("x")
    for secret in secrets:
        log.info("in %s", secret)
        log.info("in extra", extra={"detail": {"key": [secret]}})
        try:
            raise ValueError(f"in an exception {secret}")
        except ValueError:
            log.exception("failed")
    log.info("postgresql://u:other@h/db and host=h password='with space' and Authorization: Bearer abcdefghijklmn")
    told = capsys.readouterr().err
    # A secret with a backslash stands escaped in JSON and in the repr of a container.
    hidden = [*secrets, 'quote\\"and\\\\slash', "other@", "with space", "abcdefghijklmn"]
    assert [secret for secret in hidden if secret in told] == []
    assert told.count("***") >= 3 * len(secrets)


def test_a_record_that_cannot_be_encoded_is_written_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configured()
    logging.getLogger("x").info("lone \ud800 and \x00", extra={"detail": Path("/x"), "raw": b"\xff"})
    (record,) = records(capsys.readouterr().err)
    assert record["detail"] == "/x"


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configured(ROWCALL_LOG_FORMAT="text")
    logging.getLogger("x").warning("slow", extra={"action": "claim", "job_id": 7})
    assert capsys.readouterr().err.endswith("WARN  x [claim] slow job_id=7\n")


def test_a_password_shown_in_any_url_is_masked_whole() -> None:
    assert telemetry.redact("postgresql://u:p@ss@h:5432/db") == "postgresql://u:***@h:5432/db"
    assert telemetry.redact("http://127.0.0.1:8083/connectors") == "http://127.0.0.1:8083/connectors"
    assert telemetry.redact("sslpassword=abc x") == "sslpassword=*** x"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        "y",
        "password",
        "password=",
        "password='",
        "password=\\'",
        "://",
        "://a",
        "://a:",
        "://a:b",
        "Bearer ",
        "Basic\t",
        "=",
        "'",
    ],
)
def test_a_megabyte_of_anything_is_redacted_in_one_go(piece: str) -> None:
    assert telemetry.redact(piece * (1_000_000 // len(piece)) + " postgresql://u:word@h/d").endswith(":***@h/d")


def test_metrics_are_counted_by_their_labels(server: HealthServer) -> None:
    telemetry.EVENTS.add(3, agent="counted-here", outcome="admitted")
    telemetry.EVENTS.add(agent="counted-here", outcome="admitted")
    telemetry.LAG.set(7, topic="counted-here", partition="0")
    telemetry.RUN_SECONDS.observe(0.2, agent="counted-here")
    code, text = get(server, "/metrics")
    assert code == 200
    assert 'rowcall_events_total{agent="counted-here",outcome="admitted"} 4.0' in text
    assert (
        'rowcall_lag_messages{partition="0",topic="counted-here"} 7.0' in text
        or 'topic="counted-here",partition="0"} 7.0' in text
    )
    assert 'rowcall_run_seconds_bucket{agent="counted-here",le="0.25"} 1.0' in text
    telemetry.LAG.forget(topic="counted-here", partition="0")
    assert 'topic="counted-here"' not in get(server, "/metrics")[1]


def test_a_series_whose_labels_are_known_exists_before_the_first_event() -> None:
    # In a process of its own: in this one another test may have counted already.
    code = "from consumer.telemetry import REGISTRY; from prometheus_client import generate_latest as text; " \
        "print(text(REGISTRY).decode())"  # fmt: skip
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'rowcall_outages_total{dependency="connect"} 0.0' in said


def test_a_metric_refuses_what_it_is_not() -> None:
    with pytest.raises(ValueError, match="label"):
        telemetry.EVENTS.add(agent="a", result="x")
    with pytest.raises(TypeError):
        telemetry.RUN_SECONDS.add(1, agent="a")
    with pytest.raises(TypeError):
        telemetry.CHECKPOINTS.set(1)
    with pytest.raises(TypeError):
        telemetry.BACKLOG.observe(1)


def test_every_metric_is_documented_under_the_name_it_is_scraped_by(server: HealthServer) -> None:
    table, scraped = telemetry.documentation(), get(server, "/metrics")[1]
    assert len(telemetry.METRICS) > 25
    for metric in telemetry.METRICS:
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        assert f"| `{name}` | {metric.kind} |" in table
        assert f"# TYPE {name} {metric.kind}" in scraped
        assert metric.meaning
    assert all(isinstance(metric, Metric) for metric in telemetry.METRICS)


def test_a_process_is_alive_while_its_loops_turn(health: Health, server: HealthServer) -> None:
    loop = health.loop("claim", limit_seconds=0.2)
    assert checks(server, "/healthz") == (200, {"claim": True})
    time.sleep(0.3)
    assert checks(server, "/healthz") == (503, {"claim": False})
    loop.beat()
    assert checks(server, "/healthz") == (200, {"claim": True})
    loop.end()
    time.sleep(0.3)
    assert checks(server, "/healthz") == (200, {"claim": True})


def test_a_process_is_ready_once_all_that_is_expected_says_so(health: Health, server: HealthServer) -> None:
    health.expect("intake")
    assert checks(server, "/readyz") == (503, {"intake": False})
    assert checks(server, "/healthz") == (200, {})
    health.report("intake", ready=True, detail="6 partitions")
    health.expect("intake")
    assert checks(server, "/readyz") == (200, {"intake": True})
    health.check("hung", lambda: Status(False, "no"))
    assert checks(server, "/readyz") == (503, {"intake": True, "hung": False})


def test_the_body_says_why_and_holds_no_secret(health: Health, server: HealthServer) -> None:
    health.report("database", ready=False, detail="postgresql://u:secret@h does not answer")
    body = json.loads(get(server, "/readyz")[1])
    assert body == {
        "ok": False,
        "checks": {"database": {"ok": False, "detail": "postgresql://u:***@h does not answer"}},
    }


def test_other_paths_are_not_found_and_a_query_does_not_matter(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404
    assert get(server, "/healthz?x=1")[0] == 200


def test_a_taken_port_is_an_operators_matter(server: HealthServer) -> None:
    with pytest.raises(ConfigurationError, match=f"{server.port} is taken.*ROWCALL_HEALTH_PORT"):
        telemetry.serve(settings.load({"ROWCALL_HEALTH_PORT": str(server.port)}))
    with pytest.raises(ConfigurationError, match="ROWCALL_HEALTH_HOST"):
        telemetry.serve(settings.load({"ROWCALL_HEALTH_PORT": "0", "ROWCALL_HEALTH_HOST": "192.0.2.1"}))


def test_a_client_that_says_nothing_keeps_nobody_waiting(server: HealthServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/healthz")[0] == 200
