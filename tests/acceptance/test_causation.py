"""The rules of causation on real CDC: what agents set off by rows, events and queued runs comes to an end by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.agents.loops import GRAINS
from tests.fixtures.process import Process, eventually
from tests.fixtures.world import World

AGENTS = {"ROWCALL_AGENTS": "tests.agents.loops"}
LIMIT = 30


@pytest.fixture(scope="module")
def world(bare_world: World) -> World:
    """Both connectors run, and agents that set each other off are active."""
    bare_world.command("agents", "activate", **AGENTS)
    bare_world.apply("rows")
    bare_world.apply("outbox")
    return bare_world


@pytest.fixture(scope="module")
def worker(world: World) -> Process:
    """One worker for all tests here."""
    return world.worker(**AGENTS, ROWCALL_ROOT_RUNS_PER_MINUTE=str(LIMIT))


def loops(world: World, agent: str) -> list[dict[str, Any]]:
    """The agent's causation loops."""
    return [job for job in world.jobs(agent, "PARKED") if job["reason"] == "causation_loop"]


def ended(world: World, agent: str, runs: int) -> dict[str, Any]:
    """Wait for the one loop of an agent that ran this often before; what else it has is nothing."""
    (loop,) = eventually(f"{agent} is parked", lambda: loops(world, agent))
    assert len(world.jobs(agent)) == runs == len(world.jobs(agent, None)) - 1
    return loop


def alerted(worker: Process, agent: str) -> dict[str, Any]:
    """The alert of an agent's loop."""
    return eventually(
        f"alert of {agent}", lambda: [line for line in worker.records("causation_loop") if line["agent"] == agent]
    )[0]


def test_two_agents_that_write_each_others_tables_stop_where_the_first_would_be_woken_again(
    world: World, worker: Process
) -> None:
    world.add("ping", [1])
    loop = ended(world, "ping", 1)
    (first,), (second,) = world.jobs("ping"), world.jobs("pong")
    assert (loop["root_event"], loop["parent_job"], loop["depth"]) == (first["event_id"], second["id"], 2)
    assert [entry.partition("@")[0] for entry in loop["chain"]] == ["ping", "pong"]
    assert alerted(worker, "ping")["job_id"] == loop["id"]
    # A person may let it go on: it runs, and stops at the next turn.
    world.command("jobs", "retry", "--root", first["event_id"])
    (again,) = eventually("the next turn", lambda: loops(world, "pong"))
    assert (len(world.jobs("ping")), again["depth"]) == (2, 3)
    world.command("jobs", "cancel", "--root", first["event_id"])
    assert loops(world, "pong") == []


def test_an_agent_that_writes_its_own_row_is_not_woken_by_it(world: World, worker: Process) -> None:
    world.add("self", [100])
    world.has("selfish", [100])
    eventually("the write has passed", lambda: [
        change for _, change in world.changes(world.things) if change.row["id"] == 100 and change.before
    ])  # fmt: skip
    counted = 'rowcall_events_total{agent="selfish",outcome="own_write"} 1.0'
    eventually("it is counted", lambda: counted in worker.get("/metrics"))
    assert len(world.jobs("selfish", None)) == 1


def test_two_agents_that_answer_each_others_events_stop(world: World, worker: Process) -> None:
    world.add("call", [200])
    loop = ended(world, "caller", 1)
    assert [entry.partition("@")[0] for entry in loop["chain"]] == ["starter", "caller", "answerer"]
    assert loop["root_event"] == world.jobs("starter")[0]["event_id"]
    alerted(worker, "caller")


def test_an_agent_that_queues_itself_in_its_own_transaction_stops(world: World, worker: Process) -> None:
    world.add("ask", [300])
    loop = ended(world, "asker", 2)
    assert (loop["depth"], loop["root_event"]) == (2, world.jobs("asker")[0]["event_id"])
    alerted(worker, "asker")


def test_a_storm_of_one_root_is_parked_beyond_its_runs_a_minute(world: World, worker: Process) -> None:
    world.add("storm", [1000])
    eventually("all are there", lambda: len(world.jobs("grain", None)) == GRAINS)
    eventually("the others have run", lambda: len(world.jobs("grain")) == LIMIT)
    assert Counter(job["status"] for job in world.jobs("grain", None)) == {"SUCCEEDED": LIMIT, "PARKED": GRAINS - LIMIT}
    assert alerted(worker, "grain")["root_event"] == world.jobs("spreader")[0]["event_id"]
    assert world.dead_letters() == []
