"""Queues as triggers, from real runs: one event an episode, level and turn, under IDs that stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from consumer import db
from consumer.kafka import Brokers
from consumer.settings import load
from producers.drift import store
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.queries import Queries
from tests.fixtures.postgres import Clock, create, drop

DEPTH = {"name": "depth", "watch": "backlog", "every": 1, "warning": 3, "critical": 6, "confirm": 1, "cooldown": 0}
AGE = {"name": "oldest", "watch": "age", "every": 1, "warning": 60, "critical": 600, "confirm": 1, "cooldown": 0}
LOOK = "SELECT id::text AS id, topic, key, event_type, payload FROM rowcall.drift_events ORDER BY number"


class Desk:
    """A database with runs, and monitors that look at it at a time of the test's."""

    def __init__(self, url: str, *fields: dict[str, Any]) -> None:
        self.url, self.now = url, 1_000_000.0
        self.session = db.connect(url, name="test")
        self.session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('shop', 1)")
        self.settings = load({"DATABASE_URL": url})
        self.monitors = [Monitor.of(**item) for item in fields]
        self.begin()

    def begin(self) -> None:
        """As a fresh process does."""
        names = [item.name for item in self.monitors]
        self.engine = Engine(self.monitors, store.loader(self.session), store.known(self.session, names))
        self.queries = Queries(self.settings, self.session, Brokers(self.settings))

    def jobs(self, count: int, agent: str = "shop", *, delay: int = 0) -> None:
        self.session.execute(
            "INSERT INTO rowcall.agent_jobs (job_type, run_after)"
            " SELECT %s, rowcall.now() + make_interval(secs => %s) FROM generate_series(1, %s)",
            (agent, delay, count),
        )

    def look(self, *, save: bool = True) -> list[tuple[str, dict[str, Any]]]:
        """One look; the events so far: ID and record."""
        self.now += 1
        for monitor in self.monitors:
            rows = self.queries.due(monitor, self.now) or []
            self.engine.feed([monitor], [Sample(row, self.now, self.now) for row in rows])
            if save:
                store.save(self.session, self.engine, Topics(), self.now, polled={monitor.source: self.now})
        return [(row["id"], orjson.loads(row["payload"])) for row in self.session.execute(LOOK)]

    def cancel(self, count: int) -> None:
        self.session.execute(
            "UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = rowcall.now() WHERE id IN"
            " (SELECT id FROM rowcall.agent_jobs WHERE status = 'PENDING' ORDER BY id LIMIT %s)",
            (count,),
        )


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    made = Desk(database, DEPTH)
    yield made
    made.session.close()


def turns(found: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    return [(record["level"], record["turn"]) for _, record in found]


def test_queue_depth_tells_once_an_episode_level_and_turn(desk: Desk) -> None:
    desk.jobs(2)
    assert desk.look() == []
    desk.jobs(2)
    assert turns(desk.look()) == turns(desk.look()) == [("warning", "raised")]
    desk.jobs(4)
    assert turns(desk.look()) == turns(desk.look()) == [("warning", "raised"), ("critical", "raised")]
    desk.cancel(8)
    found = desk.look()
    assert turns(found)[2:] == [("critical", "recovered"), ("warning", "recovered")]
    assert {record["episode"] for _, record in found} == {found[0][1]["episode"]}
    first = found[0][1]
    assert (first["queue"], first["measure"], first["value"], first["threshold"]) == ("agent:shop", "jobs", 4.0, 3.0)
    desk.jobs(4)
    again = desk.look()
    assert turns(again)[4:] == [("warning", "raised")]
    assert again[4][1]["episode"] != first["episode"]
    assert len({number for number, _ in again}) == 5


def test_event_of_a_queue_has_the_same_id_when_it_is_decided_again(desk: Desk, server: str) -> None:
    desk.jobs(8)
    desk.look(save=False)  # a process that dies here has written nothing
    desk.begin()
    found = [number for number, _ in desk.look()]
    other_url = create(server)
    other = Desk(other_url, DEPTH)
    try:
        other.jobs(7)
        assert [number for number, _ in other.look()] == found
    finally:
        other.session.close()
        drop(other_url)


def test_run_that_is_delayed_on_purpose_is_no_backlog(desk: Desk) -> None:
    desk.jobs(9, delay=3600)
    assert desk.look() == []


def test_queue_of_an_agent_nobody_knows_recovers_too(desk: Desk) -> None:
    desk.jobs(4, "gone")
    assert turns(desk.look()) == [("warning", "raised")]
    desk.cancel(4)
    assert turns(desk.look()) == [("warning", "raised"), ("warning", "recovered")]


def test_age_of_the_oldest_run_is_told_beside_the_depth(database: str, clock: Clock) -> None:
    desk = Desk(database, DEPTH, AGE)
    try:
        desk.jobs(1, delay=30)
        clock.advance(80)
        assert desk.look() == []
        clock.advance(20)
        ((_, record),) = desk.look()
        assert (record["measure"], record["level"], record["value"]) == ("age", "warning", 70.0)
        desk.jobs(3)
        ((_, depth),) = desk.look()[1:]
        assert (depth["measure"], depth["value"], depth["oldest_seconds"]) == ("jobs", 4.0, 70.0)
        clock.advance(600)
        assert ("critical", "raised") in turns(desk.look())
        desk.cancel(4)
        recovered = [record["measure"] for _, record in desk.look() if record["turn"] == "recovered"]
        assert sorted(recovered) == ["age", "age", "jobs"]
    finally:
        desk.session.close()
