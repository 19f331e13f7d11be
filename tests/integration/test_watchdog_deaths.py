"""Processes that die while others start, and what is left of them when beats are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer.watchdog.store import Store
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, Told, rounds


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, channels=[Told()], ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


def overdue(watching: Rounds) -> list[str]:
    watching.look()
    return sorted(name for name, state in watching.states().items() if state == "overdue")


def test_one_start_makes_up_for_one_death_alone(watching: Rounds, clock: Clock) -> None:
    for name in "abc":
        watching.beat(instance=name)
    watching.beat(role="intake", instance="other")
    clock.advance(5)
    watching.beat(instance="d")
    clock.advance(60)
    watching.beat(instance="d", progress=2)
    watching.beat(role="intake", instance="other", progress=2)
    assert len(overdue(watching)) == 2
    for name in "ef":
        watching.beat(instance=name)
    assert overdue(watching) == []


def test_replacement_that_dies_itself_is_told_and_a_live_process_is_nobodys_replacement(
    watching: Rounds, clock: Clock
) -> None:
    watching.beat(instance="lives")
    watching.beat(instance="a")
    clock.advance(5)
    watching.beat(instance="b")
    clock.advance(60)
    watching.beat(instance="lives", progress=2)
    assert overdue(watching) == ["process:executor@b"]


def test_dead_process_stays_replaced_when_the_beats_of_its_replacement_are_dropped(
    watching: Rounds, clock: Clock
) -> None:
    watching.beat(instance="a")
    watching.look()
    clock.advance(5)
    watching.beat(instance="b")
    clock.advance(60)
    watching.session.execute(
        "UPDATE rowcall.heartbeats SET state = 'STOPPED', at = rowcall.now(), expected_next = NULL WHERE instance = 'b'"
    )
    assert overdue(watching) == []
    clock.advance(3700)
    Store(watching.session, []).prune()
    assert overdue(watching) == []
    clock.advance(7 * 86400)
    Store(watching.session, []).prune()
    watching.look()
    assert watching.session.execute("SELECT FROM rowcall.heartbeats").fetchall() == []
