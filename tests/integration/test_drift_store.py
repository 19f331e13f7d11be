"""What detectors keep in the database: all of it in one transaction, and the same events after a crash."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumer import db
from consumer.errors import ConfigurationError, RowcallError
from consumer.kafka import Brokers
from consumer.settings import load
from producers.drift import store
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.queries import Queries

MONITOR = Monitor.of(name="m", topic="t", value="v", segment="s", learn=50)
TOPICS = Topics()


def engine(session: db.SyncSession, **more: Any) -> Engine:
    return Engine([MONITOR], store.loader(session), store.known(session, ["m"]), **more)


def rows(seed: int, count: int, middle: float = 0.0) -> list[Sample]:
    chance = random.Random(seed)
    return [Sample({"v": chance.gauss(middle, 1), "s": f"s{n % 3}"}, 1000.0 + n, 1000.0 + n) for n in range(count)]


def events(session: db.SyncSession) -> list[tuple[str, str]]:
    found = session.execute("SELECT id, topic FROM rowcall.drift_events ORDER BY number").fetchall()
    return [(str(row["id"]), row["topic"]) for row in found]


def run(url: str, samples: list[Sample], batch: int, memory: int, *, crash_at: int = -1) -> list[tuple[str, str]]:
    """Feed in batches from the stored offset; a crash loses what was not saved, and another process goes on."""
    with db.connect(url, name="test") as session:
        made = engine(session, memory=memory)
        while True:
            stored = session.execute("SELECT max(next_offset) AS n FROM rowcall.drift_positions").fetchone()
            at = (stored and stored["n"]) or 0
            if at >= len(samples):
                return events(session)
            part = samples[at : at + batch]
            made.feed([MONITOR], part)
            if at // batch == crash_at:
                crash_at = -1
                made = engine(session, memory=memory)
                continue
            position = store.Position("topic:t", "id", 0, at + len(part))
            store.save(session, made, TOPICS, 1.0, cluster="c", positions=[position])


def test_crash_and_eviction_change_no_event(database: str, server: str) -> None:
    samples = [*rows(1, 900), *rows(2, 300, 3.0), *rows(3, 900)]
    first = run(database, samples, 100, 1000)
    assert {topic for _, topic in first} == {"drift.warning", "drift.critical"}
    from tests.fixtures.postgres import create, drop

    other = create(server)
    try:
        assert sorted(run(other, samples, 70, 1, crash_at=13)) == sorted(first)
    finally:
        drop(other)


def test_state_and_events_are_written_with_the_position_or_not_at_all(database: str) -> None:
    with db.connect(database, name="test") as session:
        made = engine(session)
        made.feed([MONITOR], [*rows(1, 900), *rows(2, 300, 3.0)])
        assert made.told
        with pytest.raises(RowcallError):
            store.save(session, made, TOPICS, 1.0, cluster="c", positions=[store.Position("t", "id", 0, -1)])
        assert events(session) == []
        assert session.execute("SELECT 1 FROM rowcall.drift_state").fetchall() == []


def test_ids_that_were_seen_are_seen_after_a_restart(database: str) -> None:
    with db.connect(database, name="test") as session:
        seen = store.Seen([])
        assert [seen.first("a"), seen.first("b"), seen.first("a")] == [True, True, False]
        store.save(session, engine(session), TOPICS, 1.0, seen={"topic:t": seen})
        stored = session.execute(db.queries("drift", "producers")["seen"], ("topic:t",)).fetchall()
        again = store.Seen([bytes(row["digests"]) for row in stored])
        assert [again.first("b"), again.first("c")] == [False, True]


def test_too_many_segments_are_told_once(database: str) -> None:
    few = Monitor.of(name="m", topic="t", value="v", segment="s", max_segments=2)
    with db.connect(database, name="test") as session:
        for _ in range(2):
            made = Engine([few], store.loader(session), store.known(session, ["m"]))
            made.feed([few], rows(1, 9))
            store.save(session, made, TOPICS, 5.0)
        assert [topic for _, topic in events(session)] == ["drift.warning"]


def test_refused_query_is_named_asked_again_in_its_time_and_stops_no_other(database: str) -> None:
    settings = load({"DATABASE_URL": database})
    wrong = Monitor.of(name="wrong", sql="SELECT nothing FROM nowhere", value="v", every=10)
    slow = Monitor.of(name="slow", sql="SELECT pg_sleep(5)::text AS v", value="v", every=10, timeout=0.2)
    much = Monitor.of(name="much", sql="SELECT generate_series(1, 100001) AS v", value="v", every=10)
    unknown = Monitor.of(name="unknown", sql="SELECT %(since)s + %(nobody)s AS v", value="v", every=10)
    good = Monitor.of(name="good", sql="SELECT 1 AS v", value="v", every=10)
    with db.connect(database, name="test") as session:
        queries = Queries(settings, session, Brokers(settings))
        refused = {
            "monitor wrong: sql: .*nowhere": wrong,
            "monitor slow: sql: .*timeout": slow,
            "monitor much: sql: .*more than 100000 rows": much,
            "monitor unknown: sql: .*nobody": unknown,
        }
        for said, monitor in refused.items():
            with pytest.raises(ConfigurationError, match=said):
                queries.due(monitor, 1000.0)
            assert queries.due(monitor, 1009.0) is None
            with pytest.raises(ConfigurationError, match=said):
                queries.due(monitor, 1010.0)
        assert queries.due(good, 1000.0) == [{"v": 1}]
        assert queries.due(good, 1009.0) is None
        queries.close()
