"""Steps and the context an agent works with: kept once, fenced, and nothing an agent does stops a worker."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.agents.doing import DONE
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view
from tests.receiver import receive
from tests.scripted_model import Reply, serve

__all__ = ["database", "view"]


async def test_a_step_name_used_twice_fails_the_run(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "duplicate"})
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "agent_error", 1)
    assert "'same'" in job["last_error"]


@pytest.mark.parametrize(
    "name",
    ["", "x" * 201, "a\x00b", "half \ud800", "write_result"],
    ids=["empty", "long", "nul", "surrogate", "reserved"],
)
async def test_a_name_that_cannot_be_a_steps_fails_its_own_run_and_no_other(
    database: str, view: Records, name: str
) -> None:
    job_id = await view.add("doer", {"do": "named", "name": name})
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=2.5)
        assert (job["status"], job["error_code"]) == ("FAILED", "agent_error")
        await view.wait(await view.add("doer", {"do": "named", "name": "fine"}), "SUCCEEDED", seconds=2.5)


@pytest.mark.parametrize("value", ["object", "cycle", "tuple_key", "function"])
async def test_a_step_whose_output_cannot_be_kept_fails_the_run(database: str, view: Records, value: str) -> None:
    job_id = await view.add("doer", {"do": "unkeepable", "value": value})
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "agent_error", 1)
    assert "'odd' returned cannot be kept" in job["last_error"]


async def test_a_step_whose_output_is_too_large_is_refused_before_it_is_written_and_never_tried_again(
    database: str, view: Records
) -> None:
    job_id = await view.add("doer", {"do": "unkeepable", "value": "large"})
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "step_too_large", 1)
    assert "return where it is" in job["last_error"]
    assert await view.all("SELECT 1 FROM rowcall.job_steps") == []


async def test_a_synchronous_step_has_the_runs_context_and_a_loop_of_its_own_calls_nobody(
    database: str, view: Records
) -> None:
    with receive() as receiver:
        job_id = await view.add("doer", {"do": "context", "url": receiver.url})
        async with running(settings(database, http_allow=("127.0.0.0/8",))):
            job = await view.wait(job_id)
    assert (job["status"], job["error_code"], receiver.asked) == ("FAILED", "agent_error", [])
    assert "event loop of its own" in job["last_error"]
    step = await view.one("SELECT output::text AS text FROM rowcall.job_steps")
    assert json.loads(step["text"]) == "of the run"


async def test_synchronous_steps_and_steps_side_by_side_are_kept_once_each(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "gather"})
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 2)
    assert sorted(done for done in DONE if done[0] != "gather") == [("fetch", 0)] + [("square", n) for n in range(5)]
    steps = await view.all("SELECT name, lease_epoch FROM rowcall.job_steps WHERE name <> 'write_result'")
    assert {step["name"]: step["lease_epoch"] for step in steps} == {"f": 1} | {f"square {n}": 1 for n in range(5)}


async def test_an_agent_that_blocks_the_event_loop_keeps_its_lease(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "block", "seconds": 2.5})
    async with running(settings(database, lease_seconds=0.9, beat_seconds=0.3)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], job["lease_epoch"]) == ("SUCCEEDED", 1, 1)


async def test_the_hard_deadline_ends_a_hung_step_with_its_own_code(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "hang"}, attempts=2)
    async with running(settings(database, run_deadline_seconds=0.5)):
        job = await view.wait(job_id, seconds=8)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "deadline_exceeded", 2)


async def test_a_step_that_outlives_its_deadline_in_this_worker_writes_nothing(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    job_id = await view.add("doer", {"do": "hang", "stubborn": 1.5}, attempts=3)
    async with running(settings(database, run_deadline_seconds=0.4, lease_seconds=0.6, beat_seconds=0.2)):
        await view.wait(job_id, "FAILED", seconds=12)
        await asyncio.sleep(2)
    assert (await view.job(job_id))["result_text"] is None
    assert await view.all("SELECT FROM rowcall.job_steps") == []
    assert "KeyError" not in caplog.text


async def test_a_timeout_of_the_agents_own_is_not_taken_for_the_deadline(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "own_timeout"}, attempts=1)
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"]) == ("FAILED", "agent_exception")


@pytest.mark.parametrize("how", ["leave", "cancel_itself"])
async def test_an_agent_that_exits_or_cancels_itself_ends_only_its_own_run(
    database: str, view: Records, how: str
) -> None:
    job_id = await view.add("doer", {"do": how}, attempts=1)
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=2.5)
        assert (job["status"], job["error_code"]) == ("FAILED", "agent_exception")
        await view.wait(await view.add("doer", {"do": "succeed"}), "SUCCEEDED")


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO public.effects (n) VALUES (1) RETURNING n",
        "WITH w AS (INSERT INTO public.effects (n) VALUES (1) RETURNING n) SELECT * FROM w",
        "SELECT nextval('rowcall.lane_order')",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "COMMIT",
        "BEGIN READ WRITE",
        "SELECT 1; INSERT INTO public.effects (n) VALUES (1)",
    ],
)
async def test_sql_of_steps_cannot_write(database: str, view: Records, query: str) -> None:
    job_id = await view.add("doer", {"do": "read_sql", "query": query})
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=3)
        again = await view.wait(await view.add("doer", {"do": "read_sql", "query": "SELECT 1 AS one"}))
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "agent_error", 1)
    assert json.loads(again["result_text"])["title"] == "[{'one': 1}]"
    assert await view.effects() == []


@pytest.mark.parametrize("answer", [None, "text", [1], {"title": "x"}, {"title": "x", "score": 1, "more": 2}])
async def test_what_a_run_returns_is_checked_by_the_answers_schema(
    database: str, view: Records, answer: object
) -> None:
    job_id = await view.add("doer", {"do": "answer", "answer": answer})
    async with running(settings(database)):
        job = await view.wait(job_id, "FAILED", "WAITING_REVIEW")
    expected = ("WAITING_REVIEW", "answer_schema") if isinstance(answer, dict) else ("FAILED", "agent_error")
    assert (job["status"], job["error_code"]) == expected


async def test_a_run_that_lost_its_lease_checkpoints_nothing_and_says_so(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    job_id = await view.add("doer", {"do": "step_then", "seconds": 0.8})
    # No beat within the test: the fence of the write itself has to notice.
    async with running(settings(database, beat_seconds=20.0, lease_seconds=60.0)):
        await view.wait(job_id, "RUNNING")
        await asyncio.sleep(0.3)
        # Another worker's claim, as far as this run can tell.
        await view.execute("UPDATE rowcall.agent_jobs SET lease_epoch = lease_epoch + 1 WHERE id = %s", job_id)
        await asyncio.sleep(1)
    assert {row["name"] for row in await view.all("SELECT name FROM rowcall.job_steps")} == {"first"}
    assert (await view.job(job_id))["status"] == "RUNNING"
    assert any(message.startswith("LeaseLost") for message in caplog.messages)


async def test_a_call_is_not_sent_without_a_lease(database: str, view: Records) -> None:
    with serve(Reply({"title": "x", "score": 1})) as model:
        job_id = await view.add("asker", {"n": 1})
        await view.execute(
            "CREATE FUNCTION public.steal() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN UPDATE rowcall.agent_jobs SET lease_epoch = lease_epoch + 1 WHERE id = NEW.job_id; RETURN NEW; END'"
        )
        await view.execute(
            "CREATE TRIGGER steal AFTER INSERT ON rowcall.job_steps FOR EACH ROW EXECUTE FUNCTION public.steal()"
        )
        async with running(settings(database, model.url, beat_seconds=20.0, lease_seconds=60.0)):
            await view.wait(job_id, "RUNNING")
            await asyncio.sleep(0.5)
    assert model.calls == []
    assert await view.all("SELECT FROM rowcall.external_calls") == []


async def test_the_late_end_of_a_call_is_recorded_and_marked_late(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    with serve(Reply({"title": "x", "score": 1}, delay_seconds=0.7)) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url, beat_seconds=20.0, lease_seconds=60.0)):
            await view.wait_for("SELECT FROM rowcall.external_calls WHERE state = 'sent'")
            await view.execute("UPDATE rowcall.agent_jobs SET lease_epoch = lease_epoch + 1 WHERE id = %s", job_id)
            await asyncio.sleep(1.2)
    call = await view.one("SELECT state, late, validated, lease_epoch FROM rowcall.external_calls")
    assert (call["state"], call["late"], call["validated"], call["lease_epoch"]) == ("done", True, True, 1)
    assert {row["name"] for row in await view.all("SELECT name FROM rowcall.job_steps")} == {"fetch"}
    assert any(message.startswith("LeaseLost") for message in caplog.messages)
