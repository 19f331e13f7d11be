"""What becomes of drift's records: new baselines by a person, retired monitors, what is kept for how long."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from consumer import db
from consumer.cli import main
from consumer.errors import OperatorError
from producers.drift import control, store
from producers.drift.blind import Blind
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.upkeep import Upkeep
from tests.fixtures.postgres import Clock

MONITOR = Monitor.of(name="m", topic="t", value="v", segment="s", learn=50, cooldown=0)
OTHER = Monitor.of(name="other", topic="u", value="v", learn=50)


class Desk:
    """One process's monitors on a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = db.connect(url, name="test")
        self.at = 1000.0
        self.begin(MONITOR)

    def begin(self, *monitors: Monitor) -> None:
        self.monitors = list(monitors)
        names = [item.name for item in monitors]
        self.engine = Engine(monitors, store.loader(self.session), store.known(self.session, names))
        self.upkeep = Upkeep(self.session, monitors, 30)

    def feed(self, seed: int, count: int, middle: float = 0.0, segments: int = 2) -> None:
        chance = random.Random(seed)
        samples = []
        for number in range(count):
            self.at += 1
            samples.append(Sample({"v": chance.gauss(middle, 1), "s": f"s{number % segments}"}, self.at, self.at))
        self.engine.feed(self.monitors, samples)
        store.save(self.session, self.engine, Topics(), self.at)

    def reset(self) -> int:
        """Let the process carry out what is asked for; how many parts that took."""
        parts = 0
        while what := self.upkeep.reset(self.engine, [item.name for item in self.monitors], self.at):
            store.save(self.session, self.engine, Topics(), self.at, reset=what)
            parts += 1
        return parts

    def states(self) -> dict[str, str]:
        query = "SELECT segment, status FROM rowcall.drift_state ORDER BY segment"
        return {row["segment"]: row["status"] for row in self.session.execute(query)}

    def count(self, table: str) -> int:
        row = self.session.execute(f"SELECT count(*) AS n FROM rowcall.{table}".encode()).fetchone()
        assert row is not None
        return int(row["n"])

    def told(self) -> list[dict[str, Any]]:
        return [orjson.loads(row["payload"]) for row in
                self.session.execute("SELECT payload FROM rowcall.drift_events ORDER BY number")]  # fmt: skip

    def command(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, ["drift", *arguments], env={"DATABASE_URL": self.url})
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    made = Desk(database)
    yield made
    made.session.close()


def test_reset_ends_the_episode_learns_the_new_normal_and_stands_in_the_audit(desk: Desk) -> None:
    desk.feed(1, 800)
    desk.feed(2, 200, 4.0)
    assert desk.states() == {"s0": "critical", "s1": "critical"}
    before = len(desk.told())
    desk.command("reset", "m", "--segment", "s0", "--by", "ann", "--reason", "new price list")
    assert desk.reset() == 1
    assert desk.states() == {"s0": "warming", "s1": "critical"}
    recovered = desk.told()[before:]
    assert [(item["segment"], item["turn"]) for item in recovered] == [("s0", "recovered")] * 2
    assert "ann has taken what is now for the new normal: new price list" in recovered[0]["message"]
    (row,) = desk.session.execute("SELECT actor, action, subject, detail FROM rowcall.audit").fetchall()
    assert (row["actor"], row["action"], row["subject"]) == ("ann", "reset drift", "monitor m")
    desk.begin(MONITOR)
    desk.feed(3, 800, 4.0)
    assert desk.states()["s0"] == "ok"
    desk.feed(4, 200, 0.0)
    assert desk.states()["s0"] == "critical"
    assert "new price list" in desk.command("show", "m")


