"""Answers that wait for a person, from the model to the row: what is shown, decided, written, and what is not."""

from __future__ import annotations

import hashlib

import pytest

from consumer import db
from consumer.errors import OperatorError
from tests.agents.doing import DONE
from tests.agents.harness import Records
from tests.agents.reviewed import reviewed
from tests.agents.shared import database, view
from tests.integration.reviewing import (
    ADA,
    BOB,
    held,
    model,
    note,
    operate,
    person,
    put,
    review,
    review_of,
    says,
    working,
)
from tests.scripted_model import Endpoint

__all__ = ["database", "model", "person", "view"]


@pytest.mark.parametrize("tier", ["medium", "high"])
async def test_nothing_is_written_or_sent_before_an_approval_and_a_worker_writes_after_it(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, tier: str
) -> None:
    model.script.replace([("", [says(tier)])])
    job_id, review_id = await held(view, database, model)
    assert (await note(view), await view.effects(), await view.all("SELECT FROM rowcall.outbox")) == (None, [], [])
    operate.approve(person, review_id, ADA)
    # The caller has written nothing; there is no worker yet.
    assert (await note(view), await view.effects(), (await view.job(job_id))["status"]) == (None, [], "PENDING")
    async with working(database, model):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], job["approved_by"]) == ("SUCCEEDED", 1, "ada")
    assert (await note(view), await view.effects()) == ("first", [1])
    assert len(await view.all("SELECT FROM rowcall.outbox")) == 1
    assert len(model.calls) == 1


async def test_the_low_tier_runs_by_itself(database: str, view: Records, model: Endpoint) -> None:
    model.script.replace([("", [says("low")])])
    job_id = await view.add_change("reviewed", await put(view))
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert await view.all("SELECT FROM rowcall.reviews") == []


async def test_a_waiting_run_holds_no_lease_and_no_slot(database: str, view: Records, model: Endpoint) -> None:
    waiting = await view.add_change("reviewed", await put(view))
    async with working(database, model, runs_in_flight=1):
        job = await view.wait(waiting, "WAITING_REVIEW")
        assert (job["owner"], job["locked_until"], job["deadline"]) == (None, None, None)
        model.script.replace([("", [says("low")])])
        other = await view.add_change("reviewed", await put(view, {"id": 2}))
        assert (await view.wait(other))["status"] == "SUCCEEDED"
    assert (await view.job(waiting))["status"] == "WAITING_REVIEW"


async def test_a_request_shows_answer_diff_evidence_tier_and_what_the_run_looked_at(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model, note="old")
    report = operate.show_review(person, review_id)
    assert report.proposed_answer["title"] == "first"
    assert report.changes == [{"column": "note", "now": "old", "then": "first"}]
    assert [step["name"] for step in report.steps] == ["fetch", "ask", "after"]
    assert [(call["step"], call["validated"]) for call in report.calls] == [("ask", True)]
    row = report.review
    assert (row["tier"], row["code"], row["agent_version"]) == ("medium", "tier_medium", 1)
    assert set((await review(view, review_id))["seen"]) == {"amount", "status"}
    assert row["seen_digest"] == hashlib.sha256(row["seen"].encode()).hexdigest()
    assert report.digest is not None and len(report.digest) == 64
    assert report.row_changed == ()
    await view.execute("UPDATE public.items SET amount = 6")
    assert operate.show_review(person, review_id).row_changed == ("amount",)
    await view.execute("DELETE FROM public.items")
    assert operate.show_review(person, review_id).row_changed == ("the row is gone",)


async def test_an_edit_keeps_types_and_nulls_and_has_a_digest_of_its_own(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    edits = {"title": "edited", "remark": None, "score": 7}
    assert operate.approve(person, review_id, ADA, edits=edits, agent=reviewed).edited
    kept = await review(view, review_id)
    assert kept["edited"] and kept["decided_digest"] != kept["digest"]
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert await note(view) == "edited"
    assert (await view.one("SELECT text FROM public.effects"))["text"] is None
    result = (await view.one("SELECT result FROM rowcall.agent_jobs"))["result"]
    assert (result["score"], result["remark"], result["action"]) == (7, None, "keep")


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ({"score": "7"}, "score"), ({"score": 11}, "above 10"), ({"action": "burn"}, "action"),
        ({"titel": "x"}, "no field 'titel'"), ({"title.deep": "x"}, "no object"), ({"score": None}, "score"),
    ],
)  # fmt: skip
async def test_an_edit_that_breaks_schema_or_rules_decides_nothing(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, edits: dict[str, object], told: str
) -> None:
    job_id, review_id = await held(view, database, model)
    with pytest.raises(OperatorError, match=told):
        operate.approve(person, review_id, ADA, edits=edits, agent=reviewed)
    assert (await review(view, review_id))["state"] == "OPEN"
    assert (await view.job(job_id))["status"] == "WAITING_REVIEW"


