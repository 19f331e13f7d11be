"""What is expected of agents that are paused, come back, wait for a person, or fail over and over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from consumer.watchdog import control
from consumer.watchdog.store import Store
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, Told, rounds

ONE = "process:executor@one"


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, channels=[Told()], ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


def set_agent(watching: Rounds, state: str, until: str | None = None) -> None:
    watching.session.execute(
        "UPDATE rowcall.agents SET state = %s, state_reason = 'model_http_401',"
        " paused_until = rowcall.now() + %s::interval, updated_at = rowcall.now()", (state, until)
    )  # fmt: skip


def set_run(watching: Rounds, job: int, status: str) -> None:
    running = status == "RUNNING"
    watching.session.execute(
        "UPDATE rowcall.agent_jobs SET status = %s, owner = CASE WHEN %s THEN gen_random_uuid() END,"
        " lease_epoch = lease_epoch + 1, claimed_at = rowcall.now(), locked_until = CASE WHEN %s THEN rowcall.now() +"
        " interval '30 s' END, deadline = CASE WHEN %s THEN rowcall.now() + interval '900 s' END WHERE id = %s",
        (status, running, running, running, job),
    )


def test_overdue_agent_is_not_well_because_a_run_of_it_tries_again(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0, run_grace=600.0)
    clock.advance(4000)
    watching.look()
    job = watching.run_of("a", "RUNNING")
    for _ in range(3):
        watching.look()
        set_run(watching, job, "WAITING_RETRY")
        clock.advance(10)
        watching.look()
        set_run(watching, job, "RUNNING")
    watching.look()
    assert watching.moves("agent:a") == [("new", "overdue")]
    watching.end(job, "SUCCEEDED")
    watching.look()
    assert watching.moves("agent:a")[1:] == [("overdue", "up")]


def test_agent_that_a_person_resumes_has_its_whole_time_again(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0)
    watching.succeed()
    watching.look()
    set_agent(watching, "PAUSED")
    clock.advance(86400)
    watching.look()
    set_agent(watching, "ACTIVE")
    watching.look()
    assert watching.states()["agent:a"] == "up"
    clock.advance(3500)
    watching.look()
    assert watching.states()["agent:a"] == "up"
    clock.advance(200)
    watching.look()
    assert watching.states()["agent:a"] == "overdue"


def test_end_of_a_pause_of_the_subject_alone_gives_no_new_time(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0)
    watching.succeed()
    watching.look()
    control.pause(watching.session, "agent:a", until=None, actor="ann", reason=None)
    watching.look()
    clock.advance(86400)
    watching.look()
    control.resume(watching.session, "agent:a", actor="ann", reason=None)
    for _ in range(2):
        watching.look()
        assert watching.states()["agent:a"] == "overdue"


def test_agent_that_the_engine_paused_is_not_paused_by_a_person(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0)
    watching.run_of("a")
    set_agent(watching, "PAUSED", "5 minutes")
    clock.advance(4000)
    watching.look()
    assert "refused: model_http_401" in watching.flips("agent:a")[-1]["message"]
    assert (watching.states()["agent:a"], watching.states()["queue:a"]) == ("failed", "overdue")


def test_pause_of_what_is_gone_ends(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0)
    set_agent(watching, "PAUSED")
    watching.look()
    set_agent(watching, "RETIRED")
    watching.look()
    assert watching.states() == {"agent:a": "up"}
    clock.advance(7200)
    Store(watching.session, []).prune()
    assert watching.states() == {}


def test_review_that_nobody_decides_does_not_excuse_an_agent_for_ever(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=3600.0)
    clock.advance(3000)
    watching.run_of("a", "WAITING_REVIEW")
    clock.advance(3500)
    watching.look()
    assert watching.states()["agent:a"] == "new"
    clock.advance(200)
    watching.look()
    (flip,) = watching.flips("agent:a")
    assert flip["new_state"] == "overdue" and "waits for a person since" in flip["message"]


@pytest.mark.parametrize("options", [{"expect_every": 3660 * 86400.0, "misses": 1000}, {"expect_every": 1e300}])
def test_expectation_beyond_the_end_of_the_calendar_is_never_due(watching: Rounds, options: dict[str, Any]) -> None:
    watching.agent(**options)
    watching.beat()
    watching.look()
    assert watching.states()["agent:a"] == "new"


def test_options_that_nobody_can_read_blind_one_observer_alone(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=60.0, misses=None, start_grace="NaN")
    watching.beat()
    for _ in range(3):
        watching.look()
        clock.advance(100)
    assert watching.states()[ONE] == "overdue"
    (failed,) = watching.session.execute(
        "SELECT state FROM rowcall.watch_states WHERE subject = 'observer:agents'"
    ).fetchall()
    assert failed["state"] == "failed"


@pytest.mark.parametrize("promoted", [False, True])
def test_run_whose_agent_nobody_knows_is_told_in_a_lane_or_not(watching: Rounds, clock: Clock, promoted: bool) -> None:
    for name in ("a", "misspelt", "zz other"):
        watching.run_of(name)
    watching.agent("a")
    if promoted:
        watching.session.execute("SELECT rowcall.promote(10)")
    clock.advance(901)
    watching.look()
    found = {name: state for name, state in watching.states().items() if name.startswith("queue:")}
    assert found == {"queue:a": "overdue", "queue:misspelt": "overdue", "queue:zz other": "overdue"}
    assert "there is no agent of this name" in watching.flips("queue:misspelt")[-1]["message"]
    assert "worker has the agent's code" in watching.flips("queue:a")[-1]["message"]
