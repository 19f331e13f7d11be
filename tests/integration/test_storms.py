"""The storm breaker: runs of one table above a limit are held in order, told once, and let go slowly or by a person."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer import db
from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet

OPERATE = db.queries("operate_limits")


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent("a", storm=60)
    yield found
    found.close()


def storm(fleet: Fleet, count: int = 200) -> list[int]:
    """Jobs of one topic in a minute, promoted."""
    ids = fleet.add(count, source_topic="cdc.public.orders")
    fleet.promote()
    return ids


def test_runs_of_a_table_above_the_limit_are_held_and_other_tables_flow(fleet: Fleet) -> None:
    storm(fleet)
    others = fleet.add(5, source_topic="cdc.public.customers") + fleet.add(1)
    fleet.promote()
    assert [run["id"] for run in fleet.claim()] == others
    assert fleet.one("SELECT count(*) FROM rowcall.lanes WHERE hold IS NOT NULL") == 200
    assert fleet.one("SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'PENDING'") == 200


def test_as_many_as_the_limit_are_no_storm_and_a_new_minute_counts_anew(fleet: Fleet, clock: Clock) -> None:
    for _ in range(3):
        storm(fleet, 60)
        assert len(fleet.claim()) == 60
        clock.advance(60)
    assert fleet.rows("SELECT 1 FROM rowcall.holds") == []


def test_a_storm_is_told_once_and_goes_on_after_its_cool_down_at_half_its_rate_oldest_first(
    fleet: Fleet, clock: Clock
) -> None:
    ids = storm(fleet)
    assert fleet.claim() == []
    (alert,) = fleet.keep()
    assert (alert["event"], alert["reason"], alert["topic"]) == ("began", "storm", "cdc.public.orders")
    assert "the limit is 60" in alert["detail"]
    clock.advance(59)
    assert fleet.keep() == fleet.claim() == []
    clock.advance(21)
    fleet.keep()
    # 20 s at 30 a minute.
    first = fleet.claim()
    assert [run["id"] for run in first] == ids[:10]
    late = fleet.add(5, source_topic="cdc.public.orders")
    fleet.promote()
    assert fleet.claim() == [], "what comes later stands behind what is held"
    started = len(first)
    ended = []
    for _ in range(60):
        clock.advance(10)
        ended += [row["event"] for row in fleet.keep()]
        started += len(fleet.claim())
    assert (started, ended) == (len(ids) + len(late), ["ended"])
    assert fleet.rows("SELECT 1 FROM rowcall.lanes WHERE hold IS NOT NULL") == []
    actions = [row["action"] for row in fleet.rows("SELECT action FROM rowcall.audit ORDER BY id")]
    assert actions == ["hold", "release"]


def test_a_person_lets_a_storm_go_at_once(fleet: Fleet) -> None:
    ids = storm(fleet)
    assert fleet.claim() == []
    assert [row["lanes_held"] for row in fleet.rows(OPERATE["holds"], {"reason": "storm"})] == [200]
    assert len(fleet.rows(OPERATE["end_storm"], {"agent": "a", "topic": None})) == 1
    fleet.keep()
    assert [run["id"] for run in fleet.claim(500)] == ids


def test_a_held_lane_whose_head_is_cancelled_is_looked_at_again(fleet: Fleet) -> None:
    (held,) = fleet.add(1, key_hash=7, source_topic="cdc.public.orders")
    (other,) = fleet.add(1, key_hash=7, source_topic="cdc.public.customers")
    storm(fleet)
    assert fleet.claim() == []
    fleet.rows(
        "SELECT rowcall.settle(ARRAY[%s::bigint], ARRAY[NULL::bigint], ARRAY['CANCELLED'], ARRAY[NULL], ARRAY['c'], "
        "ARRAY['c'], ARRAY[NULL], ARRAY[NULL::float8], ARRAY[0])", held,
    )  # fmt: skip
    assert [run["id"] for run in fleet.claim()] == [other]


def test_without_a_limit_nothing_is_counted(fleet: Fleet) -> None:
    fleet.agent("a")
    storm(fleet)
    assert len(fleet.claim(500)) == 200
    assert fleet.rows("SELECT 1 FROM rowcall.storm_counts") == []


def test_mending_lanes_lets_no_held_lane_go(fleet: Fleet) -> None:
    storm(fleet)
    assert fleet.claim() == []
    assert fleet.one("SELECT rowcall.mend_lanes(500)") == 0
    assert fleet.claim() == []


@pytest.mark.parametrize("how", ["version", "suspect"])
def test_a_storm_lets_suspects_and_pinned_runs_go_with_those_as_old_as_they(
    fleet: Fleet, clock: Clock, how: str
) -> None:
    early = fleet.add(1, source_topic="cdc.public.orders")
    fleet.promote()
    clock.advance(1)
    storm(fleet, 15)
    clock.advance(1)
    late = fleet.add(2, source_topic="cdc.public.orders")
    fleet.rows("DELETE FROM rowcall.holds")
    fleet.promote()
    runs = {run["id"]: run for run in fleet.claim()}
    aside = [runs[early[0]], *(runs[job_id] for job_id in late)]
    others = [run for run in runs.values() if run not in aside]
    fleet.rows("UPDATE rowcall.agent_jobs SET agent_version = 1, losses = %s WHERE id = ANY (%s)",
               2 if how == "suspect" else 0, [run["id"] for run in aside])  # fmt: skip
    fleet.move(aside, *(("PENDING",) if how == "suspect" else ("PARKED",)), reason="version")
    fleet.move(others, "PENDING")
    storm(fleet, 61)
    assert fleet.claim() == []
    clock.advance(60)
    assert fleet.keep()[0]["event"] == "began" and fleet.claim() == [], "the cool-down is over, and nothing is let go"
    clock.advance(4)
    fleet.keep()
    # 2 s at 30 a minute let one lane go, and with it what has waited as long.
    gone = [run["id"] for run in fleet.claim()]
    assert early[0] in gone and not set(late) & set(gone), gone
    for _ in range(60):
        clock.advance(10)
        fleet.keep()
        gone += [run["id"] for run in fleet.claim()]
    assert set(late) <= set(gone)
