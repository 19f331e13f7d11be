"""Priorities: lanes and agents of a higher one first, nobody starved, and a claim whose cost is not the backlog's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.limiting import Fleet


@pytest.fixture
def fleet(database: str) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent("a")
    found.agent("b")
    yield found
    found.close()


def drained(fleet: Fleet, *agents: str) -> list[int]:
    """IDs in the order in which they are claimed one by one, each ended at once."""
    order = []
    while runs := fleet.claim(1, *agents):
        fleet.move(runs)
        order.append(runs[0]["id"])
    return order


def test_lanes_of_a_higher_priority_are_claimed_first_and_equal_ones_by_age(fleet: Fleet) -> None:
    low = fleet.add(2)
    high = fleet.add(2, priority=10)
    middle = fleet.add(2, priority=5)
    fleet.promote()
    # One claim in five goes by age; of many, most do not.
    first = [run["id"] for run in fleet.claim(6)]
    assert sorted(first) == sorted(low + high + middle)
    counts = dict.fromkeys((*low, *high, *middle), 0)
    for _ in range(60):
        fleet.rows("UPDATE rowcall.agent_jobs SET status = 'PENDING', owner = NULL, locked_until = NULL, "
                   "deadline = NULL, lane_seq = id WHERE status = 'RUNNING'")  # fmt: skip
        fleet.rows("UPDATE rowcall.lanes SET ready_at = now() - make_interval(secs => 1000 - head)")
        for run in fleet.claim(2):
            counts[run["id"]] += 1
    assert counts[high[0]] == counts[high[1]] > 30
    assert counts[low[0]] == counts[low[1]] > 1, "the oldest starve"
    assert counts[middle[0]] == 0


def test_a_job_behind_another_of_its_key_waits_whatever_its_priority(fleet: Fleet) -> None:
    first = fleet.add(1, key_hash=7)
    urgent = fleet.add(1, key_hash=7, priority=100)
    other = fleet.add(1, key_hash=8, priority=50)
    fleet.promote()
    order = drained(fleet)
    assert order.index(first[0]) < order.index(urgent[0])
    assert sorted(order) == sorted(first + urgent + other)


def test_agents_of_a_higher_priority_are_served_first_but_not_alone(fleet: Fleet) -> None:
    fleet.agent("b", priority=10)
    fleet.add(300, agent="a")
    fleet.add(300, agent="b")
    fleet.promote()
    served = [fleet.claim(1, "a", "b")[0]["job_type"] for _ in range(150)]
    assert served.count("b") > 100
    assert served.count("a") > 3


def test_a_priority_out_of_range_is_refused_by_the_database(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="priority_has_a_range"):
        fleet.add(1, priority=101)


def test_enqueue_takes_a_priority(fleet: Fleet) -> None:
    job_id = fleet.one("SELECT rowcall.enqueue('a', priority => 7)")
    assert fleet.one("SELECT priority FROM rowcall.agent_jobs WHERE id = %s", job_id) == 7


@pytest.mark.parametrize("priorities", [1, 20])
def test_a_claim_reads_as_many_lanes_as_it_takes_whatever_waits(fleet: Fleet, priorities: int) -> None:
    """The plan of the claim's own statements at 100,000 waiting lanes: by index, in its order, without a sort."""
    fleet.rows(
        "INSERT INTO rowcall.agent_jobs (job_type, key_hash, priority) "
        "SELECT CASE WHEN n %% 2 = 0 THEN 'a' ELSE 'b' END, n, n / 2 %% %s FROM generate_series(1, 100000) AS n",
        priorities,
    )
    for _ in range(52):
        fleet.promote(2000)
    fleet.rows("ANALYZE rowcall.agent_jobs, rowcall.lanes")
    plan = fleet.rows(
        "EXPLAIN (ANALYZE, FORMAT json) SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head "
        "WHERE l.agent = 'a' AND l.priority = 0 AND l.hold IS NULL AND l.ready_at <= rowcall.now() "
        "AND j.status IN ('PENDING', 'WAITING_RETRY') ORDER BY l.ready_at, l.head LIMIT 10 "
        "FOR UPDATE OF l, j SKIP LOCKED"
    )
    text = json.dumps(plan[0]["QUERY PLAN"])
    assert "Sort" not in text and "lanes_ready" in text
    fleet.rows("SELECT pg_stat_reset()")
    before = fetched(fleet)
    for _ in range(10):
        assert len(fleet.claim(10)) == 10
    # Lanes, jobs and the levels' heads: some multiples of the hundred that were claimed, nothing like 50,000.
    assert fetched(fleet) - before < 100 * (10 + priorities)


def fetched(fleet: Fleet) -> int:
    """Rows that this session's statements have read through indexes or sequentially."""
    fleet.rows("SELECT pg_stat_force_next_flush()")
    return int(
        fleet.one(
            "SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint FROM pg_stat_user_tables "
            "WHERE relname IN ('lanes', 'agent_jobs')"
        )
    )
