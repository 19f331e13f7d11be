"""Where two parts of the engine meet: approvals and effects, holds and versions or losses, turns and postponements."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumer import db, operate
from consumer.agents.door import Agent, Context, Tier
from consumer.operate import Act
from consumer.records import Change, Event, Operation, Origin, payload
from tests.agents.doing import DONE, Note
from tests.agents.harness import Records, records, running, settings
from tests.agents.outside import careful
from tests.agents.shared import receiver
from tests.fixtures.postgres import create, drop
from tests.integration.limiting import Fleet
from tests.receiver import Receiver
from tests.scripted_model import Reply, serve

__all__ = ["receiver"]

ADA = Act("ada", "looked")
GOOD = {"title": "a note", "score": 3}


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(shared: str) -> AsyncIterator[Records]:
    DONE.clear()
    async with records(shared, clear=True) as found:
        yield found


@pytest.fixture
def person(shared: str) -> Iterator[db.SyncSession]:
    with db.connect(shared, name="person") as session:
        yield session


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent()
    yield found
    found.close()


@asynccontextmanager
async def working(view: Records, url: str, agent: Agent, **changed: Any) -> AsyncIterator[None]:
    """A worker of this agent alone, which may call out to here."""
    await view.know([agent])
    async with running(settings(url, **{"http_allow": ("127.0.0.0/8",), **changed}), agents=[agent]):
        yield


def telling(**options: Any) -> Agent:
    """Reads the amount of an item, and tells the address in its note what it is; a person approves that."""
    agent = Agent(name="telling", version=1, answer=Note, **options)

    @agent.run
    async def run(ctx: Context, change: Change) -> Note:
        return Note(title=str(change.row["amount"]), score=1)

    @agent.tier
    def tier(change: Change, answer: Note) -> Tier:
        return Tier(str(change.row["status"]))

    @agent.act
    async def act(ctx: Context, change: Change, answer: Note) -> None:
        await ctx.http("tell", "POST", str(change.row["note"]), key=answer.title, json={"n": answer.title})
        if change.row["id"] == 2 and ctx.attempt == 1:
            raise RuntimeError("after the effect")

    return agent


def stepping(version: int) -> Agent:
    """Takes the amount of an item down in a step; a person approves that."""
    agent = Agent(name="stepping", version=version, answer=Note, on_stale="review")

    @agent.run
    async def run(ctx: Context, change: Change) -> Note:
        return Note(title=await ctx.step("see", str, change.row["amount"]), score=version)

    @agent.tier
    def tier(change: Change, answer: Note) -> Tier:
        return Tier.HIGH

    return agent


async def item(view: Records, receiver: Receiver, tier: str, number: int = 1) -> int:
    row = {"id": number, "status": tier, "amount": 5, "note": f"{receiver.url}/act"}
    await view.execute("INSERT INTO public.items (id, status, amount, note) VALUES (%s, %s, 5, %s)",
                       number, tier, row["note"])  # fmt: skip
    return await view.add_change("telling", row)


async def proposed(view: Records) -> Any:
    return (await view.one("SELECT proposed_answer AS answer FROM rowcall.reviews WHERE state = 'OPEN'"))["answer"]


async def waiting(view: Records, job_id: int) -> int:
    await view.wait(job_id, "WAITING_REVIEW")
    row = await view.one("SELECT id FROM rowcall.reviews WHERE job_id = %s AND state = 'OPEN'", job_id)
    return int(row["id"])


# --- approvals and effects --------------------------------------------------------------------------------------------


async def test_an_approved_effect_does_not_happen_when_the_row_has_changed(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    agent = telling()
    job_id = await item(view, receiver, "high")
    async with working(view, shared, agent):
        first = await waiting(view, job_id)
    operate.approve(person, first, ADA)
    await view.execute("UPDATE public.items SET amount = 7")
    async with working(view, shared, agent):
        second = await waiting(view, job_id)
        assert receiver.acts == {} and second != first
        assert (await view.one("SELECT state FROM rowcall.reviews WHERE id = %s", first))["state"] == "STALE"
        operate.approve(person, second, ADA)
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"7": 1}


async def test_an_approved_effect_does_not_happen_when_the_row_is_gone(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    agent = telling()
    job_id = await item(view, receiver, "high")
    async with working(view, shared, agent):
        first = await waiting(view, job_id)
    operate.approve(person, first, ADA)
    await view.execute("DELETE FROM public.items")
    async with working(view, shared, agent):
        assert (await view.wait(job_id))["status"] == "CANCELLED"
    assert receiver.acts == {}


async def test_on_stale_write_acts_as_approved_whatever_the_row_is_now(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    agent = telling(on_stale="write")
    job_id = await item(view, receiver, "high")
    async with working(view, shared, agent):
        first = await waiting(view, job_id)
        await view.execute("UPDATE public.items SET amount = 7")
        operate.approve(person, first, ADA)
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"5": 1}


async def test_a_run_of_the_low_tier_looks_at_the_row_before_its_effect_too(
    view: Records, shared: str, receiver: Receiver
) -> None:
    job_id = await item(view, receiver, "low")
    await view.execute("UPDATE public.items SET amount = 7")
    async with working(view, shared, telling()):
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"7": 1}


async def test_a_run_that_has_acted_goes_on_whatever_becomes_of_the_row(
    view: Records, shared: str, receiver: Receiver
) -> None:
    job_id = await item(view, receiver, "low", number=2)
    async with working(view, shared, telling(), retry_base_seconds=1.0, retry_cap_seconds=1.0):
        await view.wait(job_id, "WAITING_RETRY")
        await view.execute("UPDATE public.items SET amount = 7")
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"5": 1}


async def test_an_approval_about_a_row_of_another_database_is_carried_out(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    row = {"id": 1, "status": "high", "amount": 5, "note": f"{receiver.url}/act"}
    origin = Origin("elsewhere", "app", "public", "no_table_here", 7, 7, 1_700_000_000_000)
    change = Change(f"rc1:{uuid.uuid4().hex}", Operation.CREATE, None, row, {"id": 1}, origin)
    added = await view.one(
        "INSERT INTO rowcall.agent_jobs (job_type, input_kind, payload, event_id, key_hash) "
        "VALUES ('telling', 'change', %s::json, %s, 1) RETURNING id",
        payload.write(change), change.id,
    )  # fmt: skip
    async with working(view, shared, telling()):
        operate.approve(person, await waiting(view, added["id"]), ADA)
        await view.wait(added["id"], "SUCCEEDED")
    assert receiver.acts == {"5": 1}


@pytest.mark.parametrize("happened", [True, False])
async def test_an_approval_with_edits_outlasts_an_effect_that_nobody_knows(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver, happened: bool
) -> None:
    data = {"n": 3, "url": f"{receiver.url}/act?do=once-500", "answer": True}
    async with working(view, shared, careful):
        job_id = await view.add("careful", data)
        operate.approve(person, await waiting(view, job_id), ADA, edits={"title": "as edited"})
        await view.wait_for("SELECT FROM rowcall.reviews WHERE state = 'OPEN' AND code = 'effect_unknown'")
        effect = await view.one("SELECT id::text AS id FROM rowcall.effects")
        operate.resolve_effect(person, effect["id"], ADA, happened=happened)
        # Nobody is asked a second time.
        job = await view.wait(job_id, "SUCCEEDED")
    assert '"as edited"' in job["result_text"]
    assert {b"as edited" in body for method, _, _, body in receiver.asked if method == "POST"} == {True}
    states = await view.all("SELECT state FROM rowcall.reviews ORDER BY id")
    assert [row["state"] for row in states] == ["APPROVED", "CLOSED"]


async def test_another_attempt_from_the_first_step_is_bound_to_no_version(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    await item(view, receiver, "high")
    job_id = await view.add_change("stepping", {"id": 1, "status": "high", "amount": 5, "note": "x"})
    async with working(view, shared, stepping(1)):
        operate.approve(person, await waiting(view, job_id), ADA)
        await view.execute("UPDATE public.items SET amount = 7")
        await view.wait_for("SELECT FROM rowcall.reviews WHERE state = 'OPEN' AND code = 'stale_row'")
    operate.again(person, await waiting(view, job_id), ADA)
    async with working(view, shared, stepping(2)):
        await waiting(view, job_id)
    assert (await proposed(view)) == {"title": "7", "score": 2}


async def test_an_approval_waits_with_its_run_for_a_worker_of_its_version(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    await item(view, receiver, "high")
    job_id = await view.add_change("stepping", {"id": 1, "status": "high", "amount": 5, "note": "x"})
    async with working(view, shared, stepping(1)):
        review_id = await waiting(view, job_id)
    operate.approve(person, review_id, ADA)
    async with working(view, shared, stepping(2)):
        assert (await view.wait(job_id, "PARKED"))["reason"] == "version"
    async with working(view, shared, stepping(1)):
        assert '"score":1' in (await view.wait(job_id, "SUCCEEDED"))["result_text"].replace(" ", "")
    assert (await view.one("SELECT state FROM rowcall.reviews"))["state"] == "APPROVED"


async def test_a_run_sent_back_to_its_start_takes_its_approval_along(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    await item(view, receiver, "high")
    job_id = await view.add_change("stepping", {"id": 1, "status": "high", "amount": 5, "note": "x"})
    async with working(view, shared, stepping(1)):
        first = await waiting(view, job_id)
    operate.approve(person, first, ADA)
    async with working(view, shared, stepping(2)):
        await view.wait(job_id, "PARKED")
        operate.retry(person, job_id, ADA, from_start=True)
        await waiting(view, job_id)
    assert (await proposed(view)) == {"title": "5", "score": 2}
    assert (await view.one("SELECT state FROM rowcall.reviews WHERE id = %s", first))["state"] == "STALE"


async def test_a_retry_of_a_run_that_was_parked_when_it_failed_calls_outside_under_a_new_key(
    view: Records, shared: str, person: db.SyncSession, receiver: Receiver
) -> None:
    agent = Agent(name="parking", version=1, answer=Note, on_failure="park")

    @agent.run
    async def run(ctx: Context, event: Event) -> Note:
        return Note(title="x", score=1)

    @agent.act
    async def act(ctx: Context, event: Event, answer: Note) -> None:
        await ctx.http("send", "POST", event.data["url"], key=1, json={"n": 1})

    async with working(view, shared, agent):
        job_id = await view.add("parking", {"url": f"{receiver.url}/act?do=422"})
        parked = await view.wait(job_id, "PARKED")
        assert (parked["reason"], parked["error_code"]) == ("failed", "http_422")
        moved = operate.retry(person, job_id, ADA)
        assert (moved.before, moved.delivery) == ("PARKED", 2)
        await view.wait_for("SELECT FROM rowcall.effects WHERE delivery = 2")
        await view.wait(job_id, "PARKED")
    assert len(receiver.received) == 2


# --- turns at the model and postponements -----------------------------------------------------------------------------


async def test_waiting_for_a_turn_at_the_model_is_no_postponement(view: Records, shared: str) -> None:
    agent = Agent(name="turning", version=1, answer=Note, max_postponements=1)

    @agent.run
    async def run(ctx: Context, event: Event) -> Note:
        answer: Note = await ctx.ask("ask", prompt="Say something.", input=event.data)
        return answer

    with serve(Reply(GOOD)) as model:
        job_id = await view.add("turning", {})
        await view.execute("UPDATE rowcall.agent_jobs SET postponed = 1")
        name = settings(shared, model.url).model_name
        await view.execute("INSERT INTO rowcall.buckets (name, permits) VALUES (%s, 0)", f"calls:{model.url} {name}")
        async with working(view, shared, agent, model_base_url=model.url, model_rate="60/min", rate_wait_seconds=0.01):
            job = await view.wait(job_id)
    assert (job["status"], job["postponed"], job["attempt_count"]) == ("SUCCEEDED", 1, 1)
    assert job["lease_epoch"] > 1


# --- holds, and runs that are claimed before all others ---------------------------------------------------------------


def hold(fleet: Fleet, until: str = "1 hour", **scope: Any) -> None:
    fleet.rows(
        "INSERT INTO rowcall.holds (reason, agent, tenant, topic, budget_id, until, detail) "
        "VALUES (%s, %s, %s, %s, %s, rowcall.now() + %s::interval, 'test')",
        "storm" if "topic" in scope else "budget", scope.get("agent"), scope.get("tenant"), scope.get("topic"),
        None if "topic" in scope else fleet.budget(1000, tenant="poor"), until,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["version", "suspect"])
@pytest.mark.parametrize("scope", [{"tenant": "poor"}, {"agent": "a", "topic": "cdc.public.orders"}], ids=str)
def test_a_hold_covers_runs_parked_for_a_version_and_suspects(fleet: Fleet, how: str, scope: dict[str, str]) -> None:
    held, free = fleet.add(tenant="poor", source_topic="cdc.public.orders") + fleet.add()
    fleet.promote()
    runs = fleet.claim()
    assert {run["id"] for run in runs} == {held, free}
    if how == "version":
        fleet.rows("UPDATE rowcall.agent_jobs SET agent_version = 1")
        fleet.move(runs, "PARKED", reason="version")
    else:
        fleet.rows("UPDATE rowcall.agent_jobs SET losses = 2")
        fleet.move(runs, "PENDING")
    hold(fleet, **scope)
    assert [run["id"] for run in fleet.claim()] == [free]
    assert fleet.claim() == []
    fleet.rows("DELETE FROM rowcall.holds")
    assert [run["id"] for run in fleet.claim()] == [held]


def test_a_run_parked_for_a_version_and_a_suspect_take_slots_like_others(fleet: Fleet) -> None:
    fleet.agent(concurrency=2)
    pinned, suspect = fleet.add(2)
    fleet.promote()
    runs = fleet.claim()
    fleet.rows("UPDATE rowcall.agent_jobs SET agent_version = 1 WHERE id = %s", pinned)
    fleet.move([run for run in runs if run["id"] == pinned], "PARKED", reason="version")
    fleet.rows("UPDATE rowcall.agent_jobs SET losses = 2 WHERE id = %s", suspect)
    fleet.move([run for run in runs if run["id"] == suspect], "PENDING")
    fleet.add(2)
    fleet.promote()
    assert {run["id"] for run in fleet.claim()} == {pinned, suspect} and fleet.claim() == []
    slots = fleet.rows("SELECT slot FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
    assert sorted(row["slot"] for row in slots) == [1, 2]


def approve(fleet: Fleet, run: Any) -> None:
    """As a person's approval does it: the answer first, then the move."""
    fleet.move([run], "WAITING_REVIEW")
    fleet.rows("UPDATE rowcall.agent_jobs SET approved_answer = '{}' WHERE id = %s", run["id"])
    fleet.rows(
        "SELECT rowcall.settle(ARRAY[%s::bigint], ARRAY[NULL::bigint], ARRAY['PENDING'], ARRAY[NULL], ARRAY[NULL], "
        "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL::float8], ARRAY[-1])", run["id"],
    )  # fmt: skip


