"""What the tests of reviews share: a row under review, its model, its people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from consumer import db, operate
from consumer.operate import Act
from tests.agents.harness import Records, running, settings
from tests.scripted_model import Endpoint, Reply, serve

ADA, BOB = Act("ada", "looks right"), Act("bob", "because")
ROW = {"id": 1, "status": "open", "amount": Decimal("5.00"), "note": None}


def says(tier: str = "medium", title: str = "first", **fields: Any) -> Reply:
    """An answer of the model."""
    return Reply({"action": "keep", "tier": tier, "title": title, "score": 1, "remark": "said"} | fields)


async def put(view: Records, row: dict[str, Any] | None = None) -> dict[str, Any]:
    """The row in the table."""
    row = {**ROW, **(row or {})}
    await view.execute(
        "INSERT INTO public.items (id, status, amount, note) VALUES (%s, %s, %s, %s)",
        row["id"], row["status"], row["amount"], row["note"],
    )  # fmt: skip
    return row


async def held(view: Records, database: str, model: Endpoint, agent: str = "reviewed", **row: Any) -> tuple[int, int]:
    """A run of the agent that waits for a person while no worker is there; (job, review)."""
    job_id = await view.add_change(agent, await put(view, row))
    async with working(database, model):
        await view.wait(job_id, "WAITING_REVIEW")
    return job_id, await review_of(view, job_id)


async def review_of(view: Records, job_id: int) -> int:
    """The open review of a run."""
    row = await view.one("SELECT id FROM rowcall.reviews WHERE job_id = %s AND state = 'OPEN'", job_id)
    return int(row["id"])


async def review(view: Records, review_id: int) -> dict[str, Any]:
    """The whole row."""
    return await view.one("SELECT * FROM rowcall.reviews WHERE id = %s", review_id)


@asynccontextmanager
async def working(database: str, model: Endpoint, **changed: Any) -> AsyncIterator[None]:
    """One worker until the block ends."""
    async with running(settings(database, model.url, **changed)):
        yield


async def note(view: Records, item: int = 1) -> Any:
    """What stands on the row."""
    return (await view.one("SELECT note FROM public.items WHERE id = %s", item))["note"]


@pytest.fixture
def person(database: str) -> Iterator[db.SyncSession]:
    """A session of somebody who decides."""
    with db.connect(database, name="person") as session:
        yield session


@pytest.fixture
def model() -> Iterator[Endpoint]:
    """An endpoint whose answer is of the medium tier."""
    with serve(says()) as endpoint:
        yield endpoint


__all__ = [
    "ADA", "BOB", "ROW", "held", "model", "note", "operate", "person", "put", "review", "review_of", "says", "working",
]  # fmt: skip
