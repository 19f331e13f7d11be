"""The example tables on a real Postgres: made twice without harm, and issues queue their digests by a trigger."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from consumer import db
from consumer.agents import issue_digest, order_triage, triage_notice
from consumer.agents.issue_digest import QUIET_DAY
from consumer.agents.triage_notice import Notice
from consumer.records import Change, Event

_SQL = db.queries("example_tables")


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        for name in ("create", "seed", "create", "seed"):
            opened.execute(_SQL[name])
        yield opened


class Statements:
    """`Transaction` and `Reader` on a session in autocommit: what the executor does, without the fence."""

    def __init__(self, session: db.SyncSession) -> None:
        self._session = session

    async def execute(self, statement: str, *parameters: Any) -> int:
        return self._session.execute(statement.encode(), parameters).rowcount

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        return self._session.execute(query.encode(), parameters).fetchall()

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        raise AssertionError("no change here")

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        raise AssertionError("nothing is emitted here")


def jobs(session: db.SyncSession) -> list[dict[str, Any]]:
    return session.execute(
        "SELECT job_type, payload::text AS payload, dedupe_key, key_text, run_after, "
        "(SELECT count(*) FROM rowcall.coalesced_events c WHERE c.job_id = j.id) AS merged "
        "FROM rowcall.agent_jobs j ORDER BY dedupe_key"
    ).fetchall()


def test_issues_queue_one_digest_a_repository_and_day_due_when_the_day_is_over(session: db.SyncSession) -> None:
    session.execute(
        "INSERT INTO public.issues (repository, title, opened_at) VALUES ('b', 'x', '2026-11-29T23:59:59Z'), "
        "('a', 'y', '2026-11-29T10:00Z'), ('a', 'z', '2026-11-29T11:00Z'), ('a', 'w', '2026-11-30T00:00Z')"
    )
    session.execute("INSERT INTO public.issues (repository, title, opened_at) VALUES ('a', 'v', '2026-11-29T12:00Z')")
    found = jobs(session)
    assert [job["dedupe_key"] for job in found] == ["a:2026-11-29", "a:2026-11-30", "b:2026-11-29"]
    assert {job["job_type"] for job in found} == {issue_digest.agent.name}
    assert [job["merged"] for job in found] == [1, 0, 0]
    assert found[0]["run_after"] == dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    assert found[0]["key_text"] == "a"


async def test_what_the_trigger_queues_is_what_the_agent_reads(session: db.SyncSession) -> None:
    session.execute(
        "INSERT INTO public.issues (repository, title, labels, opened_at) "
        "VALUES ('a', 'late', '{bug}', '2026-11-29T23:30Z'), ('a', 'next day', '{}', '2026-11-30T00:00Z')"
    )
    session.execute("SET timezone = 'Pacific/Auckland'")
    payload = session.execute("SELECT payload FROM rowcall.agent_jobs ORDER BY run_after").fetchone()
    assert payload is not None
    request = issue_digest.request_of(Event("job:1", None, None, payload["payload"]))
    rows = await issue_digest.fetch_issues(Statements(session), request.repository, request.day)
    assert rows == [{"title": "late", "labels": ["bug"], "state": "open"}]


async def test_a_digest_written_twice_is_one_row(session: db.SyncSession) -> None:
    event = Event("job:1", None, None, {"repository": "a", "day": "2026-11-29"})
    for title in ("First", "Second"):
        await issue_digest.agent.put(Statements(session), event, QUIET_DAY.model_copy(update={"title": title}))
    rows = session.execute("SELECT repository, day::text, title, actions FROM public.issue_digests").fetchall()
    assert rows == [{"repository": "a", "day": "2026-11-29", "title": "Second", "actions": []}]


async def test_a_notice_of_one_event_is_written_once(session: db.SyncSession) -> None:
    for _ in range(2):
        event = Event("ob1:x:1", "orders.triaged", "42", {})
        await triage_notice.agent.put(Statements(session), event, Notice(order_id=42, text="order 42: ship"))
    assert session.execute("SELECT order_id, text FROM public.notices").fetchall() == [
        {"order_id": 42, "text": "order 42: ship"}
    ]


async def test_the_customer_step_reads_a_seeded_customer(session: db.SyncSession) -> None:
    customer = await order_triage.fetch_customer(Statements(session), 6)
    assert (customer["name"], str(customer["credit_limit"])) == ("Farid Haddad", "1000.00")
    session.execute("INSERT INTO public.customers (name) VALUES ('after the seed')")


def test_the_captured_tables_log_whole_old_rows(session: db.SyncSession) -> None:
    found = session.execute(
        "SELECT relname FROM pg_class WHERE relreplident = 'f' AND relnamespace = 'public'::regnamespace ORDER BY 1"
    ).fetchall()
    assert [row["relname"] for row in found] == ["customers", "orders"]
