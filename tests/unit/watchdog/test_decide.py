"""Decisions: pure, so that whatever may be observed can be tried."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumer.watchdog.decide import decide, next_moment
from consumer.watchdog.observation import BAD, Fault, Known, Observation

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
STATES = ("new", "up", "paused", *BAD)

moments = st.integers(-100, 100).map(lambda second: NOW + dt.timedelta(seconds=second))
faults = st.builds(Fault, st.sampled_from(BAD), moments, st.text(min_size=1, max_size=5))
observations = st.builds(
    Observation,
    st.sampled_from(["process:a@b", "run:a", "schedule:a"]),
    last_beat_at=st.none() | moments,
    due_at=st.none() | moments,
    faults=st.lists(faults, max_size=4).map(tuple),
    heard=st.booleans(),
    paused=st.booleans(),
)
knowns = st.builds(Known, st.just("process:a@b"), st.sampled_from(STATES), told=st.booleans(), paused=st.booleans())


@given(observations, knowns, moments)
def test_nothing_is_bad_before_the_moment_of_its_fault_and_the_flip_tells_that_moment(
    seen: Observation, known: Known, now: dt.datetime
) -> None:
    decision = decide(seen, replace(known, told=False), now)
    come = [fault for fault in seen.faults if fault.at <= now]
    assert (decision.new in BAD) == (bool(come) and not known.paused and not seen.paused)
    if decision.new in BAD:
        assert (decision.new, decision.due_at) in [(fault.state, fault.at) for fault in come]
        assert BAD.index(decision.new) == min(BAD.index(fault.state) for fault in come)


@given(observations, knowns, moments)
def test_a_quiet_time_makes_nothing_worse(seen: Observation, known: Known, now: dt.datetime) -> None:
    decision = decide(seen, known, now, quiet=True)
    assert decision.new not in BAD or decision.new == known.state


@given(observations, knowns, moments)
def test_a_decision_that_is_written_is_the_same_the_next_time(
    seen: Observation, known: Known, now: dt.datetime
) -> None:
    decision = decide(seen, known, now)
    written = replace(known, state=decision.new, told=decision.told)
    again = decide(seen, written, now)
    assert not again.changed and again.told == decision.told


@given(observations, knowns, moments)
def test_what_a_person_paused_is_paused_and_nobody_is_told(seen: Observation, known: Known, now: dt.datetime) -> None:
    decision = decide(seen, replace(known, paused=True), now)
    assert (decision.new, decision.told, decision.alert) == ("paused", False, False)


@given(observations, knowns, moments)
def test_an_end_is_told_to_those_who_were_told_of_the_beginning(
    seen: Observation, known: Known, now: dt.datetime
) -> None:
    decision = decide(seen, known, now)
    if decision.new == "up":
        assert decision.alert == known.told


@given(st.lists(observations, max_size=4), moments)
def test_no_fault_comes_before_the_next_moment(found: list[Observation], now: dt.datetime) -> None:
    moment = next_moment(found, now)
    ahead = [fault.at for seen in found for fault in seen.faults if fault.at > now]
    assert moment == (min(ahead) if ahead else None)


def test_a_late_run_is_told_and_a_late_beat_is_not() -> None:
    late = (Fault("late", NOW, "late"),)
    assert decide(Observation("run:a", faults=late), Known("run:a"), NOW).alert
    assert not decide(Observation("process:a@b", faults=late), Known("process:a@b"), NOW).alert


def test_what_was_never_heard_of_is_new_until_it_is_due() -> None:
    seen = Observation("agent:a", faults=(Fault("overdue", NOW, "never ran"),), heard=False)
    assert decide(seen, Known("agent:a"), NOW - dt.timedelta(seconds=1)).new == "new"
    assert decide(seen, Known("agent:a"), NOW).new == "overdue"


def test_fault_that_was_told_does_not_end_untold_by_way_of_being_late() -> None:
    late = Observation("connector:rows", faults=(Fault("late", NOW, "it restarts"),))
    known = Known("connector:rows", "failed", told=True)
    assert decide(late, known, NOW).new == "failed"
    assert decide(Observation("connector:rows"), known, NOW).alert
    assert decide(late, replace(known, state="up", told=False), NOW).new == "late"
