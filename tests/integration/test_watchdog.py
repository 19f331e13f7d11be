"""The watchdog's observers on a real Postgres, under a clock that the test turns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from consumer.watchdog.observation import Expected
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, rounds, rows

ONE = "process:executor@one"


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


def seconds(value: float) -> dt.timedelta:
    return dt.timedelta(seconds=value)


def test_silent_process_is_late_then_overdue_from_the_exact_moment_on(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.look()
    assert watching.states() == {ONE: "up", "fleet:executor": "up"}
    clock.advance(13)
    watching.look()
    assert watching.states()[ONE] == "late"
    clock.advance(27)
    watching.look()
    last = watching.flips(ONE)[-1]
    assert (last["old_state"], last["new_state"]) == ("late", "overdue")
    assert last["due_at"] - last["last_beat_at"] == seconds(32)
    assert last["at"] - last["due_at"] == seconds(8)
    watching.beat(progress=2)
    watching.look()
    assert watching.moves(ONE) == [("new", "up"), ("up", "late"), ("late", "overdue"), ("overdue", "up")]


def test_one_missed_beat_is_not_overdue(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    clock.advance(25)
    watching.look()
    assert watching.states()[ONE] == "late"
    assert not any(row["told"] for row in watching.session.execute("SELECT told FROM rowcall.watch_states").fetchall())


def test_clean_stop_is_no_death(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.look()
    watching.session.execute("UPDATE rowcall.heartbeats SET state = 'STOPPED', expected_next = NULL")
    clock.advance(600)
    watching.look()
    assert watching.states()[ONE] == "up"


def test_process_that_another_has_replaced_is_not_told(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.look()
    clock.advance(5)
    watching.beat(instance="two")
    clock.advance(60)
    watching.beat(instance="two", progress=2)
    watching.look()
    assert watching.states()[ONE] == "up"


def test_beats_without_progress_are_stuck(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.look()
    for _ in range(7):
        clock.advance(10)
        watching.beat()
        watching.look()
    assert watching.moves(ONE) == [("new", "up"), ("up", "stuck")]
    watching.beat(progress=2)
    watching.look()
    assert watching.states()[ONE] == "up"


def test_beat_in_the_future_is_refused(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.session.execute("UPDATE rowcall.heartbeats SET at = at + interval '1 hour'")
    watching.look()
    (flip,) = watching.flips(ONE)
    assert flip["new_state"] == "overdue" and "lies in the future" in flip["message"] and flip["last_beat_at"] is None


def declare(watching: Rounds, name: str = "daily", state: str = "ACTIVE") -> None:
    watching.session.execute(
        "INSERT INTO rowcall.schedules (name, source, definition, next_slot, state)"
        " VALUES (%s, 'code', '{}', rowcall.now() + interval '1 minute', %s)", (name, state)
    )  # fmt: skip


def test_slot_that_should_have_fired_and_has_no_row_is_overdue(watching: Rounds, clock: Clock) -> None:
    declare(watching)
    declare(watching, "off", "PAUSED")
    declare(watching, "old", "RETIRED")
    watching.look()
    assert watching.states() == {"schedule:daily": "new", "schedule:off": "paused"}
    clock.advance(89)
    watching.look()
    assert watching.states()["schedule:daily"] == "new"
    clock.advance(2)
    watching.look()
    (flip,) = watching.flips("schedule:daily")
    assert (
        flip["new_state"] == "overdue"
        and "never fired" in flip["message"]
        and flip["at"] - flip["due_at"] == seconds(1)
    )
    watching.session.execute(
        "INSERT INTO rowcall.schedule_slots (schedule, slot, outcome) SELECT name, next_slot, 'queued'"
        " FROM rowcall.schedules WHERE name = 'daily'"
    )
    watching.session.execute("UPDATE rowcall.schedules SET next_slot = rowcall.now() + interval '1 day'")
    watching.look()
    assert watching.states()["schedule:daily"] == "up"


def test_schedule_that_no_scheduler_ever_read_is_overdue_whatever_restarts_in_between(
    database: str, clock: Clock
) -> None:
    now = rows(database, "SELECT rowcall.now() AS at")[0]["at"]
    soon = Expected("schedule:weekly", now + seconds(60), "start a scheduler")
    with rounds(database, expected=[soon], ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as first:
        first.look()
        assert first.states() == {"schedule:weekly": "new"}
    clock.advance(80)
    later = Expected("schedule:weekly", now + seconds(140), "start a scheduler")
    with rounds(database, expected=[later], ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as second:
        second.look()
        assert second.states() == {"schedule:weekly": "new"}
        clock.advance(15)
        second.look()
        (flip,) = second.flips("schedule:weekly")
        assert flip["new_state"] == "overdue" and flip["due_at"] == now + seconds(90)
        declare(second, "weekly")
        second.look()
        assert second.states() == {"schedule:weekly": "up"}


def test_agent_that_never_ran_and_one_whose_last_run_is_too_old_are_overdue(watching: Rounds, clock: Clock) -> None:
    watching.agent("never", expect_every=3600.0, start_grace=60.0)
    watching.agent("once", expect_every=3600.0)
    watching.agent("any")
    watching.succeed(agent="once")
    watching.look()
    assert watching.states() == {"agent:never": "new", "agent:once": "up", "result:once": "up"}
    clock.advance(3640)
    watching.look()
    assert watching.states()["agent:once"] == "overdue"
    assert watching.states()["agent:never"] == "new"
    clock.advance(21)
    watching.look()
    assert watching.states()["agent:never"] == "overdue"
    watching.succeed(agent="once")
    watching.look()
    assert watching.states()["agent:once"] == "up"


def test_agent_is_overdue_after_as_many_misses_as_it_allows(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0, misses=3)
    clock.advance(3700)
    watching.look()
    assert watching.states() == {"agent:a": "late"}
    clock.advance(7200)
    watching.look()
    assert watching.states() == {"agent:a": "overdue"}


def test_run_that_waits_for_a_person_and_one_under_way_keep_their_agent_from_being_overdue(
    watching: Rounds, clock: Clock
) -> None:
    watching.agent("reviewed", expect_every=3600.0)
    watching.agent("busy", expect_every=3600.0, run_grace=600.0)
    clock.advance(3500)
    watching.run_of("reviewed", "WAITING_REVIEW")
    busy = watching.run_of("busy", "RUNNING")
    clock.advance(500)
    watching.session.execute("UPDATE rowcall.agent_jobs SET locked_until = rowcall.now() + interval '30 s'"
                             " WHERE status = 'RUNNING'")  # fmt: skip
    watching.look()
    assert set(watching.states().values()) == {"new", "up"}
    clock.advance(101)
    watching.look()
    assert watching.states()["agent:busy"] == "overdue"
    assert (watching.states()["run:busy"], watching.flips("run:busy")[-1]["run_id"]) == ("overdue", busy)
    assert watching.states()["agent:reviewed"] == "new"


def test_long_run_is_late_and_not_failed_and_one_that_nobody_took_over_is_overdue(
    watching: Rounds, clock: Clock
) -> None:
    watching.agent(run_grace=20.0)
    job = watching.run_of("a", "RUNNING")
    watching.look()
    assert watching.states() == {"run:a": "up"}
    clock.advance(21)
    watching.look()
    (_, late) = watching.flips("run:a")
    assert (late["new_state"], late["run_id"]) == ("late", job)
    clock.advance(70)
    watching.look()
    assert watching.moves("run:a")[-1] == ("late", "overdue")
    watching.end(job, "CANCELLED")
    watching.look()
    assert watching.moves("run:a")[-1] == ("overdue", "up")


def test_failed_run_is_told_once_an_episode(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.succeed()
    watching.look()
    job = watching.run_of("a", "FAILED")
    watching.look()
    for _ in range(5):
        clock.advance(10)
        watching.run_of("a", "FAILED")
        watching.succeed()
        watching.look()
    assert watching.moves("result:a") == [("new", "up"), ("up", "failed")]
    assert watching.flips("result:a")[-1]["run_id"] == job
    clock.advance(301)
    watching.look()
    assert watching.states()["result:a"] == "up"


def test_failures_count_in_a_row_up_to_the_misses_of_the_agent(watching: Rounds, clock: Clock) -> None:
    watching.agent(misses=2)
    watching.run_of("a", "FAILED")
    watching.look()
    assert watching.states()["result:a"] == "up"
    clock.advance(4000)
    watching.run_of("a", "FAILED")
    watching.look()
    assert watching.states()["result:a"] == "failed"


def test_run_that_ended_without_output_is_told_after_its_hold(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.agent("silent", empty_output="allow")
    watching.agent("was-silent")
    job = watching.succeed('{"rows": 0, "emitted": 0}')
    watching.succeed('{"rows": 0, "emitted": 0, "empty_output": "allow"}', agent="silent")
    watching.succeed('{"rows": 0, "emitted": 0, "empty_output": "allow"}', agent="was-silent")
    watching.succeed('{"rows": 2, "emitted": 0}')
    watching.look()
    assert watching.states()["output:a"] == "up"
    clock.advance(301)
    watching.look()
    assert (watching.states()["output:a"], watching.flips("output:a")[-1]["run_id"]) == ("no_output", job)
    assert "output:silent" not in watching.states() and watching.states()["output:was-silent"] == "up"
    clock.advance(301)
    watching.look()
    assert watching.states()["output:a"] == "up"


def test_agent_whose_last_run_left_nothing_behind_stays_so_until_one_does(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.succeed('{"rows": 0, "emitted": 0}')
    clock.advance(100_000)
    watching.look()
    assert watching.states()["output:a"] == "no_output"
    watching.succeed('{"rows": 0, "emitted": 1}')
    watching.look()
    assert watching.states()["output:a"] == "up"


def test_runs_that_wait_for_nobody_are_told_and_so_is_the_fleet_that_is_gone(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.beat()
    job = watching.run_of("a")
    watching.look()
    clock.advance(61)
    watching.look()
    assert watching.states()["fleet:executor"] == "up"
    clock.advance(2)
    watching.look()
    flip = watching.flips("fleet:executor")[-1]
    assert (flip["new_state"], flip["run_id"]) == ("overdue", job) and flip["at"] - flip["due_at"] == seconds(1)
    clock.advance(900)
    watching.beat(progress=2)
    watching.look()
    assert (watching.states()["fleet:executor"], watching.states()["queue:a"]) == ("up", "overdue")
    watching.session.execute("UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = rowcall.now()")
    watching.look()
    assert watching.states()["queue:a"] == "up"


def test_fleet_is_gone_where_no_worker_ever_ran(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.run_of("a")
    watching.look()
    clock.advance(31)
    watching.look()
    assert watching.states()["fleet:executor"] == "overdue"


def test_observer_that_fails_is_a_finding_and_the_others_go_on(watching: Rounds, clock: Clock) -> None:
    declare(watching)
    watching.beat()
    watching.look()
    watching.session.execute("ALTER TABLE rowcall.schedules RENAME TO away")
    clock.advance(100)
    for _ in range(3):
        watching.look()
    assert (watching.states()[ONE], watching.states()["schedule:daily"]) == ("overdue", "new")
    failed = watching.session.execute(
        "SELECT state, message FROM rowcall.watch_states WHERE subject = 'observer:schedules'"
    ).fetchall()
    assert failed[0]["state"] == "failed" and "observer failed" in failed[0]["message"]
    watching.session.execute("ALTER TABLE rowcall.away RENAME TO schedules")
    watching.look()
    assert watching.states()["schedule:daily"] == "overdue"
