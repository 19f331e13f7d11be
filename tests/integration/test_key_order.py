"""Runs of one key go in order whatever becomes of them; what holds a key, and what frees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from consumer import db, operate
from consumer.agents.door import Agent
from consumer.enqueue import enqueue
from tests.agents import AGENTS
from tests.agents.doing import DONE, Note, do
from tests.agents.harness import Records, records, running, settings
from tests.fixtures.postgres import Clock, create, drop
from tests.integration.acting import claiming, insert, job

ME = operate.Act("me", "test")
strict = Agent(name="strict", version=1, answer=Note, on_failure="park", max_attempts=2)
strict.run(do)
TOLD = (*AGENTS, strict)


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(shared: str) -> AsyncIterator[Records]:
    DONE.clear()
    async with records(shared, clear=True) as found:
        await found.know([strict])
        yield found


@pytest.fixture
def people(shared: str) -> Iterator[db.SyncSession]:
    session = db.connect(shared, name="people")
    yield session
    session.close()


@pytest.fixture
def session(database: str, clock: Clock) -> Iterator[db.SyncSession]:
    """A database of its own with the clock in the test's hand, for what SQL alone decides."""
    opened = db.connect(database, name="test")
    opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
    yield opened
    opened.close()


def take(session: db.SyncSession, **changed: Any) -> list[int]:
    session.execute("SELECT rowcall.promote(1000)")
    found = session.execute(db.queries("claim")["claim"], claiming(100, **changed))
    return [row["id"] for row in found]


def keep_failures(session: db.SyncSession) -> None:
    session.execute("""UPDATE rowcall.agents SET options = '{"on_failure": "park"}'""")


async def test_a_failed_run_frees_its_key_unless_its_agent_says_otherwise(shared: str, view: Records) -> None:
    first = await view.add("doer", {"do": "give_up"}, key="k")
    second = await view.add("doer", {"do": "succeed"}, key="k")
    async with running(settings(shared), agents=TOLD):
        assert (await view.wait(second))["status"] == "SUCCEEDED"
    assert (await view.job(first))["status"] == "FAILED"


@pytest.mark.parametrize(("what", "code"), [("give_up", "gave_up"), ("boom", "agent_exception")])
async def test_a_run_that_fails_under_on_failure_park_holds_its_key_until_a_person_retries_it(
    shared: str, view: Records, people: db.SyncSession, what: str, code: str
) -> None:
    first = await view.add("strict", {"do": what}, key="k", attempts=2)
    second = await view.add("strict", {"do": "succeed"}, key="k")
    elsewhere = await view.add("strict", {"do": "succeed"}, key="other")
    async with running(settings(shared), agents=TOLD):
        held = await view.wait(first, "PARKED")
        await view.wait(elsewhere, "SUCCEEDED")
        await asyncio.sleep(0.3)
        assert (await view.job(second))["status"] == "PENDING"
        await view.execute('UPDATE rowcall.agent_jobs SET payload = \'{"do": "succeed"}\' WHERE id = %s', first)
        moved = operate.retry(people, first, ME)
        await view.wait(second, "SUCCEEDED")
    assert (held["reason"], held["error_code"], held["finished_at"]) == ("failed", code, None)
    assert held["last_error"]
    again = await view.job(first)
    assert (moved.before, moved.after, again["status"], again["attempt_count"]) == ("PARKED", "PENDING", "SUCCEEDED", 1)
    assert [run for _, run in DONE if run in (first, second)][-2:] == [first, second]


async def test_cancelling_a_parked_failure_frees_its_key(shared: str, view: Records, people: db.SyncSession) -> None:
    first = await view.add("strict", {"do": "give_up"}, key="k")
    second = await view.add("strict", {"do": "succeed"}, key="k")
    async with running(settings(shared), agents=TOLD):
        await view.wait(first, "PARKED")
        operate.cancel(people, first, ME)
        await view.wait(second, "SUCCEEDED")
    assert (await view.job(first))["status"] == "CANCELLED"