def test_reset_of_many_segments_is_done_in_parts_and_survives_a_crash(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.drift.upkeep._PART", 3)
    desk.feed(1, 800, segments=8)
    control.reset(desk.session, "m", None, actor="ann", reason=None)
    assert desk.upkeep.reset(desk.engine, ["m"], desk.at)  # dies before it has saved
    desk.begin(MONITOR)
    assert desk.reset() == 3
    assert set(desk.states().values()) == {"warming"}
    (row,) = desk.session.execute("SELECT segments, done_at FROM rowcall.drift_resets").fetchall()
    assert row["segments"] == 8 and row["done_at"] is not None


def test_reset_of_what_nobody_knows_is_refused(desk: Desk) -> None:
    desk.feed(1, 10)
    with pytest.raises(OperatorError, match="no segment 'x' of monitor m is known"):
        control.reset(desk.session, "m", "x", actor="ann", reason=None)
    with pytest.raises(OperatorError, match="no segment of monitor n is known"):
        control.reset(desk.session, "n", None, actor="ann", reason=None)
    assert desk.count("audit") == 0


def test_removed_monitor_is_shown_as_retired_and_pruned_when_its_time_is_over(desk: Desk, clock: Clock) -> None:
    desk.begin(MONITOR, OTHER)
    desk.feed(1, 10)
    store.save(desk.session, desk.engine, Topics(), 1.0, cluster="c", positions=[store.Position("topic:u", "i", 0, 1)])
    desk.upkeep.look(1e6)
    desk.begin(MONITOR)
    clock.advance(700)
    desk.upkeep.look(2e6)
    listed = {row["monitor"]: row["state"] for row in orjson.loads(desk.command("list", "--json"))}
    assert listed == {"m": "warming", "other": "retired"}
    clock.advance(29 * 86_400)
    desk.upkeep.look(3e6)
    assert desk.count("drift_monitors") == 2
    clock.advance(2 * 86_400)
    desk.upkeep.look(4e6)
    assert (desk.count("drift_monitors"), desk.count("drift_positions"), len(desk.states())) == (1, 0, 2)


def test_monitor_that_comes_back_is_not_pruned(desk: Desk, clock: Clock) -> None:
    desk.begin(MONITOR, OTHER)
    desk.feed(1, 10)
    for monitors, now in (((MONITOR, OTHER), 1e6), ((MONITOR,), 2e6), ((MONITOR, OTHER), 3e6)):
        desk.begin(*monitors)
        desk.upkeep.look(now)
        clock.advance(20 * 86_400)
    clock.advance(20 * 86_400)
    desk.begin(MONITOR, OTHER)
    desk.upkeep.look(4e6)
    assert (desk.count("drift_monitors"), len(desk.states())) == (2, 3)


def test_sent_events_are_pruned_when_their_time_is_over_and_unsent_ones_never(desk: Desk, clock: Clock) -> None:
    desk.feed(1, 800)
    desk.feed(2, 200, 4.0)
    total = desk.count("drift_events")
    desk.session.execute("UPDATE rowcall.drift_events SET sent_at = rowcall.now() WHERE number = 1")
    clock.advance(29 * 86_400)
    desk.upkeep.look(1e6)
    assert desk.count("drift_events") == total
    clock.advance(2 * 86_400)
    desk.upkeep.look(2e6)
    assert desk.count("drift_events") == total - 1


def test_refused_query_is_listed_with_its_reason_until_it_is_answered(desk: Desk) -> None:
    query = Monitor.of(name="m", sql="SELECT v FROM nowhere", value="v")
    desk.begin(query)
    desk.upkeep.look(1e6)
    desk.upkeep.refused(query, "monitor m: sql: no table nowhere")
    (row,) = orjson.loads(desk.command("list", "--json"))
    assert (row["state"], row["error"]) == ("refused", "monitor m: sql: no table nowhere")
    desk.begin(query)
    desk.upkeep.answered(query)
    (row,) = orjson.loads(desk.command("list", "--json"))
    assert (row["state"], row["error"], row["failed_at"]) == ("waiting", None, None)


def listed(desk: Desk) -> tuple[str, str | None]:
    (row,) = orjson.loads(desk.command("list", "--json"))
    return row["state"], row["error"]


def test_topic_that_is_missing_is_listed_and_logged_once_a_minute_until_it_is_there(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.upkeep.look(1e6)
    blind = Blind(desk.upkeep, desk.monitors)
    with caplog.at_level(logging.WARNING):
        for second in range(0, 65, 5):
            blind.topics(["t"], [], 1e6 + second)
    assert [record.getMessage() for record in caplog.records] == [
        "monitor m: the topic t does not exist; it is waited for"
    ] * 2
    assert listed(desk) == ("waiting", "the topic t does not exist; it is waited for")
    blind.topics(["t"], ["t"], 1e6 + 70)
    assert listed(desk) == ("waiting", None)


def test_misspelt_column_is_listed_until_values_are_taken(desk: Desk) -> None:
    misspelt = Monitor.of(name="m", topic="t", value="amont", learn=50)
    desk.begin(misspelt)
    blind = Blind(desk.upkeep, desk.monitors)
    desk.upkeep.look(1e6)
    blind.look(1e6)
    desk.engine.feed([misspelt], [Sample({"amount": 1}, 1e6 + n, 1e6 + n) for n in range(7)])
    blind.met(desk.engine.counted)
    store.save(desk.session, desk.engine, Topics(), 1e6)
    blind.look(1e6 + 59)
    assert listed(desk) == ("warming", None)
    blind.look(1e6 + 60)
    said = "no value of the last minute was taken: unknown_column 7; its value is amont"
    assert listed(desk) == ("warming", said)
    blind.look(1e6 + 120)
    assert listed(desk) == ("warming", said)
    blind.met({("m", "fed"): 1, ("m", "unknown_column"): 3})
    blind.look(1e6 + 180)
    assert listed(desk) == ("warming", None)


def test_values_of_which_some_are_null_are_no_fault(desk: Desk) -> None:
    desk.upkeep.look(1e6)
    blind = Blind(desk.upkeep, desk.monitors)
    blind.look(1e6)
    blind.met({("m", "missing"): 9})
    blind.look(1e6 + 60)
    assert listed(desk) == ("waiting", None)


def test_process_that_begins_anew_takes_back_what_an_earlier_one_said(desk: Desk) -> None:
    desk.upkeep.look(1e6)
    Blind(desk.upkeep, desk.monitors).topics(["t"], [], 1e6)
    desk.begin(MONITOR)
    Blind(desk.upkeep, desk.monitors).topics(["t"], ["t"], 2e6)
    assert listed(desk) == ("waiting", None)


def test_monitor_that_waits_for_a_first_value_is_due_in_the_database(desk: Desk) -> None:
    desk.begin(Monitor.of(name="m", topic="t", detector="freshness", warning=60, critical=600))
    desk.engine.begin(["m"], 1000.0)
    store.save(desk.session, desk.engine, Topics(), 1000.0)
    (row,) = desk.session.execute("SELECT segment, extract(epoch FROM due_at)::float8 AS due FROM rowcall.drift_state")
    assert row == {"segment": "", "due": 1060.0}
