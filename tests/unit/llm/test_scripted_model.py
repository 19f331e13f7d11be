"""The scripted endpoint as a process: what it says, what it logs, and that it carries many waiting calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumer import http
from tests.scripted_model import Reply, serve

ROOT = Path(__file__).parents[3]
REPLY = {"answer": {"priority": "low"}}


@dataclass
class Running:
    """A running process with its port and log."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    script, log = tmp_path / "script.json", tmp_path / "calls.jsonl"
    script.write_text(
        json.dumps(
            {"rules": [{"contains": "slow", "replies": [{**REPLY, "delay_seconds": 0.5}]}, {"replies": [REPLY]}]}
        )
    )
    command = [sys.executable, "-m", "tests.scripted_model", "--script", str(script), "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield Running(process, int(process.stdout.readline().split()[-1]), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


async def post(client: http.AsyncHttp, running: Running, key: str, body: Any) -> http.Response:
    headers = {"idempotency-key": key, "authorization": "Bearer secret"}
    content = json.dumps(body).encode()
    return await client.request("POST", running.url("/v1/chat/completions"), content=content, headers=headers)


async def test_calls_can_be_counted_by_key_and_the_script_replaced(running: Running) -> None:
    async with http.open_async("model") as client:
        for key in ("a", "b", "a"):
            assert (await post(client, running, key, {})).ok
        changed = json.dumps({"rules": [{"replies": [{"status": 503, "body": "off"}]}]}).encode()
        assert (await client.request("PUT", running.url("/script"), content=changed)).ok
        assert (await post(client, running, "c", {})).status == 503
        listed = (await client.request("GET", running.url("/calls"))).json()
        assert (await client.request("GET", running.url("/health"))).ok
        assert (await client.request("GET", running.url("/else"))).status == 404
    lines = [json.loads(line) for line in running.log.read_text("utf-8").splitlines()]
    assert Counter(line["idempotency_key"] for line in lines) == {"a": 2, "b": 1, "c": 1}
    assert [item["sha256"] for item in listed["requests"]] == [line["sha256"] for line in lines]
    assert "secret" not in running.log.read_text("utf-8")


async def test_nine_hundred_calls_wait_at_once(running: Running) -> None:
    async with http.open_async("model") as client:
        calls = [post(client, running, str(number), {"kind": "slow"}) for number in range(900)]
        answers = await asyncio.gather(*calls)
    assert all(answer.ok for answer in answers) and len(running.log.read_text("utf-8").splitlines()) == 900


def test_an_endpoint_that_ends_while_others_connect_leaves_no_connection_behind() -> None:
    """Or whichever later test collects it fails in its place."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            ended = threading.Event()
            with serve(Reply({})) as endpoint:
                knocking = [threading.Thread(target=knock, args=(endpoint.port, ended)) for _ in range(4)]
                for thread in knocking:
                    thread.start()
                time.sleep(0.02)
            ended.set()
            for thread in knocking:
                thread.join(10)
        gc.collect()
    assert [str(warning.message) for warning in told if issubclass(warning.category, ResourceWarning)] == []


def knock(port: int, ended: threading.Event) -> None:
    """Connect again and again."""
    while not ended.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
