"""A worker that dies between a person's approval and the write: the answer is written once, by another one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consumer import db, operate
from tests.agents.harness import Records, records
from tests.agents.shared import database
from tests.crash.test_worker_crash import Start, check_once_each, workers_of
from tests.scripted_model import Endpoint, Reply, serve

__all__ = ["database"]


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database, clear=True) as found:
        yield found


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with serve(Reply({"title": "x", "score": 1})) as endpoint:
        yield endpoint


@pytest.fixture
def start(database: str, model: Endpoint, tmp_path: Path) -> Iterator[Start]:
    yield from workers_of(database, model, tmp_path)


@pytest.mark.parametrize("at", ["approved", "in_outcome"])
async def test_a_worker_killed_between_approval_and_write_leaves_the_answer_written_once(
    database: str, view: Records, model: Endpoint, start: Start, at: str
) -> None:
    ids = [await view.add("crasher-held", {"n": n}) for n in range(3)]
    first = start("in_outcome" if at == "in_outcome" else "")
    for job_id in ids:
        await view.wait(job_id, "WAITING_REVIEW")
    if at == "approved":
        # Frozen, so that the approvals are there and nobody has taken them up when it dies.
        first.process.send_signal(signal.SIGSTOP)
    with db.connect(database, name="person") as person:
        for row in await view.all("SELECT id FROM rowcall.reviews ORDER BY id"):
            await asyncio.to_thread(operate.approve, person, row["id"], operate.Act("ada"))
    if at == "approved":
        first.process.kill()
    assert await first.died() == -signal.SIGKILL
    assert await view.effects() == []
    start()
    await view.wait_all(ids)
    await check_once_each(view, ids)
    assert len(model.calls) == len(ids)
    states = await view.all("SELECT state, decided_by FROM rowcall.reviews")
    assert states == [{"state": "APPROVED", "decided_by": "ada"}] * len(ids)