async def test_an_edit_made_where_the_agent_is_not_installed_is_checked_by_the_worker(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    operate.approve(person, review_id, ADA, edits={"score": 11})
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    assert (await review(view, review_id))["state"] == "STALE"
    assert (await review(view, await review_of(view, job_id)))["code"] == "answer_rules"
    assert await view.effects() == []


async def test_a_decision_is_about_the_request_that_the_person_saw(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model)
    seen = operate.show_review(person, review_id).digest
    for decide in (operate.approve, operate.reject, operate.again):
        with pytest.raises(OperatorError, match="another request") as refused:
            decide(person, review_id, BOB, digest="0" * 64)
        assert refused.value.code == "review_changed"
    assert operate.approve(person, review_id, ADA, digest=seen).state == "APPROVED"
    with pytest.raises(OperatorError, match=r"APPROVED by ada at 2\d\d\d-"):
        operate.approve(person, review_id, BOB, digest=seen)


async def test_an_answer_that_was_altered_after_the_approval_is_not_written(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    operate.approve(person, review_id, ADA)
    altered = '{"action": "drop", "tier": "low", "title": "altered", "score": 1}'
    await view.execute("UPDATE rowcall.agent_jobs SET approved_answer = %s::json", altered)
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    assert ((await review(view, review_id))["state"], await view.effects()) == ("STALE", [])


async def test_an_approval_is_of_one_version_of_the_agent(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    await view.execute("UPDATE rowcall.reviews SET agent_version = 99")
    operate.approve(person, review_id, ADA)
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    asked = await review(view, await review_of(view, job_id))
    assert (asked["code"], asked["agent_version"], await view.effects()) == ("approval_stale", 1, [])
    operate.approve(person, asked["id"], ADA)
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"


async def test_another_attempt_asks_the_model_again_with_the_note_and_repeats_no_earlier_step(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    model.script.replace([("be kinder", [says(title="second")]), ("", [says()])])
    job_id, review_id = await held(view, database, model)
    assert operate.again(person, review_id, operate.Act("ada", "be kinder")).state == "AGAIN"
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    second = await review_of(view, job_id)
    assert operate.show_review(person, second).proposed_answer["title"] == "second"
    steps = await view.all("SELECT name, superseded FROM rowcall.job_steps ORDER BY name, superseded")
    assert [(step["name"], step["superseded"]) for step in steps] == [
        ("after", 0), ("after", 1), ("ask", 0), ("ask", 1), ("fetch", 0)
    ]  # fmt: skip
    assert [("fetch", job_id)] == DONE
    keys = [call.headers["idempotency-key"] for call in model.calls]
    assert len(keys) == len(set(keys)) == 2
    # The first request's evidence is still there to be looked at.
    assert [step["output"] for step in operate.show_review(person, review_id).steps if step["name"] == "ask"]
    operate.approve(person, second, ADA)
    async with working(database, model):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], await note(view)) == ("SUCCEEDED", 1, "second")


async def test_another_attempt_and_a_rejection_need_a_reason(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model)
    for decide in (operate.again, operate.reject):
        with pytest.raises(OperatorError, match="needs a reason"):
            decide(person, review_id, operate.Act("ada"))
    assert (await review(view, review_id))["state"] == "OPEN"


async def test_an_effect_whose_outcome_is_unknown_is_no_answer_to_approve(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model)
    await view.execute("UPDATE rowcall.reviews SET code = 'effect_unknown'")
    for decide in (operate.approve, operate.again):
        with pytest.raises(OperatorError, match="rowcall effects resolve"):
            decide(person, review_id, BOB)
    found = operate.alike(person, review_id)
    assert operate.approve_alike(person, found.requests, ADA).decided == ()
    assert (await review(view, review_id))["state"] == "OPEN"


async def test_an_agent_without_a_write_is_held_too(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id = await view.add("silent")
    async with working(database, model):
        job = await view.wait(job_id, "WAITING_REVIEW")
        assert job["result"] is None
        operate.approve(person, await review_of(view, job_id), ADA)
        assert (await view.wait(job_id))["result"]["title"] == "quiet"


async def test_every_decision_stands_in_the_audit_with_who_when_and_what(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    await view.execute("ALTER TABLE rowcall.audit DISABLE TRIGGER append_only")
    await view.execute("TRUNCATE rowcall.audit")
    await view.execute("ALTER TABLE rowcall.audit ENABLE TRIGGER append_only")
    job_id, review_id = await held(view, database, model)
    operate.again(person, review_id, BOB)
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    second = await review_of(view, job_id)
    operate.approve(person, second, ADA, edits={"title": "mine"}, agent=reviewed)
    rows = await view.all("SELECT actor, action, subject, detail FROM rowcall.audit ORDER BY id")
    assert [(row["actor"], row["action"], row["subject"]) for row in rows] == [
        ("bob", "again", f"job {job_id}"), ("ada", "approve", f"job {job_id}")
    ]  # fmt: skip
    detail, kept = rows[1]["detail"], await review(view, second)
    assert (detail["edited"], detail["digest"], detail["decided_digest"]) == (
        True, kept["digest"], kept["decided_digest"],
    )  # fmt: skip


async def test_a_review_is_found_by_the_key_of_what_it_is_about(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    first, review_id = await held(view, database, model)
    second, _ = await held(view, database, model, id=2)
    await view.execute(
        "UPDATE rowcall.agent_jobs SET key_text = CASE id WHEN %s THEN 'order 7' ELSE 'order 8' END", first
    )
    (found,) = operate.list_reviews(person, key="order 7")
    assert (found["id"], found["job_id"]) == (review_id, first) and second != first
    assert operate.list_reviews(person, key="order 9") == []
