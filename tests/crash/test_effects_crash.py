"""Workers that die or freeze around an effect: nothing is done twice at the other system, and nothing is lost.

Judged by what the receiving server counted, by business key and by Idempotency-Key, not by our own tables.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer import db, operate
from consumer.operate import Act
from tests.agents.harness import Records, records
from tests.agents.shared import receiver
from tests.fixtures.postgres import create, drop
from tests.receiver import Receiver

__all__ = ["receiver"]

POINTS = ("before_plan", "after_plan", "after_sent", "after_act", "after_confirm")
MODES = ("idempotent", "reconcile", "person")
RUNS = 200
ROUNDS = 2
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def database(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database) as found:
        yield found


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Start]:
    workers: list[subprocess.Popen[bytes]] = []

    def begin(at: str = "", hits: int = 1, *, freeze: bool = False, in_flight: int = 32) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "DATABASE_URL": database,
            "ROWCALL_AGENTS": "tests.agents",
            "ROWCALL_LEASE_SECONDS": "1.5",
            "ROWCALL_BEAT_SECONDS": "0.4",
            "ROWCALL_POLL_SECONDS": "0.2",
            "ROWCALL_RETRY_BASE_SECONDS": "0.1",
            "ROWCALL_RETRY_CAP_SECONDS": "0.3",
            "ROWCALL_RUNS_IN_FLIGHT": str(in_flight),
            "ROWCALL_AUTO_ACTIVATE": "false",
            "ROWCALL_HEALTH_PORT": "0",
            "ROWCALL_HTTP_ALLOW": "127.0.0.1",
            "EFFECTS_AT": at,
            "EFFECTS_HITS": str(hits),
            "EFFECTS_FREEZE": "1" if freeze else "",
        }
        log = tmp_path / f"worker{len(workers)}.log"
        with log.open("wb") as file:
            command = [sys.executable, "-m", "tests.agents.effects_worker", "execute"]
            workers.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
        worker.kill()
        worker.wait(10)


async def add(view: Records, receiver: Receiver, number: int, mode: str) -> int:
    dedup = "?dedup=1" if mode == "idempotent" else ""
    data = {"n": number, "mode": mode, "url": f"{receiver.url}/act{dedup}", "base": receiver.url}
    return await view.add("sender", data, attempts=50)


async def all_decided(view: Records, seconds: float) -> list[Any]:
    """The runs, when each has succeeded or waits for a person."""
    await view.wait_for(
        "SELECT FROM rowcall.agent_jobs HAVING bool_and(status IN ('SUCCEEDED', 'WAITING_REVIEW'))", seconds=seconds
    )
    return await view.all(
        "SELECT id, status, error_code, payload ->> 'n' AS n, payload ->> 'mode' AS mode FROM rowcall.agent_jobs"
    )


async def test_no_effect_is_doubled_and_none_is_lost_when_workers_die_at_five_points_around_it(
    view: Records, database: str, receiver: Receiver, start: Start
) -> None:
    for number in range(RUNS):
        await add(view, receiver, number, MODES[number % 3])
    for turn in range(ROUNDS):
        dying = [start(at, 3 + turn, in_flight=6) for at in POINTS]
        ended = await asyncio.gather(*(asyncio.to_thread(worker.wait, 40) for worker in dying))
        assert ended == [-signal.SIGKILL] * len(POINTS)
    start()
    runs = await all_decided(view, seconds=60)
    waiting = [run for run in runs if run["status"] == "WAITING_REVIEW"]
    assert len(runs) == RUNS and waiting
    assert {(run["mode"], run["error_code"]) for run in waiting} == {("person", "effect_unknown")}
    assert max(receiver.acts.values()) == 1, receiver.acts.most_common(5)
    done = {run["n"] for run in runs if run["status"] == "SUCCEEDED"}
    assert {number for number in done if receiver.acts[number] != 1} == set()
    # A person looks at the other system, and says what is there.
    with db.connect(database, name="test") as session:
        for row in operate.list_effects(session, state="UNKNOWN", limit=RUNS):
            operate.resolve_effect(session, row["id"], Act("ada"), happened=receiver.acts[row["key"]] > 0)
    runs = await all_decided(view, seconds=60)
    assert Counter(run["status"] for run in runs) == {"SUCCEEDED": RUNS}
    assert receiver.acts == {str(number): 1 for number in range(RUNS)}
    # One key an effect, however often it was sent.
    assert len(receiver.received) == RUNS


@pytest.mark.parametrize("at", ["after_plan", "before_word", "after_act"])
async def test_a_worker_that_lost_its_lease_cannot_send_or_confirm_and_its_late_answer_is_marked(
    view: Records, receiver: Receiver, start: Start, tmp_path: Path, at: str
) -> None:
    job_id = await add(view, receiver, 0, "reconcile")
    first = start(at, freeze=True)
    states = {"after_plan": "PLANNED", "before_word": "SENT", "after_act": "SENT"}
    await view.wait_for("SELECT FROM rowcall.effects WHERE state = %s", states[at], seconds=20)
    if at == "after_act":
        await asyncio.sleep(0.3)
    start()
    await view.wait(job_id, "SUCCEEDED", seconds=30)
    effect = await view.one("SELECT *, response::text FROM rowcall.effects")
    first.send_signal(signal.SIGCONT)
    for _ in range(100):
        if "LeaseLost" in (tmp_path / "worker0.log").read_text():
            break
        await asyncio.sleep(0.1)
    assert "LeaseLost" in (tmp_path / "worker0.log").read_text()
    await asyncio.sleep(0.5)
    assert receiver.acts == {"0": 1} and sum(receiver.received.values()) == 1
    assert await view.one("SELECT *, response::text FROM rowcall.effects") == effect
    calls = await view.all("SELECT lease_epoch, state, late FROM rowcall.external_calls WHERE endpoint LIKE 'POST%%'"
                           " ORDER BY id")  # fmt: skip
    late = [(call["lease_epoch"], call["late"]) for call in calls if call["state"] == "done"]
    assert late == ([(1, True)] if at == "after_act" else [(2, False)])
    assert effect["resolved_by"] == ("reconcile" if at == "after_act" else "server")
