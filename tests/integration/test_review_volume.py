"""Reviews that outrun people: groups, bypasses, expiry, escalation, and what is counted."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator

import pytest

from consumer import db, errors, operate
from consumer.executor.review_clock import ReviewClock
from consumer.telemetry.metrics import REGISTRY
from tests.agents.harness import Records, records
from tests.fixtures.postgres import Clock
from tests.integration.reviewing import ADA, BOB, held, model, note, person, put, review, review_of, says, working
from tests.scripted_model import Endpoint, Reply

__all__ = ["model", "person"]

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database) as found:
        yield found


async def tend(database: str) -> None:
    """One look at the clock, as a worker takes it."""
    session = await db.connect_async(database, name="tending")
    try:
        await ReviewClock().tend(session)
    finally:
        await session.close()


async def many(view: Records, database: str, model: Endpoint, count: int) -> list[int]:
    """Reviews of as many rows."""
    jobs = [await view.add_change("reviewed", await put(view, {"id": n + 1})) for n in range(count)]
    async with working(database, model):
        for job_id in jobs:
            await view.wait(job_id, "WAITING_REVIEW")
    return sorted([await review_of(view, job_id) for job_id in jobs])


async def test_alike_requests_are_approved_together_each_by_a_decision_of_its_own(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    keep = [says(title=f"title {n}", score=n) for n in range(3)]
    model.script.replace([("", [*keep, says(action="drop")])])
    reviews = await many(view, database, model, 4)
    dropped = next(item for item in reviews if operate.show_review(person, item).proposed_answer["action"] == "drop")
    alike = [item for item in reviews if item != dropped]
    found = operate.alike(person, alike[1])
    assert ([item for item, _ in found.requests], found.tier) == (alike, "medium")
    operate.reject(person, alike[2], BOB)
    done = operate.approve_alike(person, found.requests, ADA)
    assert [item.review_id for item in done.decided] == alike[:2]
    assert list(done.refused) == [alike[2]] and "REJECTED by bob" in done.refused[alike[2]]
    rows = await view.all("SELECT detail ->> 'group' AS name FROM rowcall.audit WHERE action = 'approve'")
    assert [row["name"] for row in rows] == [done.group] * 2
    assert (await review(view, dropped))["state"] == "OPEN"


@pytest.mark.parametrize("reply", [says("high"), says(score=11)], ids=["high", "rules"])
async def test_the_high_tier_and_what_broke_a_rule_are_never_decided_in_a_group(
    database: str, view: Records, person: db.SyncSession, model: Endpoint, reply: Reply
) -> None:
    model.script.replace([("", [reply])])
    _, review_id = await held(view, database, model)
    with pytest.raises(errors.OperatorError, match="decided by itself"):
        operate.alike(person, review_id)
    shown = operate.show_review(person, review_id)
    done = operate.approve_alike(person, [(review_id, str(shown.digest))], ADA)
    assert done.decided == () and "decided by itself" in done.refused[review_id]


async def test_a_bypass_lets_the_medium_tier_through_and_each_answer_is_recorded(
    database: str, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    granted = operate.bypass(person, "reviewed", ADA, tier="medium", time=dt.timedelta(hours=2))
    job_id = await view.add_change("reviewed", await put(view))
    async with working(database, model):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"], await note(view)) == ("SUCCEEDED", 1, "first")
    row = await view.one("SELECT * FROM rowcall.reviews")
    assert (row["state"], row["decided_by"], row["bypass_id"]) == ("APPROVED", f"bypass {granted.id}", granted.id)
    audits = await view.all("SELECT actor, action FROM rowcall.audit ORDER BY id")
    assert [(item["actor"], item["action"]) for item in audits] == [
        ("ada", "bypass"), (f"bypass {granted.id}", "approve")
    ]  # fmt: skip
    assert operate.list_bypasses(person)[0]["let_through"] == 1
    assert len(model.calls) == 1


@pytest.mark.parametrize("case", ["high", "rules", "ended", "over", "other agent"])
async def test_what_no_bypass_lets_through(
    database: str, clock: Clock, view: Records, person: db.SyncSession, model: Endpoint, case: str
) -> None:
    agent = "reviewed-wait" if case == "other agent" else "reviewed"
    granted = operate.bypass(person, agent, ADA, tier="medium", time=dt.timedelta(hours=2))
    if case == "high":
        model.script.replace([("", [says("high")])])
    if case == "rules":
        model.script.replace([("", [says(score=11)])])
    if case == "ended":
        operate.end_bypass(person, granted.id, BOB)
        with pytest.raises(errors.OperatorError, match="ended by bob"):
            operate.end_bypass(person, granted.id, BOB)
    if case == "over":
        clock.advance(2 * HOUR)
        with pytest.raises(errors.OperatorError, match="is over"):
            operate.end_bypass(person, granted.id, BOB)
    await held(view, database, model)
    assert await view.effects() == []


def test_a_bypass_is_of_the_medium_tier_short_and_has_a_reason(person: db.SyncSession) -> None:
    person.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
    hours = dt.timedelta(hours=1)
    for tier, time, act, told in (
        ("high", hours, ADA, "high-tier"), ("low", hours, ADA, "only medium"),
        ("medium", 9 * hours, ADA, "up to 8 hours"), ("medium", 0 * hours, ADA, "up to 8 hours"),
        ("medium", hours, operate.Act("ada"), "needs a reason"),
    ):  # fmt: skip
        with pytest.raises(errors.OperatorError, match=told):
            operate.bypass(person, "a", act, tier=tier, time=time)
    with pytest.raises(errors.OperatorError, match="no agent 'z'"):
        operate.bypass(person, "z", ADA, tier="medium", time=hours)
    assert operate.list_bypasses(person) == []


async def test_what_nobody_decides_is_denied_when_its_time_is_over(
    database: str, clock: Clock, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    job_id, review_id = await held(view, database, model)
    clock.advance(7 * DAY - 60)
    await tend(database)
    assert (await review(view, review_id))["state"] == "OPEN"
    clock.advance(61)
    await tend(database)
    job = await view.job(job_id)
    assert (job["status"], job["error_code"]) == ("CANCELLED", "review_expired")
    assert (await review(view, review_id))["state"] == "EXPIRED"
    assert (await note(view), await view.effects()) == (None, [])
    assert await view.all("SELECT FROM rowcall.lanes") == []
    assert (await view.one("SELECT actor FROM rowcall.audit WHERE action = 'expire'"))["actor"] == "rowcall"
    with pytest.raises(errors.OperatorError, match="EXPIRED by rowcall"):
        operate.approve(person, review_id, ADA)


async def test_an_agent_has_times_of_its_own_and_an_unknown_effect_has_none(
    database: str, clock: Clock, view: Records, model: Endpoint
) -> None:
    job_id, _ = await held(view, database, model, "reviewed-hasty")
    other, _ = await held(view, database, model, "reviewed-hasty", id=2)
    await view.execute("UPDATE rowcall.reviews SET code = 'effect_unknown' WHERE job_id = %s", other)
    clock.advance(HOUR + 1)
    await tend(database)
    assert ((await view.job(job_id))["status"], (await view.job(other))["status"]) == ("CANCELLED", "WAITING_REVIEW")


async def test_a_review_that_waits_long_is_escalated_once(
    database: str, clock: Clock, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model)
    await tend(database)
    assert operate.list_reviews(person, escalated=True) == []
    clock.advance(DAY)
    await tend(database)
    await tend(database)
    assert [row["id"] for row in operate.list_reviews(person, escalated=True)] == [review_id]
    assert (await review(view, review_id))["state"] == "OPEN"
    events = await view.all("SELECT kind, review_id FROM rowcall.review_events")
    assert events == [{"kind": "escalated", "review_id": review_id}]
    assert len(await view.all("SELECT FROM rowcall.audit WHERE action = 'escalate'")) == 1


async def test_a_worker_keeps_the_reviews_clock(
    database: str, clock: Clock, view: Records, model: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    job_id, review_id = await held(view, database, model, "reviewed-hasty")
    clock.advance(601)
    async with working(database, model, lease_seconds=1.5, beat_seconds=0.5):
        await view.wait_for("SELECT FROM rowcall.reviews WHERE escalated_at IS NOT NULL")
        clock.advance(HOUR)
        await view.wait(job_id, "CANCELLED")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"review {review_id} still waits" in line for line in said)
    assert any(f"review {review_id} expired" in line for line in said)


async def test_open_reviews_are_counted_by_agent_tier_and_age(
    database: str, clock: Clock, view: Records, person: db.SyncSession, model: Endpoint
) -> None:
    _, review_id = await held(view, database, model)
    session = await db.connect_async(database, name="tending")
    try:
        counting = ReviewClock()
        await counting.tend(session)
        assert _open("hour") == 1
        clock.advance(2 * HOUR)
        await counting.tend(session)
        assert (_open("hour"), _open("day")) == (0, 1)
        operate.approve(person, review_id, ADA)
        await counting.tend(session)
        assert _open("day") == 0
    finally:
        await session.close()


def _open(age: str) -> float:
    labels = {"agent": "reviewed", "tier": "medium", "age": age}
    return REGISTRY.get_sample_value("rowcall_reviews_open", labels) or 0.0
