"""The webhook endpoint as its own process, on the real brokers and registry."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from consumer.kafka import Record, read_topic
from consumer.records import Coordinates, Event
from consumer.schema_registry import SchemaRegistry
from consumer.settings import load
from consumer.wire import Decoder
from debezium import ports
from debezium.stack import StackInfo

SECRET = "a secret of the test, long enough"


@dataclass
class Endpoint:
    """A running endpoint with one source."""

    url: str
    topic: str
    stack: StackInfo
    process: subprocess.Popen[bytes]

    def post(self, body: bytes, delivery: str = "d1", secret: str = SECRET) -> httpx.Response:
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "X-Hub-Signature-256": f"sha256={signature}",
            "X-GitHub-Delivery": delivery,
            "X-GitHub-Event": "push",
            "Authorization": "Bearer not-to-be-kept",
        }
        return httpx.post(f"{self.url}/webhooks/hub?a=1", content=body, headers=headers, timeout=20)

    def records(self) -> list[Record]:
        return read_topic(load({"KAFKA_BOOTSTRAP_SERVERS": self.stack.kafka_bootstrap_servers}), self.topic)

    def events(self) -> list[Event]:
        found = []
        with SchemaRegistry(self.stack.schema_registry_url) as registry:
            decoder = Decoder(registry.schema, epoch="1")
            for record in self.records():
                where = Coordinates(record.topic, record.partition, record.offset)
                event = decoder.decode(record.key, record.value, record.headers, where)
                assert isinstance(event, Event)
                found.append(event)
        return found


def start(stack: StackInfo, folder: Path, *, kafka: str | None = None) -> Endpoint:
    topic = f"hooks-{uuid.uuid4().hex}"
    (folder / "webhooks.toml").write_text(
        f"[source.hub]\nscheme = 'github'\nsecrets = ['HUB_SECRET']\ntopic = '{topic}'\nmax_bytes = 100000\n"
        "[source.slow]\nscheme = 'bearer'\nsecrets = ['HUB_SECRET']\nrate_per_second = 0.1\nburst = 2\n"
    )
    port = ports.choose()
    env = os.environ | {
        "ROWCALL_WEBHOOKS": str(folder / "webhooks.toml"),
        "ROWCALL_WEBHOOK_PORT": str(port),
        "ROWCALL_HEALTH_PORT": "0",
        "KAFKA_BOOTSTRAP_SERVERS": kafka or stack.kafka_bootstrap_servers,
        "SCHEMA_REGISTRY_URL": stack.schema_registry_url,
        "HUB_SECRET": SECRET,
    }
    process = subprocess.Popen([sys.executable, "-m", "consumer.cli", "webhooks", "run"], env=env)
    endpoint = Endpoint(f"http://127.0.0.1:{port}", topic, stack, process)
    wait_for(endpoint)
    return endpoint


def wait_for(endpoint: Endpoint) -> None:
    ends = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"{endpoint.url}/healthz")
            return
        except httpx.TransportError:
            assert time.monotonic() < ends and endpoint.process.poll() is None
            time.sleep(0.05)


@pytest.fixture
def endpoint(stack: StackInfo, tmp_path: Path) -> Iterator[Endpoint]:
    made = start(stack, tmp_path)
    ends = time.monotonic() + 30
    while made.post(b"probe", "probe").status_code == 503 and time.monotonic() < ends:
        time.sleep(0.1)
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(30) == 0


def test_verified_webhook_is_on_the_topic_byte_for_byte_when_it_is_answered(endpoint: Endpoint) -> None:
    body = b'{"a": "\xc3\xbc\x00",\n  "a": 1}\xff'
    answer = endpoint.post(body)
    assert (answer.status_code, answer.json()["delivery"]) == (202, "d1")
    event = endpoint.events()[-1]
    assert event.data["body"] == body
    assert (event.data["source"], event.data["event_type"], event.data["query"]) == ("hub", "push", "a=1")
    assert "authorization" not in event.data["headers"]
    assert event.occurred_at is None
    assert event.id.endswith(answer.json()["event"])


def test_delivery_sent_again_has_the_same_event_id(endpoint: Endpoint) -> None:
    endpoint.post(b"one", "again")
    endpoint.post(b"one", "again")
    ids = [event.id for event in endpoint.events() if event.data["delivery"] == "again"]
    assert len(ids) == 2 and len(set(ids)) == 1


def test_what_is_not_the_sources_own_never_reaches_the_topic(endpoint: Endpoint) -> None:
    before = len(endpoint.records())
    assert endpoint.post(b"x", secret="a secret of somebody else").status_code == 401
    assert httpx.post(f"{endpoint.url}/webhooks/hub", content=b"x").status_code == 401
    assert httpx.post(f"{endpoint.url}/webhooks/unknown", content=b"x").status_code == 404
    assert httpx.get(f"{endpoint.url}/webhooks/hub").status_code == 405
    assert endpoint.post(b"x" * 100_001).status_code == 413
    chunked = httpx.post(f"{endpoint.url}/webhooks/hub", content=(b"x" * 10_000 for _ in range(30)))
    assert chunked.status_code == 413
    assert len(endpoint.records()) == before


def test_source_over_its_rate_is_told_to_wait(endpoint: Endpoint) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    answers = [httpx.post(f"{endpoint.url}/webhooks/slow", content=b"%d" % n, headers=headers) for n in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert answers[2].headers["retry-after"] == "1"


def test_brokers_away_is_503_and_nothing_is_promised(stack: StackInfo, tmp_path: Path) -> None:
    made = start(stack, tmp_path, kafka=f"127.0.0.1:{ports.choose()}")
    try:
        answer = made.post(b"x")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    finally:
        made.process.terminate()
        assert made.process.wait(30) == 0
