"""Runs brought into every state by legal moves, for the tests of what people do to them."""

from __future__ import annotations

import uuid
from typing import Any

from consumer import db, operate
from consumer.operate import Act
from consumer.records import decode

ACT = Act("ada", "because")
CLAIM = db.queries("claim")["claim"]
LIVE = ("PENDING", "RUNNING", "WAITING_RETRY", "WAITING_REVIEW", "WAITING_EVENT", "PARKED")
ENDED = ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED")


def insert(session: db.SyncSession, **columns: Any) -> int:
    """A new run of agent `a`; its ID."""
    values = {"job_type": "a"} | columns
    names = ", ".join(values)
    marks = ", ".join("%s" for _ in values)
    row = session.execute(
        f"INSERT INTO rowcall.agent_jobs ({names}) VALUES ({marks}) RETURNING id".encode(), list(values.values())
    ).fetchone()
    assert row is not None
    return int(row["id"])


def claiming(limit: int, *, lease: float = 30.0, deadline: float = 900.0, **changed: Any) -> dict[str, Any]:
    """Parameters of the query `claim` for agent `a`, as a worker of version 1 gives them."""
    given = {"agents": ["a"], "limit": limit, "owner": uuid.uuid4(), "deadline": deadline, "lease": lease}
    return given | {"versions": [1], "deadlines": [None], "suspects": 1} | changed


def claim(session: db.SyncSession) -> list[int]:
    """Claim what can be claimed, as a worker does."""
    session.execute("SELECT rowcall.promote(1000)")
    return [row["id"] for row in session.execute(CLAIM, claiming(100))]


def job(session: db.SyncSession, job_id: int) -> dict[str, Any]:
    """The whole row."""
    row = session.execute("SELECT * FROM rowcall.agent_jobs WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row


def end(session: db.SyncSession, job_id: int, status: str) -> None:
    """Move a run as a worker would, under its epoch."""
    row = session.execute(
        "SELECT rowcall.settle(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], ARRAY[%s], ARRAY[NULL], ARRAY['code'], "
        "ARRAY['error'], ARRAY['reason'], ARRAY[3600]::float[], ARRAY[0])",
        (job_id, job(session, job_id)["lease_epoch"], status),
    ).fetchone()
    assert row is not None


def open_review(session: db.SyncSession, job_id: int, proposed: str | None = '{"title": "hello"}') -> int:
    """An open review of a run; its ID."""
    row = session.execute(
        "INSERT INTO rowcall.reviews (job_id, code, reasons, raw_answer, proposed_answer) "
        "VALUES (%s, 'model_rules', '{too short}', 'raw', %s) RETURNING id",
        (job_id, proposed),
    ).fetchone()
    assert row is not None
    return int(row["id"])


def job_in(session: db.SyncSession, status: str, **columns: Any) -> int:
    """A run that came to `status` by legal moves alone."""
    if status == "PARKED":
        return insert(session, status="PARKED", reason="older_than_horizon", **columns)
    job_id = insert(session, **columns)
    if status == "PENDING":
        return job_id
    assert claim(session) == [job_id]
    if status == "RUNNING":
        return job_id
    if status == "REJECTED":
        end(session, job_id, "WAITING_REVIEW")
        operate.reject(session, open_review(session, job_id), ACT)
        return job_id
    end(session, job_id, status)
    return job_id


def audits(session: db.SyncSession) -> list[tuple[str, str, str, Any]]:
    """Actor, action, subject and detail of every audit row, in order."""
    rows = session.execute("SELECT actor, action, subject, detail::text AS detail FROM rowcall.audit ORDER BY id")
    return [(row["actor"], row["action"], row["subject"], decode(row["detail"])) for row in rows]
