"""Rates: of an agent's runs and of the model endpoint, one bucket for all workers, filled by the database's clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.postgres import Clock
from tests.integration.limiting import LIMITS, Fleet


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    yield found
    found.close()


def running(fleet: Fleet, count: int) -> list[dict[str, object]]:
    """Claimed runs."""
    fleet.add(count)
    fleet.promote()
    return fleet.claim(count)


def test_an_agents_rate_is_one_for_all_workers_in_any_minute(database: str, fleet: Fleet, clock: Clock) -> None:
    fleet.agent(rate_runs=60, rate_seconds=60.0)
    other = Fleet(database)
    fleet.add(500)
    fleet.promote()
    started = []
    for _ in range(120):
        clock.advance(1)
        started.append(len(fleet.claim()) + len(other.claim()))
    assert max(sum(started[n : n + 60]) for n in range(60)) <= 66
    assert 110 <= sum(started) <= 126
    other.close()


def test_an_idle_time_saves_up_no_more_than_a_tenth_of_the_rate(fleet: Fleet, clock: Clock) -> None:
    fleet.agent(rate_runs=100, rate_seconds=60.0)
    fleet.add(100)
    fleet.promote()
    assert len(fleet.claim()) == 10
    clock.advance(3600)
    assert len(fleet.claim()) == 10


def test_a_claim_that_finds_less_than_it_may_take_leaves_the_rest_of_its_permits(fleet: Fleet) -> None:
    fleet.agent(rate_runs=100, rate_seconds=3600.0)
    fleet.add(3)
    fleet.promote()
    assert len(fleet.claim()) == 3
    fleet.add(20)
    fleet.promote()
    assert len(fleet.claim()) == 7


def test_a_bucket_that_another_claim_holds_is_passed_by_not_waited_for(database: str, fleet: Fleet) -> None:
    fleet.agent(rate_runs=100, rate_seconds=60.0)
    fleet.agent("b")
    fleet.add(100)
    fleet.add(1, agent="b")
    fleet.promote()
    assert len(fleet.claim(1)) == 1
    open_ = Fleet(database, autocommit=False)
    assert len(open_.claim(2)) == 2
    assert [run["job_type"] for run in fleet.claim(100, "a", "b")] == ["b"]
    open_.session.rollback()
    open_.close()


def test_the_endpoints_calls_are_shared_and_those_that_wait_are_told_their_turn(
    database: str, fleet: Fleet, clock: Clock
) -> None:
    fleet.agent()
    runs = running(fleet, 40)
    rate: dict[str, Any] = {"calls": 60.0, "calls_seconds": 60.0}
    other = Fleet(database)
    first, second = fleet.admit(runs[:4], **rate), other.admit(runs[4:10], **rate)
    assert [row["verdict"] for row in first] == ["go"] * 4
    assert [row["verdict"] for row in second] == ["go"] * 2 + ["wait"] * 4
    assert [row["seconds"] for row in second[2:]] == pytest.approx([1, 2, 3, 4])
    clock.advance(3)
    assert [row["verdict"] for row in other.admit(runs[10:20], **rate)] == ["go"] * 3 + ["wait"] * 7
    gone = 0
    for _ in range(60):
        clock.advance(1)
        gone += [row["verdict"] for row in fleet.admit(runs, **rate)].count("go")
    assert gone <= 66
    other.close()


def test_the_endpoints_tokens_are_counted_as_reserved(fleet: Fleet, clock: Clock) -> None:
    fleet.agent()
    runs = running(fleet, 10)
    rate: dict[str, Any] = {"rate": 10_000.0, "rate_seconds": 60.0}
    verdicts = [row["verdict"] for row in fleet.admit(runs, tokens=400, **rate)]
    assert verdicts == ["go"] * 2 + ["wait"] * 8
    clock.advance(60)
    # A call larger than what can be saved up goes when the bucket is full, and the next one waits for it.
    large = fleet.admit(runs[:2], tokens=5_000, **rate)
    assert [row["verdict"] for row in large] == ["go", "wait"]
    assert large[1]["seconds"] > 30


def test_a_pause_the_endpoint_asked_for_holds_every_worker_and_ends_apart(
    database: str, fleet: Fleet, clock: Clock
) -> None:
    fleet.agent()
    runs = running(fleet, 30)
    other = Fleet(database)
    other.rows(LIMITS["pause_endpoint"], {"endpoint": "e", "seconds": 20.0})
    other.rows(LIMITS["pause_endpoint"], {"endpoint": "e", "seconds": 5.0})
    waits = [row["seconds"] for row in fleet.admit(runs)]
    assert all(20 <= wait <= 25 for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > 20, "all would come back at once"
    clock.advance(21)
    assert {row["verdict"] for row in fleet.admit(runs)} == {"go"}
    other.close()


def test_where_nothing_is_limited_a_call_is_admitted_without_a_write(fleet: Fleet) -> None:
    fleet.agent()
    runs = running(fleet, 3)
    before = fleet.one("SELECT pg_current_wal_insert_lsn()")
    assert {row["verdict"] for row in fleet.admit(runs)} == {"go"}
    assert fleet.rows("SELECT 1 FROM rowcall.spend") == fleet.rows("SELECT 1 FROM rowcall.buckets") == []
    assert fleet.one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::int", before) < 1000
