"""What becomes of a run: each way an attempt can end, with the executor, a model over HTTP and Postgres for real."""

from __future__ import annotations

import hashlib
import json
import logging
import time

import pytest

from consumer import db, operate
from tests.agents.doing import DONE
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view
from tests.scripted_model import Reply, serve

__all__ = ["database", "view"]

GOOD = {"title": "a note", "score": 3}
RULE_BREAKER = {"title": "too much", "score": 99}


async def test_success_leaves_result_steps_with_kinds_and_a_whole_call_record(database: str, view: Records) -> None:
    with serve(Reply(GOOD)) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            job = await view.wait(job_id)
    assert (job["status"], json.loads(job["result_text"]), job["attempt_count"]) == ("SUCCEEDED", GOOD, 1)
    assert (job["owner"], job["locked_until"], job["error_code"], job["agent_version"]) == (None, None, None, 3)
    steps = await view.all("SELECT name, kind, number, lease_epoch FROM rowcall.job_steps ORDER BY number")
    assert [(step["name"], step["kind"], step["number"]) for step in steps] == [
        ("fetch", "FETCH_INPUT", 1), ("ask", "CALL_MODEL", 2), ("write_result", "WRITE_RESULT", 3)
    ]  # fmt: skip
    call = await view.one("SELECT * FROM rowcall.external_calls")
    (request,) = model.calls
    assert call["input_sha256"] == hashlib.sha256(request.body).digest()
    assert call["idempotency_key"] == request.headers["idempotency-key"]
    assert (call["state"], call["status_code"], call["validated"], call["late"]) == ("done", 200, True, False)
    assert (call["prompt_tokens"], call["completion_tokens"], call["answered_model"]) == (11, 7, "scripted")
    assert (call["job_id"], call["step"], call["lease_epoch"]) == (job_id, "ask", 1)
    assert await view.all("SELECT FROM rowcall.lanes") == []


async def test_failures_are_retried_with_backoff_and_failed_at_the_limit_naming_the_attempt(
    database: str, view: Records
) -> None:
    job_id = await view.add("doer", {"do": "boom"}, attempts=3)
    started = time.monotonic()
    async with running(settings(database, retry_base_seconds=0.2, retry_cap_seconds=5.0)):
        job = await view.wait(job_id)
    # Between half and the whole of 0.2 s and 0.4 s.
    assert 0.3 <= time.monotonic() - started < 4
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "agent_exception", 3)
    assert job["last_error"].startswith("attempt 3 of 3: RuntimeError: boom")
    assert [what for what, _ in DONE] == ["boom"] * 3


async def test_a_retry_starts_near_its_time_and_not_at_the_next_idle_look(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "boom", "times": 1})
    started = time.monotonic()
    async with running(settings(database, poll_seconds=30.0, retry_base_seconds=0.3, retry_cap_seconds=0.3)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 2)
    assert time.monotonic() - started < 5


async def test_unparseable_answers_end_failed_and_name_the_model(database: str, view: Records) -> None:
    with serve(Reply("no object at all")) as model:
        job_id = await view.add("asker", {"n": 1}, attempts=2)
        async with running(settings(database, model.url, model_name="the-model-in-use")):
            job = await view.wait(job_id)
    assert (job["status"], job["error_code"]) == ("FAILED", "model_invalid_json")
    for part in ("attempt 2 of 2", "the-model-in-use", "Say something.", "characters"):
        assert part in job["last_error"]
    # Each attempt asked once and asked again with the errors.
    calls = await view.all("SELECT validated, error_code FROM rowcall.external_calls ORDER BY id")
    assert [(call["validated"], call["error_code"]) for call in calls] == [(False, "model_invalid_json")] * 4


