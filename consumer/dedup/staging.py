"""The two ways in which rows of jobs reach their table: straight by COPY, or by way of a temporary table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumer import db
from consumer.dedup.batch import NewJob

_SQL: Final = db.queries("dedup")


def copy(session: db.SyncSession, query: str, jobs: Sequence[NewJob]) -> None:
    """COPY the jobs' rows by this query."""
    if jobs:
        with session.cursor().copy(_SQL[query]) as stream:
            stream.write(b"".join([job.line for job in jobs]))


def stage(session: db.SyncSession, jobs: Sequence[NewJob], status: str, reason: str | None, delivery: int) -> list[str]:
    """Insert jobs where they do not exist yet; the agents of those that are new."""
    session.execute(_SQL["create_staging"])
    copy(session, "copy_staged", jobs)
    rows = session.execute(_SQL["put_staged"], {"status": status, "reason": reason, "delivery": delivery}).fetchall()
    session.execute(_SQL["drop_staging"])
    return [row["job_type"] for row in rows]
