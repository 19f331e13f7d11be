"""An agent that a person paused is paused; one that the machine paused has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from consumer import db
from consumer.operate import agents
from consumer.operate.act import Act
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, rounds

PAUSE = db.queries("claim")["pause_agent"]
UNPAUSE = db.queries("claim")["unpause_agents"]


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


def refuse(watching: Rounds, reason: str = "401: the key is refused") -> None:
    """What a worker does whose model calls are all refused."""
    watching.session.execute(PAUSE, {"agent": "a", "reason": reason, "seconds": 60})


def unpause(watching: Rounds) -> None:
    watching.session.execute(UNPAUSE, {"agents": ["a"]})


def by_a_person(watching: Rounds) -> None:
    with db.connect(watching.database, name="operator", by_key=True) as session:
        agents.pause(session, "a", Act("ann", "move"))


@pytest.mark.parametrize("options", [{}, {"expect_every": 3600.0}])
def test_an_agent_that_the_machine_paused_has_failed_with_the_reason(
    watching: Rounds, clock: Clock, options: dict[str, Any]
) -> None:
    watching.agent(**options)
    watching.look()
    refuse(watching)
    watching.look()
    flip = watching.flips("agent:a")[-1]
    assert flip["new_state"] == "failed" and "the key is refused" in flip["message"]
    assert "rowcall agents resume a" in flip["message"]


def test_a_pause_that_comes_back_after_each_trial_is_one_failure_until_a_run_succeeds(
    watching: Rounds, clock: Clock
) -> None:
    watching.agent()
    for _ in range(3):
        refuse(watching)
        watching.look()
        clock.advance(61)
        watching.look()
        unpause(watching)
        watching.look()
    assert watching.moves("agent:a") == [("new", "failed")]
    watching.succeed()
    watching.look()
    assert watching.moves("agent:a") == [("new", "failed"), ("failed", "up")]


def test_an_agent_that_is_resumed_and_has_no_work_is_well_after_a_while(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    refuse(watching)
    watching.look()
    clock.advance(61)
    unpause(watching)
    clock.advance(299)
    watching.look()
    assert watching.states()["agent:a"] == "failed"
    clock.advance(2)
    watching.look()
    assert watching.states()["agent:a"] == "up"


def test_an_overdue_queue_does_not_recover_because_the_machine_paused_its_agent(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.run_of()
    watching.look()
    clock.advance(901)
    watching.look()
    assert (watching.states()["queue:a"], watching.states()["fleet:executor"]) == ("overdue", "overdue")
    refuse(watching)
    watching.look()
    assert (watching.states()["queue:a"], watching.states()["fleet:executor"]) == ("overdue", "overdue")


def test_a_queue_behind_a_refused_key_becomes_overdue_and_says_why(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    watching.run_of()
    clock.advance(901)
    refuse(watching)
    watching.look()
    flip = watching.flips("queue:a")[-1]
    assert flip["new_state"] == "overdue" and "the key is refused" in flip["message"]


def test_what_a_person_paused_is_paused_with_its_queue_and_no_fleet_is_missed(watching: Rounds, clock: Clock) -> None:
    watching.agent(expect_every=60.0)
    watching.run_of()
    watching.look()
    clock.advance(901)
    watching.look()
    by_a_person(watching)
    watching.look()
    states = watching.states()
    assert (states["agent:a"], states["queue:a"], states["fleet:executor"]) == ("paused", "paused", "up")
    refuse(watching)
    watching.look()
    assert watching.states()["agent:a"] == "paused"


def test_an_agent_that_a_person_paused_after_the_machine_did_is_paused_until_resumed(
    watching: Rounds, clock: Clock
) -> None:
    watching.agent()
    refuse(watching)
    watching.look()
    by_a_person(watching)
    watching.look()
    assert watching.moves("agent:a") == [("new", "failed"), ("failed", "paused")]
    with db.connect(watching.database, name="operator", by_key=True) as session:
        agents.resume(session, "a", Act("ann", None))
    watching.look()
    assert watching.states()["agent:a"] == "up"