@pytest.mark.parametrize(
    ("text", "code", "proposed"),
    [
        ('{"title": "x", "score": "many"}', "model_schema", None),
        (json.dumps(RULE_BREAKER), "model_rules", RULE_BREAKER),
        (f"Here it is:\n```json\n{json.dumps(RULE_BREAKER)}\n```", "model_rules", RULE_BREAKER),
        (json.dumps({"title": "long " * 4000, "score": 99}), "model_rules", {"title": "long " * 4000, "score": 99}),
    ],
    ids=["schema", "rules", "rules_inside_prose", "rules_and_long"],
)
async def test_a_parseable_invalid_answer_waits_for_a_person_with_its_raw_text(
    database: str, view: Records, text: str, code: str, proposed: object
) -> None:
    with serve(Reply(text)) as model:
        job_id = await view.add("asker", {"n": 1}, key="k")
        behind = await view.add("asker", {"n": 2}, key="k")
        async with running(settings(database, model.url)):
            job = await view.wait(job_id, "WAITING_REVIEW")
            assert (job["owner"], job["locked_until"], job["error_code"]) == (None, None, code)
            review = await view.one("SELECT *, proposed_answer::text AS proposed FROM rowcall.reviews")
            assert (review["job_id"], review["state"], review["raw_answer"]) == (job_id, "OPEN", text)
            assert review["reasons"] and all(review["reasons"])
            assert (None if review["proposed"] is None else json.loads(review["proposed"])) == proposed
            # Longer than a lease: no scan takes it back, and its key waits behind it.
            await view.execute("UPDATE rowcall.agent_jobs SET updated_at = updated_at WHERE id = %s", behind)
            assert (await view.job(behind))["status"] == "PENDING"
    assert (await view.job(job_id))["attempt_count"] == 1


async def test_an_approved_answer_is_written_without_a_second_call(database: str, view: Records) -> None:
    with serve(Reply(RULE_BREAKER)) as model, db.connect(database, name="person") as person:
        job_id = await view.add("asker", {"n": 1}, key="k")
        behind = await view.add("asker", {"n": 2}, key="k")
        async with running(settings(database, model.url)):
            await view.wait(job_id, "WAITING_REVIEW")
            asked = len(model.calls)
            model.script.replace([("", [Reply(GOOD)])])
            review = await view.one("SELECT id FROM rowcall.reviews")
            operate.approve(person, review["id"], operate.Act("ann", "it is fine"))
            job = await view.wait(job_id)
            await view.wait(behind)
    assert (job["status"], json.loads(job["result_text"]), job["approved_by"]) == ("SUCCEEDED", RULE_BREAKER, "ann")
    assert job["attempt_count"] == 1
    assert len(model.calls) == asked + 1  # that of the run behind
    calls = await view.all("SELECT id FROM rowcall.external_calls WHERE job_id = %s", job_id)
    assert len(calls) == asked
    assert (await view.job(behind))["finished_at"] > job["finished_at"]


async def test_an_answer_above_the_low_tier_waits_for_approval(database: str, view: Records) -> None:
    with serve(Reply({"title": "x", "score": 7})) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            job = await view.wait(job_id, "WAITING_REVIEW")
    assert (job["error_code"], job["result_text"]) == ("tier_medium", None)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(status=401, body={"error": {"message": "bad key"}}), "model_config"),
        (Reply(status=404, body={"error": {"message": "no such model"}}), "model_config"),
        (Reply(status=429, body={"error": {"message": "spent", "code": "insufficient_quota"}}), "model_quota"),
    ],
    ids=["401", "404", "quota"],
)
async def test_a_refused_agent_is_paused_without_burning_an_attempt_and_the_others_go_on(
    database: str, view: Records, reply: Reply, code: str
) -> None:
    with serve(reply) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            await view.wait(job_id, "RUNNING", "PENDING")
            agent = await view.wait_for("SELECT * FROM rowcall.agents WHERE name = 'asker' AND state = 'PAUSED'")
            assert agent["state_reason"].startswith(code) and agent["paused_until"]
            job = await view.wait(job_id, "PENDING")
            assert (job["attempt_count"], job["error_code"]) == (0, None) and code in job["reason"]
            asked, second = len(model.calls), await view.add("asker", {"n": 2})
            await view.wait(await view.add("doer", {"do": "succeed"}), "SUCCEEDED")
            assert (len(model.calls), (await view.job(second))["status"]) == (asked, "PENDING")
            model.script.replace([("", [Reply(GOOD)])])
            await view.execute("UPDATE rowcall.agents SET paused_until = now() WHERE name = 'asker'")
            await view.wait_all([job_id, second])
            # Within a third of a lease, with the next look for expired leases.
            agent = await view.wait_for("SELECT * FROM rowcall.agents WHERE name = 'asker' AND state = 'ACTIVE'")
    assert (agent["state"], agent["state_reason"], agent["paused_until"]) == ("ACTIVE", None, None)
    assert (await view.job(job_id))["attempt_count"] == 1


