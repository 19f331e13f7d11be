"""A watchdog on a test's database, rows for it to look at, and channels that remember what they were told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from consumer import db, settings
from consumer.settings import Settings
from consumer.watchdog.alert import Alert, Listener
from consumer.watchdog.observation import Expected
from consumer.watchdog.rounds import Watchdog

AGENT = "INSERT INTO rowcall.agents (name, version, options) VALUES (%s, 1, %s::jsonb)"
BEAT = (
    "INSERT INTO rowcall.heartbeats (subject, instance, started_at, at, expected_next, progress, progress_at)"
    " VALUES (%(role)s, %(instance)s, rowcall.now(), rowcall.now(), rowcall.now() + interval '10 s', %(progress)s,"
    " rowcall.now()) ON CONFLICT (subject, instance) DO UPDATE SET at = rowcall.now(), state = 'RUNNING',"
    " expected_next = excluded.expected_next, progress = excluded.progress, progress_at = CASE"
    " WHEN heartbeats.progress <> excluded.progress THEN rowcall.now() ELSE heartbeats.progress_at END"
)


class Told:
    """A channel that keeps what it was told."""

    def __init__(self, name: str = "told") -> None:
        self.name = name
        self.wanted = True
        self.alerts: list[Alert] = []
        self.came = threading.Event()

    def wants(self, alert: Alert) -> bool:
        return self.wanted

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)
        self.came.set()


def configured(database: str, **environment: str) -> Settings:
    return settings.load({"DATABASE_URL": database, "CONNECT_URL": "", **environment})


class Rounds:
    """A watchdog that looks when it is told to."""

    def __init__(
        self, database: str, *, channels: Sequence[Listener] = (), expected: Sequence[Expected] = (), **environment: str
    ) -> None:
        self.session = db.connect(database, name="watchdog", by_key=True)
        self.watchdog = Watchdog(configured(database, **environment), channels, expected=expected)
        self.database = database

    def look(self) -> float | None:
        return self.watchdog.look(self.session)

    def states(self) -> dict[str, str]:
        rows = self.session.execute("SELECT subject, state FROM rowcall.watch_states ORDER BY subject").fetchall()
        return {row["subject"]: row["state"] for row in rows if not row["subject"].startswith("observer:")}

    def flips(self, subject: str | None = None) -> list[dict[str, Any]]:
        rows = self.session.execute(
            "SELECT * FROM rowcall.watch_flips WHERE subject NOT LIKE 'observer:%%' AND (%s::text IS NULL"
            " OR subject = %s) ORDER BY id", (subject, subject),
        )  # fmt: skip
        return rows.fetchall()

    def moves(self, subject: str) -> list[tuple[str, str]]:
        return [(row["old_state"], row["new_state"]) for row in self.flips(subject)]

    def beat(self, role: str = "executor", instance: str = "one", progress: int = 1) -> None:
        self.session.execute(BEAT.encode(), {"role": role, "instance": instance, "progress": progress})

    def agent(self, name: str = "a", **options: Any) -> None:
        self.session.execute(AGENT.encode(), (name, psycopg.types.json.Json(options)))

    def run_of(self, agent: str = "a", status: str = "PENDING", **columns: Any) -> int:
        """A run in some state, as a worker would have left it."""
        row = self.session.execute("INSERT INTO rowcall.agent_jobs (job_type) VALUES (%s) RETURNING id", (agent,))
        found = row.fetchone()
        assert found is not None
        job = int(found["id"])
        if status == "PENDING":
            return job
        self.session.execute(
            "UPDATE rowcall.agent_jobs SET status = 'RUNNING', owner = gen_random_uuid(), lease_epoch = 1,"
            " claimed_at = rowcall.now(), locked_until = rowcall.now() + interval '30 s',"
            " deadline = rowcall.now() + interval '900 s' WHERE id = %s", (job,)
        )  # fmt: skip
        if status != "RUNNING":
            self.end(job, status)
        return job

    def end(self, job: int, status: str, output: str | None = None) -> None:
        self.session.execute(
            "UPDATE rowcall.agent_jobs SET status = %s, owner = NULL, locked_until = NULL,"
            " finished_at = CASE WHEN %s IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN rowcall.now() END,"
            " error_code = CASE WHEN %s = 'FAILED' THEN 'x' END, last_error = CASE WHEN %s = 'FAILED' THEN 'x' END"
            " WHERE id = %s", (status, status, status, status, job)
        )  # fmt: skip
        if output is not None:
            self.session.execute(
                "INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch,"
                " finished_at) VALUES (%s, 'write_result', 'WRITE_RESULT', 3, %s::json, 1, 1, rowcall.now())",
                (job, output),
            )

    def succeed(self, output: str | None = None, agent: str = "a") -> int:
        job = self.run_of(agent, "RUNNING")
        self.end(job, "SUCCEEDED", output)
        return job


@contextmanager
def rounds(database: str, **given: Any) -> Iterator[Rounds]:
    opened = Rounds(database, **given)
    with opened.session:
        yield opened


def rows(database: str, query: str, *parameters: Any) -> list[Mapping[str, Any]]:
    with psycopg.connect(database, row_factory=dict_row) as session:
        return list(session.execute(query.encode(), parameters).fetchall())
