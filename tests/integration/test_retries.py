"""Retries of steps and of runs, their limits in time, and the verdicts an agent gives itself."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator

import pytest

from tests.agents.harness import Records, records, running, settings
from tests.agents.shared import database
from tests.agents.trying import ALL, CALLS, LATE
from tests.fixtures.postgres import create, drop

__all__ = ["database"]


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    CALLS.clear()
    LATE.clear()
    async with records(database, clear=True) as found:
        await found.know(ALL)
        yield found


async def test_a_step_is_tried_again_within_the_attempt_and_repeats_no_finished_step(
    database: str, view: Records
) -> None:
    job_id = await view.add("patient", {"do": "flaky", "times": 2})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 1)
    assert {(job_id, "before"): 1, (job_id, "fails"): 3} == CALLS


async def test_a_step_out_of_tries_fails_the_attempt_and_the_next_one_resumes_at_it(
    database: str, view: Records
) -> None:
    job_id = await view.add("patient", {"do": "flaky", "times": 4})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 2)
    assert {(job_id, "before"): 1, (job_id, "fails"): 5} == CALLS


@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
async def test_a_step_beyond_its_timeout_has_a_code_of_its_own(database: str, view: Records, thread: bool) -> None:
    job_id = await view.add("patient", {"do": "overruns", "times": 9, "thread": thread}, attempts=1)
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"]) == ("FAILED", "step_timeout")
    assert "step 'slow' did not end within its timeout of 0.1 s" in job["last_error"]


async def test_what_a_step_returns_after_its_timeout_is_kept_nowhere(database: str, view: Records) -> None:
    data = {"do": "overruns", "times": 1, "thread": True, "retry": True, "then": 0.6}
    job_id = await view.add("patient", data)
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    # The first try went on in its thread, and ended while the run was under way.
    assert [late for run, late in LATE if run == job_id] == ["try 1"]
    assert (job["attempt_count"], json.loads(job["result_text"])["title"]) == (1, "try 2")
    kept = await view.all("SELECT name, output::text AS output FROM rowcall.job_steps WHERE name = 'slow'")
    assert len(kept) == 1 and "try 2" in kept[0]["output"]


async def test_a_timeout_that_is_none_is_the_agents_fault(database: str, view: Records) -> None:
    job_id = await view.add("patient", {"do": "no_time"})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"]) == ("FAILED", "agent_error")


@pytest.mark.parametrize(
    ("error", "status", "calls"), [("index", "SUCCEEDED", 3), ("key", "FAILED", 1), ("value", "FAILED", 1)]
)
async def test_an_agents_own_policy_chooses_the_errors_worth_an_attempt(
    database: str, view: Records, error: str, status: str, calls: int
) -> None:
    job_id = await view.add("picky", {"error": error})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
    assert (job["status"], CALLS[job_id, "run"]) == (status, calls)
    if status == "FAILED":
        assert "policy" in job["last_error"] and job["error_code"] == "agent_exception"


async def test_an_agents_own_deadline_ends_its_attempts(database: str, view: Records) -> None:
    job_id = await view.add("brief", attempts=1)
    async with running(settings(database), agents=ALL):
        running_ = await view.wait(job_id, "RUNNING", "FAILED")
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"]) == ("FAILED", "deadline_exceeded")
    assert "0.4 s (the agent's deadline_seconds)" in job["last_error"]
    # The database knows it too, a lease later: a process that hangs as a whole loses the run then.
    if running_["deadline"] is not None:
        assert running_["deadline"] - running_["started_at"] == dt.timedelta(seconds=0.4 + 3.0)


async def test_a_run_that_its_agent_cancels_is_cancelled_with_the_reason(database: str, view: Records) -> None:
    job_id = await view.add("patient", {"do": "cancels"}, key="k")
    behind = await view.add("patient", {"do": "flaky", "times": 0}, key="k")
    async with running(settings(database), agents=ALL):
        await view.wait(behind, "SUCCEEDED")
    job = await view.job(job_id)
    assert (job["status"], job["error_code"], job["last_error"]) == (
        "CANCELLED", "cancelled_by_agent", "the order was withdrawn"
    )  # fmt: skip


async def test_a_snoozed_run_goes_on_at_its_time_by_the_databases_clock(database: str, view: Records) -> None:
    (now,) = await view.all("SELECT rowcall.now() AS at")
    until = now["at"] + dt.timedelta(seconds=1.0)
    job_id = await view.add("patient", {"do": "snoozes", "until": until.isoformat()})
    async with running(settings(database), agents=ALL):
        waiting = await view.wait(job_id, "WAITING_RETRY")
        job = await view.wait(job_id)
    # Never before it, and as soon after it as the machine can.
    assert 0 <= (waiting["run_after"] - until).total_seconds() < 5
    assert (waiting["error_code"], waiting["attempt_count"]) == ("snoozed", 0)
    assert (job["status"], job["attempt_count"], job["postponed"]) == ("SUCCEEDED", 1, 1)


@pytest.mark.parametrize("until", ["0001-01-02T00:00:00", "9999-12-30T00:00:00"], ids=["past", "far"])
async def test_any_time_a_run_is_snoozed_until_can_be_stored(database: str, view: Records, until: str) -> None:
    job_id = await view.add("patient", {"do": "snoozes", "until": until})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id, "SUCCEEDED", "FAILED", "WAITING_RETRY")
        if until.startswith("0001"):
            job = await view.wait(job_id)
    assert job["status"] == ("SUCCEEDED" if until.startswith("0001") else "WAITING_RETRY")


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
async def test_a_worker_whose_clock_is_wrong_by_an_hour_keeps_leases_delays_and_times(server: str, hours: int) -> None:
    CALLS.clear()
    url = create(server)
    try:
        async with records(url) as view:
            await view.know(ALL)
            # Seen from the database, it is the worker's clock that is wrong.
            await view.execute(
                "CREATE OR REPLACE FUNCTION rowcall.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE "
                f"AS $$SELECT statement_timestamp() + make_interval(hours => {hours})$$"
            )
            (now,) = await view.all("SELECT rowcall.now() AS at")
            until = now["at"] + dt.timedelta(seconds=1.0)
            ids = [
                await view.add("patient", {"do": "snoozes", "until": until.isoformat()}),
                await view.add("picky", {"error": "index"}),
                await view.add("patient", {"do": "overruns", "times": 0, "thread": False, "then": 2.0}),
            ]
            async with running(settings(url, lease_seconds=0.9, beat_seconds=0.3), agents=ALL):
                await view.wait_all(ids, seconds=10)
            jobs = await view.all("SELECT losses, lease_epoch FROM rowcall.agent_jobs ORDER BY id")
        assert [(job["losses"], job["lease_epoch"]) for job in jobs] == [(0, 2), (0, 3), (0, 1)]
    finally:
        drop(url)


async def test_a_run_that_asks_for_later_for_ever_is_caught_and_told(database: str, view: Records) -> None:
    job_id = await view.add("patient", {"do": "for_ever"})
    async with running(settings(database), agents=ALL):
        job = await view.wait(job_id)
        await asyncio.sleep(0.2)
    assert (job["status"], job["error_code"], CALLS[job_id, "run"]) == ("FAILED", "postponed_too_often", 4)
    assert "max_postponements is 3" in job["last_error"] and "not yet" in job["last_error"]
