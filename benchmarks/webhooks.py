"""webhooks_per_s: verified and broker-acknowledged webhooks a second, one process of `rowcall webhooks run`.

The sender is one process with 64 kept connections; bodies of 400 bytes, each with a delivery ID and a signature of its
own. Every answer must be 202; afterwards the topic is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import statistics
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.figures import Measured, NotMeasured, rounded
from benchmarks.services import Child, Services, rowcall, running, until
from consumer.kafka import Brokers, Place
from consumer.settings import load
from debezium import ports

SECRET: Final = "a secret of the benchmark, long enough"
CONNECTIONS: Final = 64
BODY: Final = b'{"text": "%s"}' % (b"x" * 386)


def measure(services: Services) -> Measured:
    """Rounds of a fixed number of requests."""
    requests, rounds = (500, 2) if services.quick else (6000, 5)
    info = services.stack()
    topic = f"bench-webhooks-{uuid.uuid4().hex[:8]}"
    sources = Path(services.directory) / "webhooks.toml"
    sources.write_text(
        f"[source.hub]\nscheme = 'github'\nsecrets = ['HUB_SECRET']\ntopic = '{topic}'\n"
        "rate_per_second = 1000000\nburst = 1000000\n"
    )
    port = ports.choose()
    environment = {
        **info.environment(),
        "ROWCALL_WEBHOOKS": str(sources),
        "ROWCALL_WEBHOOK_PORT": str(port),
        "ROWCALL_HEALTH_PORT": "0",
        "ROWCALL_LOG_LEVEL": "WARNING",
        "HUB_SECRET": SECRET,
    }
    child = Child(rowcall("webhooks", "run"), environment, Path(services.directory) / "webhooks.log")
    with running([child]):
        url = f"http://127.0.0.1:{port}/webhooks/hub"
        until(lambda: asyncio.run(_answered(url)), "the endpoint takes webhooks", seconds=60, every=0.2)
        rates = [asyncio.run(_round(url, number, requests)) for number in range(rounds + 1)][1:]
    brokers = Brokers(load({"KAFKA_BOOTSTRAP_SERVERS": info.kafka_bootstrap_servers}))
    places = [Place(topic, partition) for partition in brokers.topics([topic])[topic].partitions]
    stored = sum(brokers.ends(places).values())
    if stored != requests * (rounds + 1) + 1:
        raise NotMeasured(f"{requests * (rounds + 1) + 1} webhooks were taken and {stored} are on the topic")
    return Measured(
        {"webhooks_per_s": round(statistics.median(rates), 1)},
        {"rounds_per_s": rounded(rates), "connections": CONNECTIONS, "body_bytes": len(BODY), "on_topic": stored},
    )


async def _answered(url: str) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, data=BODY, headers=_headers("probe")) as answer:
                return answer.status == 202
        except aiohttp.ClientConnectionError:
            return False


async def _round(url: str, number: int, requests: int) -> float:
    waiting = [_headers(f"{number}-{request}") for request in range(requests)]
    statuses: Counter[int] = Counter()

    async def send(session: aiohttp.ClientSession) -> None:
        while waiting:
            async with session.post(url, data=BODY, headers=waiting.pop()) as answer:
                await answer.read()
                statuses[answer.status] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        began = time.monotonic()
        await asyncio.gather(*(send(session) for _ in range(CONNECTIONS)))
        seconds = time.monotonic() - began
    if statuses != {202: requests}:
        raise NotMeasured(f"not every webhook was answered 202: {dict(statuses)}")
    return requests / seconds


def _headers(delivery: str) -> dict[str, str]:
    signature = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": delivery, "X-GitHub-Event": "push"}
