"""A run that ends its worker's process fails by itself in the end, and takes no innocent run with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agents.harness import Records, records
from tests.crash.test_worker_crash import Worker
from tests.fixtures.postgres import create, drop


@pytest.fixture
def database(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database) as found:
        yield found


def worker(database: str, log: Path) -> Worker:
    environment = {
        "DATABASE_URL": database,
        "ROWCALL_AGENTS": "tests.agents",
        "ROWCALL_LEASE_SECONDS": "1.2",
        "ROWCALL_BEAT_SECONDS": "0.3",
        "ROWCALL_POLL_SECONDS": "0.2",
        "ROWCALL_AUTO_ACTIVATE": "false",
        "ROWCALL_HEALTH_PORT": "0",
    }
    return Worker(environment, log)


async def test_one_killer_among_fifty_fails_and_the_innocent_all_succeed_unharmed(
    database: str, view: Records, tmp_path: Path
) -> None:
    ids = [await view.add("killer", {"kill": number == 25}) for number in range(51)]
    guilty = ids.pop(25)
    deaths = 0
    until = time.monotonic() + 120
    running = worker(database, tmp_path / "worker0.log")
    try:
        while time.monotonic() < until:
            open_ = await view.all("SELECT FROM rowcall.agent_jobs WHERE status NOT IN ('SUCCEEDED', 'FAILED') LIMIT 1")
            if not open_:
                break
            if running.process.poll() is not None:
                assert running.process.returncode == 137, running.said
                deaths += 1
                running = worker(database, tmp_path / f"worker{deaths}.log")
            await asyncio.sleep(0.05)
    finally:
        running.end()
    jobs = {row["id"]: row for row in await view.all("SELECT * FROM rowcall.agent_jobs")}
    assert {jobs[job_id]["status"] for job_id in ids} == {"SUCCEEDED"}
    assert {jobs[job_id]["attempt_count"] for job_id in ids} == {1}
    killer = jobs[guilty]
    assert (killer["status"], killer["error_code"], killer["losses"]) == ("FAILED", "lease_expired", 5)
    assert "loss 5 of 5" in killer["last_error"] and deaths == 5
