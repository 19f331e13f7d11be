"""Approvals and the row they are about: a row that has changed, a newer change that takes an undecided one's place."""

from __future__ import annotations

from decimal import Decimal

import pytest

from consumer import db
from consumer.errors import OperatorError
from tests.agents.harness import Records, records
from tests.agents.shared import database, view
from tests.integration.reviewing import (
    ADA,
    BOB,
    ROW,
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


@pytest.mark.parametrize("agent", ["reviewed", "reviewed-sql"])
async def test_an_approval_is_not_written_on_a_changed_row_and_the_run_asks_anew(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, agent: str
) -> None:
    job_id, first = await held(view, database, model, agent)
    operate.approve(person, first, ADA)
    await view.execute("UPDATE public.items SET amount = 7.50")
    model.script.replace([("7.50", [says(title="on the new row")])])
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    assert (await note(view), await view.effects()) == (None, [])
    stale = await review(view, first)
    assert (stale["state"], stale["decided_by"]) == ("STALE", "ada")
    assert stale["stale_changes"] == {"amount": {"seen": "5.00", "now": "7.50"}}
    assert await view.one("SELECT kind, review_id FROM rowcall.review_events") == {"kind": "stale", "review_id": first}
    second = await review_of(view, job_id)
    assert operate.show_review(person, second).proposed_answer["title"] == "on the new row"
    operate.approve(person, second, ADA)
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert (await note(view), await view.effects()) == ("on the new row", [1])


async def test_a_column_that_the_run_did_not_look_at_makes_no_approval_stale(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    operate.approve(person, review_id, ADA)
    await view.execute("UPDATE public.items SET note = 'by somebody else'")
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert await note(view) == "first"


async def test_on_stale_review_asks_the_person_again_about_the_row_as_it_stands(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, first = await held(view, database, model, "reviewed-stale")
    operate.approve(person, first, ADA)
    await view.execute("UPDATE public.items SET amount = 7.50, note = 'now'")
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    second = await review_of(view, job_id)
    asked = operate.show_review(person, second)
    assert ((await review(view, first))["state"], asked.review["code"]) == ("STALE", "stale_row")
    assert (asked.row_changed, asked.review["tier"]) == ((), "medium")
    assert asked.changes == [{"column": "note", "now": "now", "then": "first"}]
    assert (await review(view, second))["stale_changes"] == {"amount": {"seen": "5.00", "now": "7.50"}}
    assert (len(model.calls), await view.effects()) == (1, [])
    # The row changes once more after the second approval: a third request, and nothing is written.
    operate.approve(person, second, ADA)
    await view.execute("UPDATE public.items SET amount = 8")
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
        assert await view.effects() == []
        operate.approve(person, await review_of(view, job_id), ADA)
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert (len(model.calls), await note(view)) == (1, "first")


async def test_on_stale_write_writes_what_was_approved_whatever_the_row_says(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model, "reviewed-write")
    operate.approve(person, review_id, ADA)
    await view.execute("UPDATE public.items SET amount = 7.50")
    async with working(database, model):
        assert (await view.wait(job_id))["status"] == "SUCCEEDED"
    assert ((await review(view, review_id))["state"], await note(view)) == ("APPROVED", "first")


@pytest.mark.parametrize("agent", ["reviewed", "reviewed-stale"])
async def test_an_approval_for_a_row_that_is_gone_ends_without_an_effect(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, agent: str
) -> None:
    job_id, review_id = await held(view, database, model, agent)
    operate.approve(person, review_id, ADA)
    await view.execute("DELETE FROM public.items")
    async with working(database, model):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], await view.effects()) == ("CANCELLED", "stale_row", [])
    assert (await review(view, review_id))["state"] == "STALE"


async def test_a_newer_change_of_the_row_supersedes_an_undecided_review(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    old, review_id = await held(view, database, model)
    model.script.replace([("", [says("low", "newer")])])
    await view.execute("UPDATE public.items SET amount = 6")
    newer = await view.add_change("reviewed", {**ROW, "amount": Decimal(6)}, before=ROW)
    await view.execute("SELECT rowcall.promote(100)")
    assert (await review(view, review_id))["state"] == "SUPERSEDED"
    async with working(database, model):
        assert (await view.wait(newer))["status"] == "SUCCEEDED"
    job, closed = await view.job(old), await review(view, review_id)
    assert (job["status"], job["error_code"]) == ("CANCELLED", "superseded")
    assert (closed["state"], closed["superseded_by"], closed["decided_by"]) == ("SUPERSEDED", newer, "rowcall")
    assert (await note(view), await view.effects()) == ("newer", [1])
    with pytest.raises(OperatorError, match=rf"SUPERSEDED .* by job {newer}"):
        operate.approve(person, review_id, ADA)


async def test_a_newer_change_that_waited_for_the_run_supersedes_its_review_at_once(
    database: str, view: Records, model: Endpoint
) -> None:
    old = await view.add_change("reviewed", await put(view))
    newer = await view.add_change("reviewed", ROW, before=ROW)
    # The reviews' clock is looked at once and then not for 30 s.
    async with working(database, model, lease_seconds=90.0):
        await view.wait(newer, "WAITING_REVIEW")
    assert ((await view.job(old))["status"], (await view.job(newer))["status"]) == ("CANCELLED", "WAITING_REVIEW")


@pytest.mark.parametrize("kind", ["wait", "gone", "own", "older", "other agent", "unknown effect", "decided"])
async def test_what_supersedes_no_review(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, kind: str
) -> None:
    agent = {"wait": "reviewed-wait", "own": "reviewed-own"}.get(kind, "reviewed")
    old, review_id = await held(view, database, model, agent)
    if kind == "unknown effect":
        await view.execute("UPDATE rowcall.reviews SET code = 'effect_unknown'")
    if kind == "decided":
        operate.approve(person, review_id, ADA)
    await view.add_change(
        "reviewed-wait" if kind == "other agent" else agent, ROW, before=ROW, gone=kind == "gone",
        parent=old if kind == "own" else None, committed=1_600_000_000 if kind == "older" else 1_700_000_001,
    )  # fmt: skip
    await view.execute("SELECT rowcall.promote(100)")
    await view.execute("SELECT rowcall.supersede_reviews(NULL)")
    expected = ("PENDING", "APPROVED") if kind == "decided" else ("WAITING_REVIEW", "OPEN")
    assert ((await view.job(old))["status"], (await review(view, review_id))["state"]) == expected


async def test_later_events_of_a_key_that_is_no_row_wait_behind_a_review(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    first, second = await view.add("silent", key="k"), await view.add("silent", key="k")
    async with working(database, model):
        await view.wait(first, "WAITING_REVIEW")
        assert (await view.job(second))["status"] == "PENDING"
        operate.reject(person, await review_of(view, first), BOB)
        await view.wait(second, "WAITING_REVIEW")


async def test_a_review_that_was_held_by_somebody_is_superseded_at_the_next_look(
    database: str, view: Records, model: Endpoint
) -> None:
    old, review_id = await held(view, database, model)
    async with records(database) as other, other.session.transaction():
        await other.execute("SELECT FROM rowcall.agent_jobs WHERE id = %s FOR UPDATE", old)
        newer = await view.add_change("reviewed", ROW, before=ROW)
        await view.execute("SELECT rowcall.promote(100)")
        assert (await review(view, review_id))["state"] == "OPEN"
    async with working(database, model):
        await view.wait(newer, "WAITING_REVIEW")
    assert (await review(view, review_id))["state"] == "SUPERSEDED"
