"""A database whose clock jumps, and rounds that take long: no storm, and no watchdog that has gone blind."""

from __future__ import annotations

import psycopg
import pytest

from consumer import db
from consumer.watchdog.observation import Rules
from consumer.watchdog.observe import Observers
from consumer.watchdog.store import Store
from tests.fixtures.postgres import Clock
from tests.fixtures.process import eventually
from tests.integration.test_watchdog_delivery import Failing, delivering, flip
from tests.integration.watching import Told, rounds, rows

ONE = "process:executor@one"
NO_GAP = {"ROWCALL_WATCHDOG_GAP_SECONDS": "1e9"}


def test_clock_that_goes_back_is_a_gap_and_no_storm_of_beats_in_the_future(database: str, clock: Clock) -> None:
    with rounds(database) as watching:
        watching.beat()
        watching.look()
        clock.advance(-600)
        watching.look()
        assert watching.states()[ONE] == "up"
        (gap,) = watching.flips("watchdog:rounds")
        assert "clock went back by 600 s" in gap["message"] and gap["due_at"] <= gap["at"]
        watching.beat(progress=2)
        watching.look()
        assert watching.states()[ONE] == "up" and len(watching.flips("watchdog:rounds")) == 1


def test_clock_that_was_far_ahead_for_a_moment_does_not_blind_the_watchdog(database: str, clock: Clock) -> None:
    with rounds(database) as watching:
        watching.beat()
        watching.look()
        for days in (365, -365):
            clock.advance(days * 86400)
            watching.look()
        for _ in range(20):
            clock.advance(8)
            watching.look()
        assert watching.states()[ONE] == "overdue"


def test_fleet_that_beat_in_the_future_and_is_gone_is_told(database: str, clock: Clock) -> None:
    with rounds(database, **NO_GAP) as watching:
        watching.agent()
        watching.beat()
        watching.session.execute(
            "UPDATE rowcall.heartbeats SET at = at + interval '1 year',"
            " expected_next = expected_next + interval '1 year'"
        )
        watching.run_of("a")
        watching.look()
        clock.advance(100)
        watching.look()
        assert watching.states()["fleet:executor"] == "overdue"


def test_what_was_put_off_before_the_clock_went_back_is_sent_and_told_again(database: str, clock: Clock) -> None:
    failing = Failing(1)
    with delivering(database, failing) as delivery:
        flip(database, failing)
        delivery.wake()
        eventually("a try", lambda: rows(database, "SELECT FROM rowcall.watch_alerts WHERE last_error IS NOT NULL"))
        clock.advance(-86400)
        eventually("it is sent", lambda: rows(database, "SELECT FROM rowcall.watch_alerts WHERE sent_at IS NOT NULL"))
    with db.connect(database, name="watchdog", by_key=True) as session:
        store = Store(session, [Told()])
        now = rows(database, "SELECT rowcall.now() AS at")[0]["at"]
        assert store.remind(store.known().values(), now, 3600) == 1


def test_beats_that_came_while_the_round_stood_still_do_not_lie_in_the_future(database: str) -> None:
    with rounds(database) as watching:
        watching.beat()
        begun = rows(database, "SELECT rowcall.now() - interval '1 minute' AS at")[0]["at"]
        seen = Observers(Rules()).observe(watching.session, {}, begun)
        (process,) = [item for item in seen if item.subject == ONE]
        assert process.last_beat_at is not None and all(fault.at > begun for fault in process.faults)


def test_watchdog_that_waits_for_a_lock_has_not_been_away(database: str) -> None:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1.2", ROWCALL_WATCHDOG_SECONDS="0.5") as watching:
        watching.session.execute("SET lock_timeout = '500ms'")
        watching.look()
        with psycopg.connect(database) as holder:
            holder.execute("LOCK TABLE rowcall.agent_jobs")
            watching.look()
            watching.look()
        assert watching.flips("watchdog:rounds") == []


def test_machine_that_slept_in_the_middle_of_a_round_was_away(database: str, clock: Clock) -> None:
    with rounds(database) as watching:
        watching.look()
        clock.advance(60)
        Store(watching.session, []).still_looking(10)
        watching.look()
        assert len(watching.flips("watchdog:rounds")) == 1


@pytest.mark.parametrize(("gap", "statement", "lock"), [(10.0, "5s", "2500ms"), (600.0, "10s", "5s")])
def test_no_statement_of_a_round_takes_as_long_as_a_gap(database: str, gap: float, statement: str, lock: str) -> None:
    with db.connect(database, name="watchdog") as session:
        session.execute(db.queries("watchdog")["limit_statements"], {"gap": gap})
        found = [session.execute(f"SHOW {name}".encode()).fetchone() for name in ("statement_timeout", "lock_timeout")]
    assert found == [{"statement_timeout": statement}, {"lock_timeout": lock}]
