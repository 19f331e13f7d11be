"""Slots: clock changes, catching up, jitter, and times in payloads."""

from __future__ import annotations

import datetime as dt
from itertools import islice
from typing import Any

import pytest

from consumer.agents.schedule import Schedule
from consumer.errors import ConfigurationError
from consumer.settings import load
from producers.schedules.definitions import declared
from producers.schedules.slots import due, filled, starts_at


def schedule(cron: str = "0 * * * *", **fields: Any) -> Schedule:
    made = Schedule(name="s", cron=cron, agent="a", **fields)
    made.check()
    return made


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def coming(made: Schedule, start: str, count: int) -> list[str]:
    return [slot.strftime("%m-%d %H:%M") for slot in islice(made.after(at(start)), count)]


def test_time_inside_the_gap_fires_once_right_after_it() -> None:
    made = schedule("30 2 * * *", timezone="Europe/Berlin")
    assert coming(made, "2026-03-27T12:00", 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]


def test_time_that_comes_twice_fires_once() -> None:
    made = schedule("30 2 * * *", timezone="Europe/Berlin")
    assert coming(made, "2026-10-24T12:00", 2) == ["10-25 00:30", "10-26 01:30"]


def test_every_half_hour_follows_the_clock_through_both_changes() -> None:
    made = schedule("*/30 * * * *", timezone="Europe/Berlin")
    assert coming(made, "2026-03-29T00:15", 3) == ["03-29 00:30", "03-29 01:00", "03-29 01:30"]
    assert coming(made, "2026-10-25T00:15", 4) == ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]


def test_slot_on_time_fires() -> None:
    found = due(schedule(), at("2026-01-01T10:00"), at("2026-01-01T10:00"))
    assert (found.fire, found.missed, found.next) == ([at("2026-01-01T10:00")], [], at("2026-01-01T11:00"))


def test_nothing_is_due_before_its_time() -> None:
    found = due(schedule(), at("2026-01-01T10:00"), at("2026-01-01T09:59"))
    assert (found.fire, found.missed, found.next) == ([], [], at("2026-01-01T10:00"))


@pytest.mark.parametrize(
    ("fields", "fired"),
    [
        ({"catch_up": "none"}, []),
        ({"catch_up": "last"}, [12]),
        ({"catch_up": "all"}, [8, 9, 10, 11, 12]),
        ({"catch_up": "all", "catch_up_limit": 2}, [11, 12]),
        ({"catch_up": "all", "catch_up_window": dt.timedelta(hours=3)}, [10, 11, 12]),
        ({"catch_up": "last", "catch_up_window": dt.timedelta(minutes=10)}, []),
        ({"catch_up": "none", "grace": dt.timedelta(hours=2)}, [11, 12]),
    ],
    ids=str,
)
def test_slots_left_behind_are_caught_up_as_the_schedule_says(fields: dict[str, Any], fired: list[int]) -> None:
    found = due(schedule(**fields), at("2026-01-01T08:00"), at("2026-01-01T12:30"))
    assert [slot.hour for slot in found.fire] == fired
    assert sorted(slot.hour for slot in [*found.fire, *found.missed]) == [8, 9, 10, 11, 12]
    assert found.next == at("2026-01-01T13:00")


def test_the_last_one_is_the_one_on_time_where_there_is_one() -> None:
    found = due(schedule(catch_up="last"), at("2026-01-01T08:00"), at("2026-01-01T12:00:30"))
    assert [slot.hour for slot in found.fire] == [12]


def test_months_without_a_scheduler_are_dealt_with_in_parts_and_only_their_end_is_caught_up() -> None:
    made, now = schedule("* * * * *", catch_up="last"), at("2026-03-01T00:00:30")
    first, parts, fired, missed = at("2026-01-01T00:00"), 0, [], 0
    while first <= now:
        found = due(made, first, now)
        assert len(found.fire) + len(found.missed) <= 1000
        assert found.next is not None
        fired += found.fire
        missed += len(found.missed)
        first, parts = found.next, parts + 1
    assert fired == [at("2026-03-01T00:00")]
    assert (missed, parts) == (59 * 24 * 60, 85)


def test_jitter_is_the_same_whoever_computes_it_and_stays_in_bounds() -> None:
    made = schedule(jitter=dt.timedelta(minutes=10))
    starts = [starts_at(made, slot) - slot for slot in islice(made.after(at("2026-01-01T00:00")), 50)]
    assert starts == [starts_at(made, slot) - slot for slot in islice(made.after(at("2026-01-01T00:00")), 50)]
    assert len(set(starts)) == 50
    assert all(dt.timedelta(0) <= start < dt.timedelta(minutes=10) for start in starts)


def test_payload_tells_the_slot_in_the_schedules_own_zone() -> None:
    made = schedule(
        timezone="Asia/Tokyo", payload={"day": "{slot:%Y-%m-%d}", "n": 1, "list": ["{slot:%H}"], "x": "{a}"}
    )
    values = filled(made, at("2026-01-01T20:00"), made.payload)
    assert values == {"day": "2026-01-02", "n": 1, "list": ["05"], "x": "{a}"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cron": "61 * * * *"}, "s: cron '61 [*] [*] [*] [*]': bad minute"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": ""}, "cron ''"),
        ({"timezone": "Mars/Base"}, "'Mars/Base' is no time zone"),
        ({"timezone": "../etc/passwd"}, "is no time zone"),
        ({"agent": ""}, "either an agent or a topic"),
        ({"topic": "t"}, "either an agent or a topic"),
        ({"overlap": "maybe"}, "skip, queue_one, allow or cancel_previous"),
        ({"catch_up": "some"}, "none, last or all"),
        ({"grace": dt.timedelta(seconds=-1)}, "grace must not be negative"),
        ({"catch_up_limit": 0}, "must be 1 or more"),
        ({"payload": {"days": ["{slat:%Y-%m-%d}"]}}, "{slat:%Y-%m-%d} names no slot"),
        ({"dedupe_key": "shop:{slot-1w:%Y}"}, "{slot-1w:%Y} names no slot"),
    ],
    ids=str,
)
def test_a_schedule_that_could_not_fire_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Schedule(**({"name": "s", "cron": "0 * * * *", "agent": "a"} | fields)).check()


def test_a_module_of_schedules_that_is_not_found_is_told_as_the_workers_do() -> None:
    with pytest.raises(ConfigurationError, match="ROWCALL_AGENTS: module agents_of_nobody cannot be imported"):
        declared(load({"ROWCALL_AGENTS": "agents_of_nobody"}))
