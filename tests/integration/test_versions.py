"""A run is finished by the version of its agent that began it, through every order of a deploy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from consumer import db, operate
from consumer.agents.door import Agent
from tests.agents.harness import Records, records, running, settings
from tests.agents.shared import database
from tests.agents.versions import POSTPONED, version

__all__ = ["database"]

OLD, NEW = version(1), version(2)


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    POSTPONED.clear()
    async with records(database, clear=True) as found:
        await found.know([OLD])
        yield found


async def begun(view: Records, database: str, count: int = 1, **data: object) -> list[int]:
    """Runs whose first step version 1 has made, its worker stopped in the middle."""
    ids = [await view.add("versioned", {"waits": 1, **data}, key=f"k{number}") for number in range(count)]
    async with running(settings(database, drain_seconds=0.0), agents=[OLD]):
        for job_id in ids:
            await view.wait_for("SELECT FROM rowcall.job_steps WHERE job_id = %s", job_id)
    return ids


def titles(job: dict[str, object]) -> object:
    return json.loads(str(job["result_text"]))["title"]


async def test_a_run_begun_by_one_version_is_parked_by_another_and_says_what_to_do(
    database: str, view: Records
) -> None:
    (job_id,) = await begun(view, database)
    behind = await view.add("versioned", {}, key="k0")
    other = await view.add("versioned", {}, key="elsewhere")
    await view.know([NEW])
    async with running(settings(database), agents=[NEW]):
        job = await view.wait(job_id, "PARKED")
        await view.wait(other, "SUCCEEDED")
        epoch = job["lease_epoch"]
        await asyncio.sleep(1.0)
        # Parked once, not claimed again and again, and its key waits.
        assert (await view.job(job_id))["lease_epoch"] == epoch
        assert (await view.job(behind))["status"] == "PENDING"
    assert (job["reason"], job["error_code"], job["attempt_count"]) == ("version", "version_pinned", 0)
    for part in ("version 1 of versioned", "version 2", f"rowcall jobs retry {job_id} --from-start", "jobs cancel"):
        assert part in job["last_error"]


async def test_a_worker_of_the_pinned_version_goes_on_with_a_parked_run(database: str, view: Records) -> None:
    (job_id,) = await begun(view, database)
    await view.execute("UPDATE rowcall.agent_jobs SET payload = '{}'")
    await view.know([NEW])
    async with running(settings(database), agents=[NEW]):
        await view.wait(job_id, "PARKED")
        async with running(settings(database), agents=[OLD]):
            job = await view.wait(job_id, "SUCCEEDED")
    assert (titles(job), job["attempt_count"]) == ("1/1", 1)
    assert await view.all("SELECT FROM rowcall.lanes") == []


async def test_a_retry_from_the_start_lets_the_new_version_run_it_and_keeps_the_old_steps_as_evidence(
    database: str, view: Records
) -> None:
    (job_id,) = await begun(view, database)
    await view.know([NEW])
    session = db.connect(database, name="test")
    async with running(settings(database), agents=[NEW]):
        await view.wait(job_id, "PARKED")
        moved = operate.retry(session, job_id, operate.Act("me"), from_start=True)
        job = await view.wait(job_id, "SUCCEEDED")
    session.close()
    assert (titles(job), job["agent_version"], moved.delivery) == ("2/2", 2, 2)
    steps = await view.all("SELECT name, superseded, agent_version FROM rowcall.job_steps ORDER BY superseded, number")
    assert [(row["name"], row["superseded"], row["agent_version"]) for row in steps] == [
        ("first", 0, 2), ("second", 0, 2), ("write_result", 0, 2), ("first", 1, 1),
    ]  # fmt: skip


async def test_a_run_without_a_checkpoint_just_runs_on_the_new_version(database: str, view: Records) -> None:
    job_id = await view.add("versioned", {"steps": False, "waits": 1})
    async with running(settings(database, drain_seconds=0.0), agents=[OLD]):
        await view.wait(job_id, "RUNNING")
        await asyncio.sleep(0.1)
    async with running(settings(database), agents=[NEW]):
        job = await view.wait(job_id, "SUCCEEDED")
    assert titles(job) == "0/2"


@pytest.mark.parametrize(("old", "new"), [(OLD, NEW), (NEW, OLD)], ids=["forward", "back"])
async def test_a_rolling_deploy_in_either_direction_ends_every_run_on_the_version_that_began_it(
    database: str, view: Records, old: Agent, new: Agent
) -> None:
    # Both versions at work at once, and every run comes back to the queue in the middle, where either may claim it.
    await view.know([old, new])
    ids = [await view.add("versioned", {"postpones": True}, key=f"k{n % 30}") for n in range(60)]
    quick = settings(database, poll_seconds=0.05, runs_in_flight=8)
    async with running(quick, agents=[old]):
        await view.wait_for("SELECT FROM rowcall.job_steps OFFSET 5")
        async with running(quick, agents=[new]):
            ids += [await view.add("versioned", {"postpones": True}, key=f"k{n % 30}") for n in range(60)]
            await view.wait_all(ids)
    jobs = await view.all("SELECT *, result::text AS result_text FROM rowcall.agent_jobs")
    assert {titles(job) for job in jobs} == {"1/1", "2/2"}
    assert max(job["attempt_count"] for job in jobs) == 1
    # Each time a run comes back it is parked at most once before its own version has it: no ping-pong.
    assert 2 < max(job["lease_epoch"] for job in jobs) <= 2 + 2
    assert await view.all("SELECT FROM rowcall.lanes") == []


async def test_an_older_worker_goes_on_with_runs_that_nobody_has_begun(database: str, view: Records) -> None:
    await view.know([NEW])
    job_id = await view.add("versioned", {})
    async with running(settings(database), agents=[OLD]):
        assert titles(await view.wait(job_id, "SUCCEEDED")) == "1/1"
    assert (await view.one("SELECT version FROM rowcall.agents WHERE name = 'versioned'"))["version"] == 2


async def test_a_run_approved_after_a_deploy_is_listed_and_finished_by_its_own_version(
    database: str, view: Records
) -> None:
    job_id = await view.add("versioned", {"held": True})
    async with running(settings(database), agents=[OLD]):
        await view.wait(job_id, "WAITING_REVIEW")
    await view.know([NEW])
    session = db.connect(database, name="test")
    async with running(settings(database), agents=[NEW]):
        (review,) = operate.list_reviews(session)
        operate.approve(session, review["id"], operate.Act("me"))
        await view.wait(job_id, "PARKED")
        listed = operate.list_jobs(session, status="PARKED")
        assert [(row["id"], row["reason"], row["error_code"]) for row in listed] == [
            (job_id, "version", "version_pinned")
        ]
        async with running(settings(database), agents=[OLD]):
            assert titles(await view.wait(job_id, "SUCCEEDED")) == "1/1"
    session.close()
