"""What wakes an agent, on real CDC: watched columns, old and new values, changes that come together, chains of runs."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from consumer.records.chain import agent_of
from tests.fixtures.process import Process, eventually
from tests.fixtures.world import World

AGENTS = {"ROWCALL_AGENTS": "tests.agents.waking"}


@pytest.fixture(scope="module")
def world(bare_world: World) -> World:
    """Both connectors run, and a worker with a low limit of depth."""
    bare_world.command("agents", "activate", **AGENTS)
    bare_world.apply("rows")
    bare_world.apply("outbox")
    bare_world.worker(**AGENTS, ROWCALL_MAX_DEPTH="2")
    return bare_world


def change(world: World, number: int, *settings: str) -> None:
    """Change a thing several times, each in a transaction of its own."""
    for setting in settings:
        world.do(f"UPDATE public.things SET {setting} WHERE id = {number}")


def seen(world: World, agent: str, runs: int) -> list[Any]:
    """What the agent's runs saw, (before, after) each, once there are so many and all have ended well."""
    eventually(f"{runs} runs of {agent}", lambda: len(world.jobs(agent)) >= runs)
    results = [json.loads(job["result_text"]) for job in world.jobs(agent, None)]
    return [(result["before"], result["after"]) for result in results]


def test_a_row_changed_many_times_in_the_window_is_one_run_with_the_latest_and_all_changes_on_record(
    world: World,
) -> None:
    world.do("INSERT INTO public.things (id, kind, name) VALUES (1, 'gather', 'zero'), (2, 'gather', 'other')")
    change(world, 1, *(f"name = '{name}'" for name in ("one", "two", "three", "four", "five")))
    change(world, 2, "name = 'else'")
    eventually("both rows have run", lambda: len(world.jobs("gatherer")) >= 2)
    runs = {job["key_text"]: job for job in world.jobs("gatherer", None)}
    assert {key: json.loads(job["result_text"]) for key, job in runs.items()} == {
        "1": {"before": "zero", "after": "five", "merged": 4}, "2": {"before": "other", "after": "else", "merged": 0},
    }  # fmt: skip
    assert len(world.jobs("gatherer", None)) == 2
    made = [found for _, found in world.changes(world.things) if found.row["id"] == 1 and found.before]
    shown = json.loads(world.command("jobs", "show", str(runs["1"]["id"]), "--json"))
    assert shown["job"]["merged_count"] == 4
    recorded = [item["event_id"] for item in shown["coalesced"]]
    assert [runs["1"]["event_id"], *recorded] == [found.id for found in made]
    assert len(made) == 5


def test_an_agent_that_watches_a_column_sleeps_through_changes_of_others(world: World) -> None:
    world.do("INSERT INTO public.things (id, kind, name) VALUES (10, 'noted', NULL)")
    change(world, 10, "touched = 1", "name = 'a'", "name = 'a', touched = 2", "text = 'z'", "name = 'b'")
    world.do("DELETE FROM public.things WHERE id = 10")
    # All of one row is one partition: when the deletion has arrived, whatever came before has.
    assert seen(world, "noted", 4) == [(None, None), (None, "a"), ("a", "b"), ("b", None)]


def test_triggers_compare_the_row_before_with_the_row_after(world: World) -> None:
    world.do("INSERT INTO public.things (id, kind, whole, name, text) VALUES (20, 'measured', 5, 'x', 'open')")
    change(world, 20, "whole = 3", "whole = NULL", "whole = 4", "whole = 9", "name = 'y'", "touched = 1",
           "text = 'closed'", "text = 'shut'", "name = NULL, whole = 10")  # fmt: skip
    assert seen(world, "changer", 3) == [(None, "x"), ("x", "y"), ("y", None)]
    assert seen(world, "riser", 2) == [(4, 9), (9, 10)]
    assert seen(world, "leaver", 1) == [("open", "closed")]


def test_a_chain_from_a_schedule_by_event_row_and_event_ends_at_its_depth_and_says_why(world: World) -> None:
    argv = [sys.executable, "-m", "consumer.cli", "schedule", "run"]
    scheduler = Process(argv, world.environment | AGENTS, world.folder / "scheduler.log")
    try:
        eventually("both schedules have fired", lambda: world.jobs("ticker", None) and world.jobs("hearer", None))
        eventually("a tick went all the way", lambda: world.jobs("last"))
        eventually("a run of a schedule did not", lambda: world.jobs("last", "PARKED"))
    finally:
        assert scheduler.stop() == 0
    parked, ran = world.jobs("last", "PARKED")[0], world.jobs("last")[0]
    assert (parked["depth"], parked["reason"], parked["error_code"]) == (3, "causation_loop", "causation_loop")
    assert [agent_of(entry) for entry in parked["chain"]] == ["ticker", "hearer", "rower"]
    assert parked["root_event"].startswith("sc1:runs:")
    assert "3 runs deep, ROWCALL_MAX_DEPTH is 2" in parked["last_error"]
    # A tick is an event of its own, no run: the same agents are one run less deep.
    assert (ran["depth"], [agent_of(entry) for entry in ran["chain"]]) == (2, ["hearer", "rower"])
    assert {job["depth"] for job in world.jobs("last")} == {2}
    assert {job["depth"] for job in world.jobs("last", "PARKED")} == {3}
    assert world.dead_letters() == []
