"""What a worker that has nothing to do asks, and that it misses nothing by asking less."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from consumer import claim, db
from consumer.executor.wake import Wake
from tests.fixtures.postgres import create, drop

VERSIONS = {"resting": 2}
READY = "INSERT INTO rowcall.lanes (agent, key_hash, head, {0}) VALUES ('{1}', 1, 1, {2})"


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def session(database: str) -> AsyncIterator[db.Session]:
    found = await db.connect_async(database, name="executor", by_key=True)
    await found.execute("BEGIN")
    await found.execute("INSERT INTO rowcall.agents (name, version) VALUES ('resting', 2)")
    yield found
    await found.execute("ROLLBACK")
    await found.close()


async def test_a_worker_with_nothing_to_do_finds_nothing_to_do(session: db.Session) -> None:
    assert not await claim.any_work(session, VERSIONS)
    due = await claim.due(session, list(VERSIONS))
    assert due == claim.Due(expired=False, paused=False, reviews=False, rated=False, limits=False)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("INSERT INTO rowcall.agent_jobs (job_type) VALUES ('resting')", True),
        ("INSERT INTO rowcall.agent_jobs (job_type, run_after) VALUES ('resting', now() + interval '1 h')", False),
        (
            "INSERT INTO rowcall.agent_jobs (job_type, run_after, holds_key)"
            " VALUES ('resting', now() + interval '1 h', true)",
            True,
        ),
        (READY.format("ready_at", "resting", "now()"), True),
        (READY.format("ready_at", "resting", "now() + interval '1 h'"), False),
        (READY.format("ready_at", "other", "now()"), False),
        (READY.format("suspect_at", "resting", "now()"), True),
        (READY.format("suspect_at", "resting", "now() + interval '1 h'"), False),
        (READY.format("parked_version", "resting", "2"), True),
        (READY.format("parked_version", "resting", "1"), False),
    ],
)
async def test_an_idle_worker_sees_whatever_promote_or_claim_may_take(
    session: db.Session, statement: str, found: bool
) -> None:
    await session.execute(statement.encode())
    assert await claim.any_work(session, VERSIONS) is found


@pytest.mark.parametrize(
    ("part", "statement"),
    [
        ("paused", "UPDATE rowcall.agents SET state = 'PAUSED', paused_until = now() - interval '1 s'"),
        (
            "rated",
            "INSERT INTO rowcall.limits (agent, rate_runs, rate_seconds, updated_by) VALUES ('resting', 1, 1, 'a')",
        ),
        (
            "limits",
            "INSERT INTO rowcall.holds (reason, agent, topic, until, detail)"
            " VALUES ('storm', 'resting', 't', now(), 'many')",
        ),
        (
            "reviews",
            "INSERT INTO rowcall.reviews (job_id, code, reasons) VALUES (1, 'tier_high', '{}')",
        ),
    ],
)
async def test_each_part_of_the_upkeep_is_found_when_it_is_due(session: db.Session, part: str, statement: str) -> None:
    await session.execute(statement.encode())
    due = await claim.due(session, list(VERSIONS))
    assert {name for name in claim.Due.__slots__ if getattr(due, name)} == {part}


async def test_an_expired_lease_is_found_whoever_held_it(session: db.Session) -> None:
    await session.execute("INSERT INTO rowcall.agent_jobs (job_type) VALUES ('resting')")
    await claim.promote(session)
    assert len(await claim.claim(session, claim.Lease(uuid.uuid4(), 0.0, 60.0), ["resting"], 1)) == 1
    assert (await claim.due(session, ["another"])).expired
    assert await claim.reclaim(session) == 1


async def test_a_wait_tells_whether_anything_happened(database: str) -> None:
    wake = Wake(database)
    assert not await wake.wait(0.01)
    wake.set()
    assert await wake.wait(5.0)
    assert not await wake.wait(0.0)
