"""The model's answers as a stream: real runs on a real executor, watched from the tables that they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest

from consumer import db
from consumer.agents.issue_digest import agent as digest
from consumer.kafka import Brokers
from producers.drift import store
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics
from producers.drift.queries import Queries
from tests.agents.harness import records, running, settings
from tests.scripted_model import Reply, serve

OWN = (
    "SELECT job_type AS agent, (status = 'FAILED')::int AS value FROM rowcall.agent_jobs"
    " WHERE finished_at > to_timestamp(%(since)s) AND finished_at <= to_timestamp(%(until)s) ORDER BY finished_at"
)
MONITORS = [
    *(Monitor.of(name=name, watch=name, learn=40, settle=10, every=1) for name in
      ("risk", "validation", "tokens", "latency")),
    Monitor.of(name="own", sql=OWN, value="value", segment="agent", detector="threshold", warning=1, critical=2),
]  # fmt: skip
CALM = {"title": "One question", "summary": "A question on the docs.", "risk_level": "low", "actions": []}
RISKY = {"title": "Data is lost", "summary": "Users lose their data.", "risk_level": "high", "actions": ["Stop it"]}


class Watching:
    """Monitors that look at the database when told to."""

    def __init__(self, url: str) -> None:
        self.session = db.connect(url, name="test")
        self.session.execute(db.queries("example_tables")["create"])
        loaded = settings(url)
        self.engine = Engine(MONITORS, store.loader(self.session), {})
        self.queries = Queries(loaded, self.session, Brokers(loaded))
        self.look(0)

    def look(self, ahead: int = 5) -> list[dict[str, Any]]:
        """Look at all that has ended by now; the events so far."""
        row = self.session.execute("SELECT extract(epoch FROM rowcall.now())::float8 AS now").fetchone()
        assert row is not None
        now = row["now"] + ahead  # rows that commit late are waited for
        for monitor in MONITORS:
            rows = self.queries.due(monitor, now) or []
            self.engine.feed([monitor], [Sample(item, now, now) for item in rows])
            store.save(self.session, self.engine, Topics(), now, polled={monitor.source: now})
        found = self.session.execute("SELECT payload FROM rowcall.drift_events ORDER BY number")
        return [orjson.loads(event["payload"]) for event in found]

    def count(self, monitor: str) -> int:
        row = self.session.execute("SELECT samples FROM rowcall.drift_state WHERE monitor = %s", (monitor,)).fetchone()
        return 0 if row is None else int(row["samples"])


@pytest.fixture
def watching(database: str) -> Iterator[Watching]:
    made = Watching(database)
    yield made
    made.queries.close()
    made.session.close()


async def runs(url: str, count: int, replies: Sequence[Reply]) -> None:
    """So many runs of issue-digest, one after the other, the model giving these answers in turn."""
    issues = [{"title": "It does not start"}]
    with serve(*(replies[number % len(replies)] for number in range(count * len(replies)))) as model:
        async with records(url) as view, running(settings(url, model.url, runs_in_flight=1), agents=[digest]):
            await view.know([digest])
            jobs = [await view.add("issue-digest", {"repository": f"r{n}", "day": "2026-11-29", "issues": issues})
                    for n in range(count)]  # fmt: skip
            await view.wait_all(jobs, seconds=90)


def test_drift_of_the_models_answers_is_told_from_real_runs(database: str, watching: Watching) -> None:
    asyncio.run(runs(database, 60, [Reply(answer=CALM)]))
    assert watching.look() == []
    assert [watching.count(name) for name in ("risk", "validation", "tokens", "latency")] == [60] * 4
    usage = {"prompt_tokens": 900, "completion_tokens": 400}
    worse = [Reply(answer="no JSON", usage=usage), Reply(answer=RISKY, usage=usage, delay_seconds=0.15)]
    asyncio.run(runs(database, 40, worse))
    told = watching.look()
    raised = {event["monitor"] for event in told if event["turn"] == "raised"}
    assert raised == {"risk", "validation", "tokens", "latency"}
    assert {event["segment"] for event in told} == {"issue-digest"}
    assert watching.count("risk") == 100 and watching.count("validation") == 140
    (risk,) = [event for event in told if event["monitor"] == "risk" and event["previous_state"] == "warning"]
    assert "'low'" in risk["message"] or "'high'" in risk["message"] or "(others)" in risk["message"]
