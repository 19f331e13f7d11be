"""Claims and lanes on real Postgres: order inside a key, one owner an epoch, nothing forgotten, nobody held up."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from consumer import claim, db, moves, steps
from consumer.records.jobs import ClaimedJob
from tests.fixtures.postgres import Clock

LEASE = claim.Lease(uuid.uuid4(), seconds=30, deadline_seconds=900)


@pytest.fixture
async def session(database: str) -> AsyncIterator[db.Session]:
    opened = await db.connect_async(database, name="test")
    await opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1), ('b', 1)")
    yield opened
    await opened.close()


@pytest.fixture
def other(database: str) -> Iterator[psycopg.Connection[dict[str, object]]]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as opened:
        yield opened


async def add(session: db.Session, *keys: int, agent: str = "a") -> list[int]:
    """Queue one job for each key; their IDs."""
    ids = []
    for key in keys:
        row = await (
            await session.execute(
                "INSERT INTO rowcall.agent_jobs (job_type, key_hash) VALUES (%s, %s) RETURNING id", (agent, key)
            )
        ).fetchone()
        assert row is not None
        ids.append(row["id"])
    return ids


async def take(session: db.Session, limit: int = 100, agents: tuple[str, ...] = ("a", "b")) -> list[ClaimedJob]:
    await claim.promote(session)
    return await claim.claim(session, LEASE, agents, limit)


async def end(session: db.Session, job: ClaimedJob, status: str = "SUCCEEDED", *, delay: float | None = None) -> bool:
    failed = None if status == "SUCCEEDED" else "test"
    move = moves.Settlement(job.id, job.epoch, status, code=failed, error=failed, delay=delay)
    return (await moves.settle(session, [move]))[0]


async def test_a_plain_insert_of_the_public_columns_makes_a_runnable_job(session: db.Session) -> None:
    await session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, status, payload, run_after) "
        "VALUES ('a', 'PENDING', '{\"repository\": \"r\"}', now())"
    )
    (job,) = await take(session)
    assert (job.agent, job.payload, job.attempt, job.epoch) == ("a", '{"repository": "r"}', 1, 1)


async def test_jobs_of_one_key_run_one_after_the_other_in_order(session: db.Session) -> None:
    ids = await add(session, 7, 7, 7)
    seen = []
    for _ in ids:
        jobs = await take(session)
        assert len(jobs) == 1
        seen.append(jobs[0].id)
        assert await take(session) == []
        assert await end(session, jobs[0])
    assert seen == ids


async def test_other_keys_flow_past_a_waiting_one(session: db.Session) -> None:
    first, _, third, fourth = await add(session, 7, 7, 8, 9)
    assert [job.id for job in await take(session)] == [first, third, fourth]
    assert await take(session) == []


async def test_a_retrying_job_keeps_its_place_before_later_ones_of_its_key(session: db.Session) -> None:
    first, second = await add(session, 7, 7)
    (job,) = await take(session)
    assert await end(session, job, "WAITING_RETRY", delay=3600.0)
    assert await take(session) == []
    await session.execute("UPDATE rowcall.agent_jobs SET run_after = now() WHERE id = %s", (first,))
    await session.execute("UPDATE rowcall.lanes SET ready_at = now()")
    (again,) = await take(session)
    assert (again.id, again.attempt) == (first, 2)
    assert await end(session, again)
    assert [item.id for item in await take(session)] == [second]


async def test_a_delayed_job_does_not_block_its_key(session: db.Session) -> None:
    await session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, key_hash, run_after) VALUES ('a', 7, now() + interval '1 hour')"
    )
    (later,) = await add(session, 7)
    assert [job.id for job in await take(session)] == [later]


async def test_an_uncommitted_earlier_insert_neither_blocks_nor_runs_beside_a_later_one(
    session: db.Session, other: psycopg.Connection[dict[str, object]]
) -> None:
    with other.transaction():
        other.execute("INSERT INTO rowcall.agent_jobs (job_type, key_hash) VALUES ('a', 7)")
        (visible,) = await add(session, 7)
        (job,) = await take(session)
        assert job.id == visible
    # The earlier one is committed now, and waits until the running one has ended.
    assert await take(session) == []
    assert await end(session, job)
    (last,) = await take(session)
    assert last.id < visible


async def test_a_promotion_during_a_settle_is_not_forgotten(
    database: str, session: db.Session, other: psycopg.Connection[dict[str, object]]
) -> None:
    (first,) = await add(session, 7)
    (job,) = await take(session)
    (second,) = await add(session, 7)
    promoted = threading.Event()

    with other.transaction():
        # settle() holds the lane and is about to delete it; the promotion has to wait for it and make the lane anew.
        other.execute(
            "SELECT * FROM rowcall.settle(ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY['SUCCEEDED'], ARRAY[NULL], "
            "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL::float8], ARRAY[0])",
            (job.id, job.epoch),
        )

        def promote() -> None:
            with psycopg.connect(database, autocommit=True) as third:
                third.execute("SELECT rowcall.promote(100)")
            promoted.set()

        thread = threading.Thread(target=promote)
        thread.start()
        assert not promoted.wait(0.3)
    thread.join()
    assert [item.id for item in await take(session)] == [second]
    assert first != second


async def test_an_expired_lease_is_claimable_again_by_a_worker_without_that_agent(
    database: str, session: db.Session, clock: Clock
) -> None:
    await add(session, 7, agent="a")
    (job,) = await take(session)
    clock.advance(29)
    assert await claim.reclaim(session) == 0
    clock.advance(2)
    assert await claim.reclaim(session) == 1
    (again,) = await take(session)
    assert (again.id, again.epoch, again.attempt, again.losses) == (job.id, job.epoch + 1, 1, 1)


async def test_an_expired_lease_at_the_loss_limit_fails_with_a_summary(session: db.Session, clock: Clock) -> None:
    await add(session, 7)
    await session.execute("UPDATE rowcall.agent_jobs SET max_attempts = 1")
    for _ in range(5):
        assert len(await take(session)) == 1
        clock.advance(31)
        await claim.reclaim(session)
        clock.advance(10)
    row = await (await session.execute("SELECT status, error_code, last_error FROM rowcall.agent_jobs")).fetchone()
    assert row is not None
    assert (row["status"], row["error_code"]) == ("FAILED", "lease_expired")
    assert "loss 5 of 5" in row["last_error"]


async def test_beats_renew_a_lease_but_never_past_the_deadline(
    session: db.Session, database: str, clock: Clock
) -> None:
    await add(session, 7)
    (job,) = await take(session)
    beating = db.connect(database, name="beat")
    for _ in range(44):
        clock.advance(20)
        assert claim.beat(beating, [(job.id, job.epoch)], 30) == set()
        assert await claim.reclaim(session) == 0
    clock.advance(20)
    claim.beat(beating, [(job.id, job.epoch)], 30)
    assert await claim.reclaim(session) == 1
    row = await (await session.execute("SELECT error_code FROM rowcall.agent_jobs")).fetchone()
    assert row == {"error_code": "deadline_exceeded"}
    assert claim.beat(beating, [(job.id, job.epoch)], 30) == {(job.id, job.epoch)}
    beating.close()


async def test_a_stale_epoch_moves_nothing(session: db.Session, clock: Clock) -> None:
    await add(session, 7)
    (old,) = await take(session)
    clock.advance(31)
    await claim.reclaim(session)
    (new,) = await take(session)
    assert not await end(session, old)
    assert await end(session, new)
    assert not await end(session, old)


@pytest.mark.parametrize("final", ["SUCCEEDED", "REJECTED"])
async def test_succeeded_and_rejected_are_absorbing(session: db.Session, final: str) -> None:
    await add(session, 7)
    (job,) = await take(session)
    if final == "REJECTED":
        assert await end(session, job, "WAITING_REVIEW")
        await session.execute(
            "SELECT * FROM rowcall.settle(ARRAY[%s::bigint], ARRAY[NULL::bigint], ARRAY['REJECTED'], ARRAY[NULL], "
            "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL::float8], ARRAY[0])",
            (job.id,),
        )
    else:
        assert await end(session, job)
    for status in ("PENDING", "RUNNING", "FAILED", "CANCELLED", "WAITING_RETRY", "PARKED", "WAITING_REVIEW"):
        with pytest.raises(psycopg.errors.CheckViolation):
            await session.execute("UPDATE rowcall.agent_jobs SET status = %s WHERE id = %s", (status, job.id))


async def test_one_key_never_has_two_holders_whatever_a_client_does(session: db.Session) -> None:
    await add(session, 7, 7)
    await take(session)
    with pytest.raises(psycopg.errors.UniqueViolation, match="jobs_one_holder"):
        await session.execute(
            "UPDATE rowcall.agent_jobs SET status = 'RUNNING', owner = gen_random_uuid(), lease_epoch = 1, "
            "locked_until = now(), deadline = now() WHERE status = 'PENDING'"
        )


async def test_an_open_user_transaction_that_inserts_holds_up_nobody(
    session: db.Session, other: psycopg.Connection[dict[str, object]]
) -> None:
    with other.transaction():
        other.execute("SELECT rowcall.enqueue('a', key => 'k')")
        ids = await add(session, 8, 9)
        await session.execute("SET statement_timeout = '2s'")
        assert [job.id for job in await take(session)] == ids


async def lose(session: db.Session, clock: Clock, *, suspects: int = 1) -> list[ClaimedJob]:
    """Claim as one worker, which then dies with all it has; what it had."""
    await claim.promote(session)
    jobs = await claim.claim(session, LEASE, ["a"], 100, suspects=suspects)
    clock.advance(31)
    await claim.reclaim(session)
    clock.advance(5)
    return jobs


async def test_a_lost_lease_burns_no_attempt(session: db.Session, clock: Clock) -> None:
    await add(session, 7)
    for losses in range(4):
        (job,) = await lose(session, clock)
        assert (job.attempt, job.losses) == (1, losses)


async def test_runs_lost_twice_are_claimed_one_at_a_time_beside_all_others(session: db.Session, clock: Clock) -> None:
    ids = await add(session, 1, 2, 3)
    assert len(await lose(session, clock)) == len(await lose(session, clock)) == 3
    others = await add(session, 4, 5)
    await claim.promote(session)
    taken = await claim.claim(session, LEASE, ["a"], 100)
    assert [job.id for job in taken if job.id in others] == others
    (suspect,) = (job for job in taken if job.id in ids)
    assert suspect.losses == claim.SUSPECT_LOSSES
    # This worker holds one now; another may hold another.
    assert await claim.claim(session, LEASE, ["a"], 100, suspects=0) == []
    (second,) = await claim.claim(session, LEASE, ["a"], 100)
    assert second.id in ids and second.id != suspect.id
    # Whoever ends is cleared of it.
    assert await end(session, suspect, "WAITING_RETRY", delay=0.0)
    await claim.promote(session)
    (again,) = await claim.claim(session, LEASE, ["a"], 100, suspects=0)
    assert (again.id, again.losses) == (suspect.id, 0)


async def test_a_checkpoint_is_progress_and_what_was_lost_before_counts_no_more(
    session: db.Session, clock: Clock
) -> None:
    await add(session, 7)
    await session.execute("UPDATE rowcall.agents SET options = '{\"max_losses\": 3}' WHERE name = 'a'")
    for number in range(6):
        await claim.promote(session)
        (job,) = await claim.claim(session, LEASE, ["a"], 100)
        step = steps.Checkpoint(job.id, job.epoch, f"s{number}", "AGENT_STEP", number, "1", 1, job.created_at)
        assert await steps.checkpoint(session, [step], 30.0) == [True]
        clock.advance(31)
        await claim.reclaim(session)
        clock.advance(5)
    for _ in range(2):
        assert len(await lose(session, clock)) == 1
    row = await (await session.execute("SELECT status, losses, last_error FROM rowcall.agent_jobs")).fetchone()
    assert row is not None and (row["status"], row["losses"]) == ("FAILED", 3)
    assert "loss 3 of 3" in row["last_error"]


@pytest.mark.parametrize("status", ["WAITING_REVIEW", "WAITING_RETRY", "WAITING_EVENT", "PARKED", "PENDING"])
async def test_a_run_that_waits_is_in_no_scan_of_leases_or_deadlines(
    session: db.Session, clock: Clock, status: str
) -> None:
    await add(session, 7)
    (job,) = await take(session)
    move = moves.Settlement(job.id, job.epoch, status, reason="budget", delay=9e7)
    assert await moves.settle(session, [move]) == [True]
    clock.advance(86400 * 365)
    assert await claim.reclaim(session) == 0
    found = await session.execute("SELECT status, locked_until, deadline, owner FROM rowcall.agent_jobs")
    assert await found.fetchone() == {"status": status, "locked_until": None, "deadline": None, "owner": None}


async def test_a_death_shortly_before_the_deadline_is_a_loss_and_a_hang_until_it_is_not(
    session: db.Session, database: str, clock: Clock
) -> None:
    await add(session, 7, 8)
    dead, hung = await take(session)
    beating = db.connect(database, name="beat")
    for number in range(90):
        clock.advance(10)
        claim.beat(beating, [(hung.id, hung.epoch)], 30)
        if number < 86:  # its worker dies 40 s before the deadline
            claim.beat(beating, [(dead.id, dead.epoch)], 30)
    beating.close()
    assert await claim.reclaim(session) == 2
    found = await session.execute("SELECT error_code, losses, attempt_count FROM rowcall.agent_jobs ORDER BY id")
    assert await found.fetchall() == [
        {"error_code": "lease_expired", "losses": 1, "attempt_count": 0},
        {"error_code": "deadline_exceeded", "losses": 0, "attempt_count": 1},
    ]
