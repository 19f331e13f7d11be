"""The users' example: a digest a repository and day, queued by the shipped schedule or the database's own trigger."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

from consumer import db
from consumer.agents import SCHEDULES
from consumer.agents.issue_digest import QUIET_DAY
from consumer.agents.issue_digest import agent as digest
from producers.schedules.definitions import synchronise
from producers.schedules.fire import fire_due
from tests.agents.harness import records, running, settings
from tests.fixtures.postgres import Clock
from tests.scripted_model import Reply, serve

ANSWER: dict[str, Any] = {
    "title": "Crash on start", "summary": "Two users report a crash on start.", "risk_level": "medium",
    "actions": ["Reproduce it", "Fix it", "Release the fix", "Answer the users", "Write a test"],
}  # fmt: skip


class Day:
    """The database, its clock, and the model's calls."""

    def __init__(self, url: str, session: db.SyncSession) -> None:
        self.url, self.session = url, session
        self.calls = 0

    def at(self, moment: dt.datetime) -> None:
        """Go there, and let the scheduler fire what is due."""
        self.session.execute("UPDATE public.test_clock SET at = %s", (moment,))
        while fire_due(self.session) is not None:
            pass

    def work(self) -> None:
        """Let an executor do every run that is due."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        with serve(Reply(answer=ANSWER)) as model:
            async with records(self.url) as view, running(settings(self.url, model.url), agents=[digest]):
                due = await view.all("SELECT id FROM rowcall.agent_jobs WHERE run_after <= rowcall.now()")
                await view.wait_all([row["id"] for row in due])
            self.calls += len(model.calls)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.session.execute(query.encode())]


def test_shipped_schedule_writes_one_digest_a_repository_and_day(database: str, clock: Clock) -> None:
    with db.connect(database, name="test") as session:
        session.execute(db.queries("example_tables")["create"])
        session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('issue-digest', 1)")
        day = Day(database, session)
        day.at(dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC))
        synchronise(session, {"code": SCHEDULES})
        for title in ("It crashes", "It crashes here too"):
            session.execute("INSERT INTO public.issues (repository, title, opened_at) VALUES"
                            " ('example/shop', %s, rowcall.now())", (title,))  # fmt: skip
        day.at(dt.datetime(2026, 11, 30, 7, 1, tzinfo=dt.UTC))
        # The trigger on public.issues had queued that day's run; the slot meets its key.
        assert day.rows("SELECT outcome FROM rowcall.schedule_slots") == [("coalesced",)]
        day.work()
        written = day.rows("SELECT repository, day, title, summary, risk_level, actions FROM public.issue_digests")
        assert written == [("example/shop", dt.date(2026, 11, 29), *ANSWER.values())]
        assert day.calls == 1
        day.at(dt.datetime(2026, 12, 1, 7, 1, tzinfo=dt.UTC))
        day.work()
        assert day.rows("SELECT outcome FROM rowcall.schedule_slots ORDER BY slot") == [("coalesced",), ("queued",)]
        titles = day.rows("SELECT day, title FROM public.issue_digests ORDER BY day")
        assert titles[1:] == [(dt.date(2026, 11, 30), QUIET_DAY.title)]
        day.work()
        assert (len(day.rows("SELECT 1 FROM public.issue_digests")), day.calls) == (2, 1)
