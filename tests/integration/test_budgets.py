"""Budgets: reserved before a call and settled after, never exceeded by many callers, parking in order and resuming."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent("a")
    found.agent("b")
    yield found
    found.close()


def running(fleet: Fleet, count: int, agent: str = "a", **columns: Any) -> list[Any]:
    """Claimed runs."""
    fleet.add(count, agent, **columns)
    fleet.promote()
    return fleet.claim(count, agent)


def verdicts(rows: list[Any]) -> list[str]:
    return [row["verdict"] for row in rows]


def usage(fleet: Fleet) -> tuple[int, int]:
    """Tokens used and reserved over all budgets."""
    (row,) = fleet.rows("SELECT sum(tokens)::int AS used, sum(tokens_reserved)::int AS held FROM rowcall.budget_usage")
    return row["used"], row["held"]


def test_many_callers_at_once_never_use_more_than_the_budget(database: str, fleet: Fleet) -> None:
    fleet.budget(10_000, agent="a")
    runs = running(fleet, 60)
    faults: list[BaseException] = []

    def call(mine: list[Any]) -> None:
        worker = Fleet(database)
        chance = random.Random(mine[0]["id"])
        try:
            for _ in range(30):
                admitted = worker.admit(mine, tokens=150)
                for row in admitted:
                    if row["verdict"] == "go":
                        worker.settle_calls([row["reservation"]], chance.randint(50, 150))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            faults.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=call, args=(runs[n::6],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    used, held = usage(fleet)
    assert 10_000 - 150 < used <= 10_000
    assert held == 0
    assert fleet.one("SELECT sum(tokens)::int FROM rowcall.spend WHERE state = 'SETTLED'") == used
    assert verdicts(fleet.admit(runs[:5], tokens=150)) == ["spent"] * 5
    assert len(fleet.rows("SELECT 1 FROM rowcall.holds")) == len(fleet.keep()) == 1, "one flip, one alert"


def test_a_caller_waits_for_a_reservation_that_is_just_being_made(database: str, fleet: Fleet) -> None:
    fleet.budget(1000, agent="a")
    first, second = running(fleet, 2)
    open_ = Fleet(database, autocommit=False)
    # Makes the window's row, which the second caller must find.
    fleet.settle_calls([fleet.admit([first], tokens=1)[0]["reservation"]], 0)
    assert verdicts(open_.admit([first], tokens=600)) == ["go"]
    given: list[str] = []
    thread = threading.Thread(target=lambda: given.extend(verdicts(fleet.admit([second], tokens=600))))
    thread.start()
    thread.join(0.3)
    assert given == []
    open_.session.commit()
    thread.join(10)
    assert given == ["wait"]
    open_.close()


def test_use_above_a_reservation_exceeds_by_that_much_and_no_more(fleet: Fleet) -> None:
    fleet.budget(1000, agent="a")
    runs = running(fleet, 20)
    admitted = fleet.admit(runs, tokens=100)
    assert verdicts(admitted) == ["go"] * 10 + ["wait"] * 10
    fleet.settle_calls([row["reservation"] for row in admitted[:10]], 130)
    assert usage(fleet) == (1300, 0)
    assert verdicts(fleet.admit(runs[10:], tokens=100)) == ["spent"] * 10


def test_a_reservation_of_a_dead_run_comes_back_and_its_late_call_is_counted_all_the_same(
    fleet: Fleet, clock: Clock
) -> None:
    fleet.budget(1000, agent="a")
    (dead,) = running(fleet, 1)
    (reserved,) = fleet.admit([dead], tokens=900)
    (other,) = running(fleet, 1)
    assert verdicts(fleet.admit([other], tokens=900)) == ["wait"]
    clock.advance(31)
    fleet.reclaim()
    fleet.keep()
    assert usage(fleet) == (0, 0)
    fleet.settle_calls([reserved["reservation"]], 700)
    assert usage(fleet) == (700, 0)
    fleet.settle_calls([reserved["reservation"]], 700)
    assert usage(fleet) == (700, 0), "a call is settled once"


def test_a_run_that_lost_its_lease_reserves_nothing(fleet: Fleet, clock: Clock) -> None:
    fleet.budget(1000, agent="a")
    (run,) = running(fleet, 1)
    clock.advance(31)
    fleet.reclaim()
    fleet.claim()
    assert verdicts(fleet.admit([run])) == ["lost"]
    assert usage(fleet) == (0, 0)


def test_a_spent_budget_stops_claims_parks_runs_and_both_go_on_in_order_when_it_is_raised(fleet: Fleet) -> None:
    budget = fleet.budget(100, agent="a")
    first, second = running(fleet, 2, key_hash=1) or running(fleet, 1), running(fleet, 1, key_hash=2)
    waiting = fleet.add(200)
    behind = fleet.add(1, key_hash=1)
    fleet.promote()
    fleet.settle_calls([fleet.admit(first)[0]["reservation"]], 100)
    assert verdicts(fleet.admit(first + second)) == ["spent", "spent"]
    fleet.move(first + second, "PARKED", reason="budget")
    assert fleet.claim() == []
    assert fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'PENDING'") == len(waiting) + 2
    (alert,) = fleet.keep()
    assert (alert["event"], alert["reason"], alert["agent"]) == ("began", "budget", "a")
    assert fleet.keep() == [] and fleet.claim() == []
    assert fleet.budget(100_000, agent="a") == budget
    assert [row["event"] for row in fleet.keep()] == ["ended"]
    order = [run["id"] for run in fleet.claim(300)]
    parked = sorted(run["id"] for run in first + second)
    assert sorted(order)[:2] == parked and len(order) == len(waiting) + 2
    assert behind[0] not in order, "it waits behind the one that was parked"
    assert fleet.one("SELECT count(*) FROM rowcall.audit WHERE actor = 'rowcall'") == 2


def test_a_spent_window_ends_by_itself(fleet: Fleet, clock: Clock) -> None:
    fleet.rows("UPDATE public.test_clock SET at = '2030-01-31 23:50:00Z'")
    for period, seconds in (("hour", 601), ("day", 601), ("month", 601), ("week", 8 * 86400)):
        budget = fleet.budget(100, period, agent="a")
        (run,) = running(fleet, 1)
        fleet.settle_calls([fleet.admit([run])[0]["reservation"]], 100)
        assert verdicts(fleet.admit([run])) == ["spent"]
        fleet.move([run], "PARKED", reason="budget")
        fleet.add(1)
        fleet.promote()
        clock.advance(599)
        fleet.keep()
        assert fleet.claim() == [], period
        clock.advance(seconds - 599)
        fleet.keep()
        again = fleet.claim()
        assert len(again) == 2, period
        assert verdicts(fleet.admit(again[:1])) == ["go"]
        fleet.move(again)
        fleet.keep()
        fleet.rows("DELETE FROM rowcall.budgets WHERE id = %s", budget)
        fleet.rows("UPDATE public.test_clock SET at = '2030-01-31 23:50:00Z'")


def test_a_tenants_budget_stops_that_tenant_alone_and_touches_each_waiting_lane_once(fleet: Fleet) -> None:
    budget = fleet.budget(100, tenant="t")
    (run,) = running(fleet, 1, tenant="t")
    fleet.settle_calls([fleet.admit([run])[0]["reservation"]], 100)
    assert verdicts(fleet.admit([run])) == ["spent"]
    fleet.move([run], "PARKED", reason="budget")
    held = fleet.add(3000, tenant="t")
    others = fleet.add(10, tenant="u") + fleet.add(5, agent="b", tenant="u")
    fleet.add(5, agent="b", tenant="t")
    fleet.promote()
    fleet.promote()
    assert sorted(run["id"] for run in fleet.claim(100, "a", "b")) == others
    assert fleet.one("SELECT count(*) FROM rowcall.lanes WHERE hold IS NOT NULL") == len(held) + 5
    assert fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'PARKED'") == 1
    fleet.rows("DELETE FROM rowcall.budgets WHERE id = %s", budget)
    fleet.keep()
    assert len(fleet.claim(5000, "a", "b")) == len(held) + 5 + 1


def test_a_call_that_exceeds_a_whole_budget_ends_its_run_and_no_other(fleet: Fleet) -> None:
    fleet.budget(1000, agent="a")
    runs = running(fleet, 2)
    assert verdicts(fleet.admit(runs[:1], tokens=1001)) == ["too_large"]
    assert verdicts(fleet.admit(runs[1:], tokens=1000)) == ["go"]
    assert fleet.rows("SELECT 1 FROM rowcall.holds") == []


def test_the_narrowest_of_several_budgets_decides_and_money_counts_as_tokens_do(fleet: Fleet) -> None:
    fleet.budget(10**9, "total")
    fleet.budget(None, "month", money=500)
    fleet.budget(10**6, agent="a", tenant="t")
    runs = running(fleet, 8, tenant="t")
    admitted = fleet.admit(runs, tokens=100, money=100)
    assert verdicts(admitted) == ["go"] * 5 + ["wait"] * 3
    fleet.settle_calls([row["reservation"] for row in admitted[:5]], 90, 100)
    assert verdicts(fleet.admit(runs[5:], tokens=100, money=100)) == ["spent"] * 3
    rows = fleet.rows("SELECT tokens, money, tokens_reserved AS held FROM rowcall.budget_usage")
    assert {(row["tokens"], row["money"], row["held"]) for row in rows} == {(450, 500, 0)}


def test_an_unknown_use_counts_as_what_was_reserved(fleet: Fleet) -> None:
    fleet.budget(1000, agent="a")
    (row,) = fleet.admit(running(fleet, 1), tokens=300)
    fleet.settle_calls([row["reservation"]], None, None)
    assert usage(fleet) == (300, 0)


def test_caps_of_a_run_and_of_its_root_event_stop_these_alone(fleet: Fleet) -> None:
    fleet.agent("a", run_tokens=250, root_tokens=400)
    one, two = running(fleet, 2, root_event="r")
    (stranger,) = running(fleet, 1, root_event="s")
    assert verdicts(fleet.admit([one, one, one])) == ["go", "go", "run_cap"]
    assert verdicts(fleet.admit([two, two, two])) == ["go", "go", "run_cap"]
    (three,) = running(fleet, 1, root_event="r")
    assert verdicts(fleet.admit([three])) == ["root_cap"]
    assert verdicts(fleet.admit([stranger])) == ["go"]
    assert fleet.rows("SELECT 1 FROM rowcall.holds") == []


def test_callers_of_one_root_event_at_once_stay_within_its_cap(database: str, fleet: Fleet) -> None:
    fleet.agent("a", root_tokens=1000)
    runs = running(fleet, 8, root_event="r")
    gone: list[str] = []

    def call(run: Any) -> None:
        worker = Fleet(database)
        for _ in range(10):
            gone.extend(verdicts(worker.admit([run])))
        worker.close()

    threads = [threading.Thread(target=call, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert gone.count("go") == 10 and len(gone) == 80
