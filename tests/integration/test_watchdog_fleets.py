"""Intake and drift that are gone are told, once each, however many processes there were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, rounds

NEEDED = {
    "intake": "INSERT INTO rowcall.agents (name, version, topics) VALUES ('a', 1, '{cdc.public.orders}')",
    "drift": "INSERT INTO rowcall.drift_monitors (name, source) VALUES ('a', 'orders')",
}
OVER = {
    "intake": "UPDATE rowcall.agents SET state = 'RETIRED'",
    "drift": "UPDATE rowcall.drift_monitors SET retired_at = rowcall.now()",
}
FLEETS = pytest.mark.parametrize("role", ["intake", "drift"])


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


@FLEETS
def test_a_fleet_that_never_came_is_overdue_after_the_grace(watching: Rounds, clock: Clock, role: str) -> None:
    watching.session.execute(NEEDED[role].encode())
    watching.look()
    clock.advance(29)
    watching.look()
    assert watching.states()[f"fleet:{role}"] != "overdue"
    clock.advance(2)
    watching.look()
    assert watching.states()[f"fleet:{role}"] == "overdue"
    watching.beat(role)
    watching.look()
    assert watching.states()[f"fleet:{role}"] == "up"


@FLEETS
def test_a_fleet_whose_last_process_died_is_overdue(watching: Rounds, clock: Clock, role: str) -> None:
    watching.session.execute(NEEDED[role].encode())
    watching.beat(role)
    watching.look()
    clock.advance(61)
    watching.look()
    assert watching.states()[f"fleet:{role}"] == "up"
    clock.advance(2)
    watching.look()
    flip = watching.flips(f"fleet:{role}")[-1]
    assert (
        flip["new_state"] == "overdue" and f"rowcall {'worker' if role == 'intake' else 'drift run'}" in flip["message"]
    )


@FLEETS
def test_nothing_is_missed_that_nothing_needs(watching: Rounds, clock: Clock, role: str) -> None:
    watching.agent()
    watching.look()
    clock.advance(10_000)
    watching.look()
    assert f"fleet:{role}" not in watching.states()
    watching.session.execute(NEEDED[role].encode().replace(b"'a'", b"'b'"))
    clock.advance(100)
    watching.look()
    assert watching.states()[f"fleet:{role}"] == "overdue"
    watching.session.execute(OVER[role].encode())
    watching.look()
    assert watching.states()[f"fleet:{role}"] == "up"


def test_a_clean_stop_of_everything_is_one_finding_a_fleet(watching: Rounds, clock: Clock) -> None:
    for role, statement in NEEDED.items():
        watching.session.execute(statement.encode())
        for number in range(5):
            watching.beat(role, str(number))
    watching.look()
    watching.session.execute("UPDATE rowcall.heartbeats SET state = 'STOPPED', expected_next = NULL")
    for _ in range(20):
        clock.advance(60)
        watching.look()
    told = [row["subject"] for row in watching.flips() if row["new_state"] not in ("new", "up")]
    assert sorted(told) == ["fleet:drift", "fleet:intake"]