async def test_an_endpoints_retry_after_is_waited_for(database: str, view: Records) -> None:
    with serve(Reply(status=429, body="{}", headers={"retry-after": "1.5"}), Reply(GOOD)) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 2)
    first, second = model.calls
    assert 1.5 <= second.at - first.at < 4


async def test_an_endpoints_500_is_retried_and_checkpoints_are_kept(database: str, view: Records) -> None:
    with serve(Reply(status=500, body="<html>"), Reply(status=500, body="<html>"), Reply(GOOD)) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], len(model.calls)) == ("SUCCEEDED", 3, 3)
    assert DONE.count(("fetch", 0)) == 1
    assert len(await view.all("SELECT FROM rowcall.job_steps WHERE name = 'fetch' AND lease_epoch = 1")) == 1


async def test_asking_for_another_time_burns_no_attempt(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "later", "times": 4, "seconds": 0.05}, attempts=2)
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], job["lease_epoch"]) == ("SUCCEEDED", 1, 5)


async def test_giving_up_fails_at_once(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "give_up"})
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "gave_up", 1)
    assert job["last_error"] == "it cannot be done"


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("exception", "agent_exception"),
        ("give_up", "gave_up"),
        ("code", "a\ufffdb?ccc"),
        ("retry_later", "retry_requested"),
        ("for_ever", "retry_requested"),
        ("not_a_number", "retry_requested"),
    ],
)
async def test_the_terminal_write_lands_whatever_an_error_holds(
    database: str, view: Records, where: str, code: str
) -> None:
    job_id = await view.add("doer", {"do": "nasty", "where": where}, attempts=1)
    async with running(settings(database)):
        job = await view.wait(job_id, "FAILED", "WAITING_RETRY", seconds=2.5)
    assert job["owner"] is None and len(job["last_error"]) < 5000 and "\x00" not in job["last_error"]
    assert job["error_code"].startswith(code) and len(job["error_code"]) <= 100
    assert where == "not_a_number" or job["lease_epoch"] == 1  # no number asks for no delay


async def test_a_pause_lands_whatever_its_reason_holds(database: str, view: Records) -> None:
    job_id = await view.add("doer", {"do": "nasty", "where": "unavailable"}, attempts=1)
    async with running(settings(database)):
        await view.wait(job_id, "PENDING", "RUNNING")
        await view.wait_for("SELECT FROM rowcall.agents WHERE name = 'doer' AND state = 'PAUSED'", seconds=2.0)
        assert (await view.wait(job_id, "PENDING", seconds=2.0))["attempt_count"] == 0


@pytest.mark.parametrize(
    "text",
    ['{"title": "a\\u0000b", "score": 1}', '{"title": "a\\ud800b", "score": 1}', "\x00"],
    ids=["nul", "half", "raw"],
)
async def test_an_answer_that_cannot_be_stored_ends_its_run(database: str, view: Records, text: str) -> None:
    huge = "y" * 1_000_000
    with serve(Reply(text + huge, headers={"x-nasty": "n\xfcl"}), Reply(text)) as model:
        job_id = await view.add("asker", {"n": 1}, attempts=1)
        async with running(settings(database, model.url)):
            job = await view.wait(job_id, "FAILED", "WAITING_REVIEW", seconds=5)
    assert job["owner"] is None and job["lease_epoch"] == 1
    assert len(await view.all("SELECT FROM rowcall.external_calls WHERE state = 'done'")) == 2


async def test_an_error_text_of_an_endpoint_with_nul_and_a_megabyte_is_recorded(database: str, view: Records) -> None:
    body = {"error": {"message": "a\x00b\ud800" + "z" * 1_000_000}}
    with serve(Reply(status=500, body=body)) as model:
        job_id = await view.add("asker", {"n": 1}, attempts=1)
        async with running(settings(database, model.url)):
            job = await view.wait(job_id, seconds=5)
    assert (job["status"], job["error_code"]) == ("FAILED", "model_http_500")


async def test_log_lines_of_a_failed_run_say_that_it_failed(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    job_id = await view.add("doer", {"do": "boom"}, attempts=1)
    async with running(settings(database)):
        await view.wait(job_id)
    actions = [record.__dict__["action"] for record in caplog.records if "action" in record.__dict__]
    assert "run_failed" in actions and "run_retry" not in actions
