"""Concurrency of an agent over all workers: slots are never more than the limit, and a dead worker's come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent(concurrency=3)
    yield found
    found.close()


def test_no_more_runs_are_claimed_than_the_limit_over_all_workers(database: str, fleet: Fleet) -> None:
    other = Fleet(database)
    fleet.add(10)
    fleet.promote()
    first, second = fleet.claim(2), other.claim(100)
    assert (len(first), len(second)) == (2, 1)
    assert fleet.claim() == other.claim() == []
    taken = fleet.rows("SELECT slot FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
    assert sorted(row["slot"] for row in taken) == [1, 2, 3]
    fleet.move(first)
    assert len(other.claim()) == 2
    other.close()


def test_a_claim_that_is_not_committed_yet_keeps_its_slots_and_one_rolled_back_gives_them_back(
    database: str, fleet: Fleet
) -> None:
    open_ = Fleet(database, autocommit=False)
    fleet.add(10)
    fleet.promote()
    assert len(open_.claim(2)) == 2
    assert len(fleet.claim()) == 1
    assert fleet.claim() == []
    open_.session.rollback()
    assert len(fleet.claim()) == 2
    open_.close()


@pytest.mark.parametrize(
    "end", ["SUCCEEDED", "FAILED", "WAITING_RETRY", "WAITING_REVIEW", "PARKED", "CANCELLED", "PENDING"]
)
def test_whatever_ends_or_suspends_a_run_frees_its_slot(fleet: Fleet, end: str) -> None:
    fleet.add(6)
    fleet.promote()
    fleet.move(fleet.claim(), end, reason="test")
    fleet.rows("UPDATE rowcall.agent_jobs SET run_after = '2100-01-01' WHERE status = 'WAITING_RETRY'")
    assert len(fleet.claim()) == 3


def test_a_dead_workers_slots_come_back_with_its_runs(fleet: Fleet, clock: Clock) -> None:
    fleet.add(6)
    fleet.promote()
    dead = fleet.claim()
    assert fleet.claim() == []
    clock.advance(31)
    fleet.reclaim()
    assert len(fleet.claim()) == 3
    # The dead worker comes back and settles what is not its own any more: no slot is freed by it.
    assert fleet.move(dead) == set()
    assert fleet.claim() == []


def test_an_operators_limit_wins_over_the_codes_and_zero_is_none(fleet: Fleet) -> None:
    fleet.add(20)
    fleet.promote()
    setting = "INSERT INTO rowcall.limits AS l (agent, concurrency, updated_by) VALUES (%s, %s, 'test') " \
        "ON CONFLICT (agent) DO UPDATE SET concurrency = excluded.concurrency"  # fmt: skip
    fleet.rows(setting, "*", 1)
    assert len(fleet.claim()) == 3
    fleet.rows(setting, "a", 5)
    assert len(fleet.claim()) == 2
    fleet.rows(setting, "a", 0)
    assert len(fleet.claim()) == 15


@pytest.mark.parametrize("before", [None, 8])
def test_a_lowered_limit_starts_nothing_until_fewer_are_under_way(fleet: Fleet, before: int | None) -> None:
    fleet.agent("c", concurrency=before)
    fleet.add(20, agent="c")
    fleet.promote()
    # Those with the lowest slots end first: theirs must not be given to others.
    taken = {run["id"]: run for run in fleet.claim(8, "c")}
    order = fleet.rows("SELECT id FROM rowcall.agent_jobs WHERE status = 'RUNNING' ORDER BY slot, id")
    runs = [taken[row["id"]] for row in order]
    fleet.agent("c", concurrency=3)
    assert fleet.claim(5, "c") == []
    fleet.move(runs[:5])
    assert fleet.claim(5, "c") == []
    fleet.move(runs[5:6])
    assert len(fleet.claim(5, "c")) == 1
    fleet.move(runs[6:])
    assert len(fleet.claim(5, "c")) == 2


def test_agents_without_a_limit_take_no_slot(fleet: Fleet) -> None:
    fleet.agent("b")
    fleet.add(200, agent="b")
    fleet.promote()
    assert len(fleet.claim(500, "a", "b")) == 200
    assert fleet.rows("SELECT 1 FROM rowcall.agent_jobs WHERE slot IS NOT NULL") == []


def test_many_claimers_at_once_never_hold_more_than_the_limit_and_leave_nothing_taken(
    database: str, fleet: Fleet
) -> None:
    fleet.add(400)
    fleet.promote()
    faults: list[BaseException] = []
    most: list[int] = []
    done = threading.Event()

    def work(number: int) -> None:
        worker = Fleet(database)
        try:
            while not done.is_set():
                runs = worker.claim(1 + number % 3)
                if runs:
                    worker.move(runs[1:])
                    worker.move(runs[:1], "PENDING" if runs[0]["attempt_count"] % 2 else "SUCCEEDED")
        except BaseException as error:  # noqa: BLE001 - the test shows it
            faults.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        most.append(fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'RUNNING'"))
        if fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED'") == 0:
            break
    done.set()
    for thread in threads:
        thread.join(20)
    assert faults == []
    assert 1 < max(most) <= 3
    assert fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED'") == 0
    assert fleet.one("SELECT max(slot) FROM rowcall.agent_jobs") == 3
    fleet.add(5)
    fleet.promote()
    assert len(fleet.claim()) == 3
