"""Workers as real processes that die or freeze at each boundary: afterwards one effect and one record for each run.

Model calls are counted by idempotency key in the log of the scripted endpoint, which outlives the workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.harness import Records
from tests.agents.shared import database, view
from tests.scripted_model import Endpoint, Reply, serve

__all__ = ["database", "view"]

ANSWER = Reply({"title": "x", "score": 1}, delay_seconds=0.05)
Start = Callable[..., "Worker"]


class Worker:
    """One `rowcall execute` and its log."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "consumer.cli", "execute"],
                env=os.environ | environment,
                stdout=file,
                stderr=file,
            )

    @property
    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text("utf-8")

    async def died(self, seconds: float = 15.0) -> int:
        """Wait for its end; the return code, negative for a signal."""
        return await asyncio.to_thread(self.process.wait, seconds)

    async def says(self, text: str, seconds: float = 10.0) -> None:
        """Wait until its log holds `text`."""
        for _ in range(int(seconds * 20)):
            if text in self.said:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{text!r} not in:\n{self.said}")

    def end(self) -> None:
        """Whatever state it is in."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with serve(ANSWER) as endpoint:
        yield endpoint


@pytest.fixture
def start(database: str, model: Endpoint, tmp_path: Path) -> Iterator[Start]:
    yield from workers_of(database, model, tmp_path)


def workers_of(database: str, model: Endpoint, tmp_path: Path) -> Iterator[Start]:
    """Starts workers on the database; ends them all afterwards."""
    workers: list[Worker] = []

    def begin(crash_at: str = "", **changed: Any) -> Worker:
        environment = {
            "DATABASE_URL": database,
            "MODEL_BASE_URL": model.url,
            "ROWCALL_AGENTS": "tests.agents",
            "ROWCALL_LEASE_SECONDS": "1.5",
            "ROWCALL_BEAT_SECONDS": "0.4",
            "ROWCALL_POLL_SECONDS": "0.2",
            # The test has written the agents' rows, and there is no Kafka here to activate them with.
            "ROWCALL_AUTO_ACTIVATE": "false",
            "ROWCALL_HEALTH_PORT": "0",
            "ROWCALL_CRASH_AT": crash_at,
        } | {name: str(value) for name, value in changed.items()}
        workers.append(Worker(environment, tmp_path / f"worker{len(workers)}.log"))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()


def asked(model: Endpoint) -> Counter[str]:
    """Model calls by idempotency key."""
    return Counter(call.headers["idempotency-key"] for call in model.calls)


async def check_once_each(view: Records, ids: list[int]) -> None:
    """One result, one effect, one outbox row for each run."""
    assert await view.effects() == sorted(range(len(ids)))
    outbox = await view.all("SELECT job_id, count(*) AS n FROM rowcall.outbox GROUP BY 1")
    assert {row["job_id"]: row["n"] for row in outbox} == dict.fromkeys(ids, 1)
    results = await view.all("SELECT id FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED' AND result IS NOT NULL")
    assert len(results) == len(ids)
    writes = await view.all(
        "SELECT job_id, count(*) AS n FROM rowcall.job_steps WHERE name = 'write_result' GROUP BY 1"
    )
    assert {row["job_id"]: row["n"] for row in writes} == dict.fromkeys(ids, 1)


@pytest.mark.parametrize(
    ("at", "calls_of_one"),
    [("after_claim", 1), ("before_checkpoint", 2), ("after_checkpoint", 1), ("in_outcome", 1)],
)
async def test_a_worker_that_dies_at_a_boundary_leaves_each_run_done_once(
    view: Records, model: Endpoint, start: Start, at: str, calls_of_one: int
) -> None:
    ids = [await view.add("crasher", {"n": n}) for n in range(4)]
    first = start(at)
    assert await first.died() == -signal.SIGKILL
    kept = {row["job_id"] for row in await view.all("SELECT job_id FROM rowcall.job_steps WHERE name = 'ask'")}
    before = asked(model)
    start()
    await view.wait_all(ids)
    await check_once_each(view, ids)
    after = asked(model)
    # A call whose answer was checkpointed is never made again; one that was not, once more at most.
    for job_id in ids:
        key = next(name for name in after if name.startswith(f"rowcall-{job_id}-"))
        assert after[key] - before[key] == (0 if job_id in kept else 1)
        assert after[key] <= calls_of_one or at == "after_checkpoint"
    if at in ("after_checkpoint", "in_outcome"):
        assert kept
    if at == "before_checkpoint":
        sent = await view.all("SELECT state FROM rowcall.external_calls ORDER BY id")
        assert len(sent) == sum(after.values()) and "sent" in {call["state"] for call in sent}


async def test_a_worker_that_dies_after_the_outcome_repeats_nothing(
    view: Records, model: Endpoint, start: Start
) -> None:
    ids = [await view.add("crasher", {"n": n}) for n in range(12)]
    first = start(ROWCALL_RUNS_IN_FLIGHT=2)
    await view.wait_for("SELECT FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED'", seconds=15)
    first.process.kill()
    assert await first.died() == -signal.SIGKILL
    done = {row["id"]: row for row in await view.all("SELECT * FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED'")}
    before = asked(model)
    start()
    await view.wait_all(ids)
    await check_once_each(view, ids)
    after = asked(model)
    for job_id, job in done.items():
        assert before[f"rowcall-{job_id}-1-ask"] == after[f"rowcall-{job_id}-1-ask"] == 1
        assert (await view.job(job_id))["updated_at"] == job["updated_at"]


async def test_a_frozen_worker_that_comes_back_writes_nothing_and_says_lease_lost(
    view: Records, model: Endpoint, start: Start
) -> None:
    model.script.replace([("", [Reply({"title": "slow", "score": 1}, delay_seconds=1.0), ANSWER])])
    job_id = await view.add("crasher", {"n": 0})
    first = start()
    await view.wait_for("SELECT FROM rowcall.external_calls", seconds=15)
    first.process.send_signal(signal.SIGSTOP)
    second = start()
    await view.wait_all([job_id])
    done = await view.job(job_id)
    first.process.send_signal(signal.SIGCONT)
    await first.says("LeaseLost")
    await asyncio.sleep(1)
    assert await view.job(job_id) == done
    assert (done["lease_epoch"], done["attempt_count"]) == (2, 1)
    await check_once_each(view, [job_id])
    assert (await view.one("SELECT text FROM public.effects"))["text"] == str(second.process.pid)
    assert {row["lease_epoch"] for row in await view.all("SELECT lease_epoch FROM rowcall.job_steps")} == {2}


async def test_a_worker_frozen_inside_its_outcome_is_taken_over_and_its_sql_rolled_back(
    view: Records, model: Endpoint, start: Start
) -> None:
    job_id = await view.add("crasher", {"n": 0})
    first = start("freeze_in_outcome")
    await view.wait_for("SELECT FROM rowcall.job_steps WHERE name = 'ask'", seconds=15)
    second = start()
    await view.wait_all([job_id], seconds=15)
    first.process.send_signal(signal.SIGCONT)
    await first.says("LeaseLost")
    await check_once_each(view, [job_id])
    assert (await view.one("SELECT text FROM public.effects"))["text"] == str(second.process.pid)
    assert asked(model) == {f"rowcall-{job_id}-1-ask": 1}


async def test_forty_events_and_a_kill_in_the_middle_repeat_no_checkpointed_call_and_no_effect(
    view: Records, model: Endpoint, start: Start
) -> None:
    # The nearest rival repeated 20 of 40 answered calls and 12 to 20 effects here (reference: Apache Flink Agents).
    ids = [await view.add("crasher", {"n": n, "seconds": 0.1 + 0.1 * (n % 5)}) for n in range(40)]
    first = start(ROWCALL_RUNS_IN_FLIGHT=8)
    await view.wait_for("SELECT FROM public.effects OFFSET 15", seconds=20)
    first.process.kill()
    await first.died()
    kept = {row["job_id"] for row in await view.all("SELECT job_id FROM rowcall.job_steps WHERE name = 'ask'")}
    unfinished = await view.all("SELECT id FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED' AND steps_done > 0")
    assert 15 < len(kept) < 40 and unfinished
    before = asked(model)
    start()
    await view.wait_all(ids)
    await check_once_each(view, ids)
    repeated = [
        job_id for job_id in kept if asked(model)[f"rowcall-{job_id}-1-ask"] != before[f"rowcall-{job_id}-1-ask"]
    ]
    assert repeated == []
    assert max(asked(model).values()) <= 2


async def test_sigterm_drains_and_ends_with_zero(view: Records, model: Endpoint, start: Start) -> None:
    job_id = await view.add("crasher", {"n": 0, "seconds": 1.0})
    worker = start()
    await view.wait_for("SELECT FROM rowcall.job_steps", seconds=15)
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.died() == 0
    assert (await view.job(job_id))["status"] == "SUCCEEDED"
    assert "Task exception was never retrieved" not in worker.said