@pytest.mark.parametrize("where", ["ready", "version", "suspect"])
@pytest.mark.parametrize(
    "scope", [{}, {"agent": "a"}, {"tenant": "poor"}, {"agent": "a", "topic": "cdc.public.orders"}], ids=str
)
def test_no_hold_stops_what_a_person_has_approved_for_it_only_writes(
    fleet: Fleet, where: str, scope: dict[str, str]
) -> None:
    fleet.add(3, tenant="poor", source_topic="cdc.public.orders")
    fleet.promote()
    runs = fleet.claim()
    fleet.add(5, tenant="poor", source_topic="cdc.public.orders", priority=100)
    fleet.promote()
    hold(fleet, **scope)
    assert fleet.claim() == []
    approve(fleet, runs[0])
    if where != "ready":
        (again,) = fleet.claim()
        fleet.rows("UPDATE rowcall.agent_jobs SET agent_version = 1, losses = 2 WHERE id = %s", again["id"])
        fleet.move([again], *(("PENDING",) if where == "suspect" else ("PARKED",)), reason="version")
    fleet.move(runs[1:2], "PENDING")
    assert [run["id"] for run in fleet.claim()] == [runs[0]["id"]]
    assert fleet.claim() == []
    assert fleet.one("SELECT rowcall.mend_lanes(100)") == 0
