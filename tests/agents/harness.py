"""Runs executors in this process and looks at what they wrote."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from consumer.agents.door import Agent
from consumer.executor.loop import run_executor
from consumer.records import Change, Operation, Origin, encode, payload
from consumer.settings import Settings
from tests.agents import AGENTS
from tests.agents.writing import TABLES

CLEAR = """
DROP FUNCTION IF EXISTS public.steal() CASCADE;
TRUNCATE rowcall.agents, rowcall.agent_starts, rowcall.agent_jobs, rowcall.lanes, rowcall.job_steps,
    rowcall.external_calls, rowcall.outbox, rowcall.reviews, rowcall.review_events, rowcall.bypasses,
    rowcall.coalesced_events, public.effects, public.items,
    rowcall.effects;
"""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED")


def settings(url: str, model: str = "http://127.0.0.1:9/v1", **changed: Any) -> Settings:
    """Settings with short leases and delays; `changed` by field name."""
    values: dict[str, Any] = {
        "database_url": url,
        "model_base_url": model,
        "agents": ("tests.agents",),
        "lease_seconds": 3.0,
        "beat_seconds": 0.5,
        "poll_seconds": 0.1,
        "retry_base_seconds": 0.05,
        "retry_cap_seconds": 0.2,
        "model_timeout_seconds": 20.0,
        "model_retries": 0,
        "drain_seconds": 5.0,
    }
    return Settings.model_validate(values | changed)


@asynccontextmanager
async def running(
    configuration: Settings, *, count: int = 1, agents: Sequence[Agent] = AGENTS
) -> AsyncIterator[asyncio.Event]:
    """`count` executors in this process until the block ends; gives the event that stops them."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(run_executor(configuration, agents, stop)) for _ in range(count)]
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.gather(*tasks)


class Records:
    """The database as a test sees it."""

    def __init__(self, session: psycopg.AsyncConnection[DictRow]) -> None:
        self.session = session

    async def all(self, query: str, *parameters: Any) -> list[DictRow]:
        """Rows of a query."""
        return await (await self.session.execute(query.encode(), parameters or None)).fetchall()

    async def one(self, query: str, *parameters: Any) -> DictRow:
        """The only row of a query."""
        (row,) = await self.all(query, *parameters)
        return row

    async def execute(self, query: str, *parameters: Any) -> None:
        """A statement."""
        await self.session.execute(query.encode(), parameters or None)

    async def add(self, agent: str, data: Any = None, *, key: str | None = None, attempts: int = 5) -> int:
        """Queue a run."""
        row = await self.one(
            "SELECT rowcall.enqueue(agent => %s, payload => %s::json, key => %s, max_attempts => %s) AS id",
            agent, encode({} if data is None else data), key, attempts,
        )  # fmt: skip
        return int(row["id"])

    async def add_change(
        self,
        agent: str,
        row: dict[str, Any],
        *,
        before: dict[str, Any] | None = None,
        gone: bool = False,
        parent: int | None = None,
        committed: int = 1_700_000_000,
    ) -> int:
        """Queue a run for a change of public.items; of its deletion where `gone`, made by run `parent` if given."""
        origin = Origin("cdc", "app", "public", "items", 7, 7, committed * 1000)
        operation = Operation.UPDATE if before else Operation.CREATE
        change = Change(f"rc1:{uuid.uuid4().hex}", operation, before, row, {"id": row["id"]}, origin)
        if gone:
            change = replace(change, operation=Operation.DELETE, before=row, after=None)
        added = await self.one(
            "INSERT INTO rowcall.agent_jobs (job_type, input_kind, payload, event_id, key_hash, source_topic, "
            "source_partition, source_offset, parent_job, occurred_at) VALUES (%s, 'change', %s::json, %s, %s, "
            "'cdc.public.items', 0, 1, %s, to_timestamp(%s)) RETURNING id",
            agent, payload.write(change), change.id, row["id"], parent, committed,
        )  # fmt: skip
        return int(added["id"])

    async def know(self, agents: Sequence[Agent]) -> None:
        """The agents' rows, as activation writes them: a lower version never overwrites a higher one."""
        for agent in agents:
            await self.execute(
                "INSERT INTO rowcall.agents AS a (name, version, options) VALUES (%s, %s, %s::jsonb) "
                "ON CONFLICT (name) DO UPDATE SET version = excluded.version, options = excluded.options "
                "WHERE a.version < excluded.version",
                agent.name, agent.version, json.dumps(agent.options),
            )  # fmt: skip

    async def job(self, job_id: int) -> DictRow:
        """One run."""
        return await self.one("SELECT *, result::text AS result_text FROM rowcall.agent_jobs WHERE id = %s", job_id)

    async def wait(self, job_id: int, *statuses: str, seconds: float = 15.0) -> DictRow:
        """The run, when it has one of these statuses (by default: when it has ended)."""
        until = time.monotonic() + seconds
        while True:
            job = await self.job(job_id)
            if job["status"] in (statuses or ENDED):
                return job
            if time.monotonic() > until:
                calls = await self.all("SELECT * FROM rowcall.external_calls WHERE job_id = %s", job_id)
                raise AssertionError(f"job {job_id} did not become {statuses or ENDED} in {seconds} s: {job}, {calls}")
            await asyncio.sleep(0.02)

    async def wait_all(self, job_ids: Sequence[int], *, seconds: float = 30.0) -> None:
        """Until all of these have succeeded."""
        until = time.monotonic() + seconds
        while True:
            open_ = await self.all(
                "SELECT id, status, error_code, last_error, attempt_count FROM rowcall.agent_jobs "
                "WHERE id = ANY (%s) AND status <> 'SUCCEEDED' ORDER BY id",
                list(job_ids),
            )
            if not open_:
                return
            assert time.monotonic() < until, f"{len(open_)} of {len(job_ids)} not done in {seconds} s: {open_[:5]}"
            await asyncio.sleep(0.05)

    async def wait_for(self, query: str, *parameters: Any, seconds: float = 5.0) -> DictRow:
        """The first row of a query, when it has one."""
        until = time.monotonic() + seconds
        while not (rows := await self.all(query, *parameters)):
            assert time.monotonic() < until, f"not within {seconds} s: {query}"
            await asyncio.sleep(0.01)
        return rows[0]

    async def clear(self) -> None:
        """Empty what the tests of a module share; a database of its own costs each test most of a second."""
        await self.session.execute(CLEAR.encode())

    async def effects(self) -> list[int]:
        """What agents have written, sorted."""
        return sorted(row["n"] for row in await self.all("SELECT n FROM public.effects"))


@asynccontextmanager
async def records(url: str, *, clear: bool = False) -> AsyncIterator[Records]:
    """A view of the database, with the agents' rows and tables in it; with `clear`, and nothing else."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as session:
        await session.execute(TABLES.encode())
        if clear:
            await Records(session).clear()
        view = Records(session)
        await view.know(AGENTS)
        yield view