async def test_runs_of_a_key_keep_their_order_through_retries_waits_reviews_and_parks(
    shared: str, view: Records, people: db.SyncSession
) -> None:
    payloads: list[dict[str, object]] = [
        {"do": "boom", "times": 1},
        {"do": "later", "times": 2, "seconds": 0.05},
        {"do": "give_up"},
        {"do": "answer", "answer": {"title": 1, "score": 1}},
        {"do": "succeed"},
    ]
    ids = [await view.add("strict", payload, key="k") for payload in payloads]
    others = [await view.add("doer", {"do": "succeed"}, key=f"other{number}") for number in range(3)]
    async with running(settings(shared), agents=TOLD):
        await view.wait_all(others)
        await view.wait(ids[2], "PARKED")
        await view.execute('UPDATE rowcall.agent_jobs SET payload = \'{"do": "succeed"}\' WHERE id = %s', ids[2])
        operate.retry(people, ids[2], ME)
        await view.wait(ids[3], "WAITING_REVIEW")
        assert (await view.job(ids[4]))["lease_epoch"] == 0
        (review,) = operate.list_reviews(people)
        operate.approve(people, review["id"], ME, answer={"title": "x", "score": 1})
        await view.wait(ids[4], "SUCCEEDED")
    mine = [run for _, run in DONE if run in ids]
    assert mine == sorted(mine), "a later run of the key began before an earlier one had ended"
    assert {job["status"] for job in await view.all("SELECT status FROM rowcall.agent_jobs")} == {"SUCCEEDED"}


def test_the_loss_limit_parks_a_run_whose_agent_says_so_where_no_worker_has_its_code(
    session: db.SyncSession, clock: Clock
) -> None:
    keep_failures(session)
    first, second = insert(session, key_hash=7), insert(session, key_hash=7)
    for _ in range(5):
        assert take(session) == [first]
        clock.advance(31)
        session.execute("SELECT rowcall.reclaim(100)")
        clock.advance(10)
    held = job(session, first)
    assert (held["status"], held["reason"], held["error_code"]) == ("PARKED", "failed", "lease_expired")
    assert take(session) == []
    operate.retry(session, first, ME)
    assert take(session) == [first]
    assert job(session, second)["status"] == "PENDING"


def test_the_attempt_limit_at_a_deadline_parks_a_run_whose_agent_says_so(session: db.SyncSession, clock: Clock) -> None:
    keep_failures(session)
    first = insert(session, key_hash=7, max_attempts=1)
    insert(session, key_hash=7)
    assert take(session, deadline=20.0) == [first]
    clock.advance(21)
    session.execute("SELECT rowcall.reclaim(100)")
    held = job(session, first)
    assert (held["status"], held["reason"], held["error_code"]) == ("PARKED", "failed", "deadline_exceeded")
    assert take(session) == []


def later(session: db.SyncSession, *, hold: bool, seconds: int = 3600) -> int:
    row = session.execute(
        "SELECT rowcall.enqueue('a', key => 'k', hold_key => %s, "
        "run_after => rowcall.now() + make_interval(secs => %s)) AS id",
        (hold, seconds),
    ).fetchone()
    assert row is not None
    return int(row["id"])


def test_a_delayed_run_lets_later_ones_of_its_key_pass(session: db.SyncSession, clock: Clock) -> None:
    delayed, now = later(session, hold=False), later(session, hold=False, seconds=0)
    assert take(session) == [now]
    clock.advance(3601)
    assert take(session) == []  # the key is taken
    assert job(session, delayed)["status"] == "PENDING"


def test_a_delayed_run_that_holds_its_key_runs_before_later_ones_and_not_before_its_time(
    session: db.SyncSession, clock: Clock
) -> None:
    before = later(session, hold=False, seconds=0)
    delayed, after = later(session, hold=True), later(session, hold=False, seconds=0)
    assert take(session) == [before]
    session.execute(
        "UPDATE rowcall.agent_jobs SET status = 'SUCCEEDED', owner = NULL, finished_at = rowcall.now() WHERE id = %s",
        (before,),
    )
    session.execute("SELECT rowcall.mend_lanes(100)")
    assert take(session) == []
    clock.advance(3599)
    assert take(session) == []
    clock.advance(2)
    assert take(session) == [delayed]
    assert job(session, after)["status"] == "PENDING"


def test_a_key_is_held_from_the_first_even_behind_a_full_promotion(session: db.SyncSession) -> None:
    first = later(session, hold=False, seconds=0)
    held, last = later(session, hold=True), later(session, hold=False, seconds=0)
    for _ in range(3):
        session.execute("SELECT rowcall.promote(1)")
    order = session.execute("SELECT id FROM rowcall.agent_jobs ORDER BY lane_seq, id").fetchall()
    assert [row["id"] for row in order] == [first, held, last]


def test_enqueue_takes_the_wish_to_hold_a_key(session: db.SyncSession) -> None:
    made = enqueue(session, "a", {}, key="k", hold_key=True)
    assert job(session, made.job_id)["holds_key"] is True


def test_a_delayed_run_that_holds_an_empty_key_is_not_due_with_the_run_behind_it(
    session: db.SyncSession, clock: Clock
) -> None:
    delayed, _ = later(session, hold=True), later(session, hold=False, seconds=0)
    assert take(session) == []
    clock.advance(3601)
    assert take(session) == [delayed]
