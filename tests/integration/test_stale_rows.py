"""An agent's update of the row that woke it, where the row has changed since: by each `on_stale`, for each type."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from consumer import db, operate
from consumer.records import UNCHANGED, Change, Infinity, Operation, Origin, payload
from consumer.records.staleness import changed_columns
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view

__all__ = ["database", "view"]


async def item(view: Records, **changed: Any) -> dict[str, Any]:
    """A row of public.items as an agent saw it; the database has it with `changed`."""
    seen = {"id": 1, "status": "open", "amount": Decimal("5.00"), "note": None}
    now = seen | changed
    await view.execute(
        "INSERT INTO public.items (id, status, amount, note) VALUES (%s, %s, %s, %s)",
        now["id"], now["status"], now["amount"], now["note"],
    )  # fmt: skip
    return seen


async def test_a_row_that_is_as_it_was_is_updated(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-rerun", await item(view, note="written before"))
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 1)
    assert (await view.one("SELECT note FROM public.items"))["note"] == "saw 5.00"


async def test_a_changed_row_runs_again_on_the_row_as_it_stands(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-rerun", await item(view, amount=Decimal("7.50")))
    async with running(settings(database, poll_seconds=20.0)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 2)
    assert (await view.one("SELECT note FROM public.items"))["note"] == "saw 7.50"
    assert await view.effects() == [1]
    steps = await view.all("SELECT superseded, output::text FROM rowcall.job_steps WHERE name = 'amount' ORDER BY 1")
    assert [(step["superseded"], step["output"]) for step in steps] == [(0, '"7.50"'), (1, '"5.00"')]


async def test_a_changed_row_goes_to_a_person_where_the_agent_says_so(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-review", await item(view, amount=Decimal("7.50")))
    async with running(settings(database)):
        job = await view.wait(job_id, "WAITING_REVIEW")
    assert (job["error_code"], await view.effects()) == ("stale_row", [])
    assert "amount changed" in (await view.one("SELECT reasons[1] AS why FROM rowcall.reviews"))["why"]


async def test_a_changed_row_is_written_all_the_same_where_the_agent_says_so(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-write", await item(view, amount=Decimal("7.50")))
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["attempt_count"]) == ("SUCCEEDED", 1)
    assert (await view.one("SELECT note FROM public.items"))["note"] == "saw 5.00"


@pytest.mark.parametrize("agent", ["updater-rerun", "updater-write"])
async def test_a_run_whose_row_is_gone_ends_without_an_effect(database: str, view: Records, agent: str) -> None:
    seen = await item(view)
    await view.execute("DELETE FROM public.items")
    job_id = await view.add_change(agent, seen)
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["error_code"], await view.effects()) == ("CANCELLED", "stale_row", [])


async def test_a_row_that_wakes_the_agent_no_more_ends_its_run(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-rerun", await item(view, status="closed"))
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], await view.effects()) == ("CANCELLED", [])


async def test_an_approval_does_not_outlive_the_row_it_was_given_for(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-rerun", await item(view, amount=Decimal("7.50")))
    await view.execute(
        'UPDATE rowcall.agent_jobs SET approved_answer = \'{"title": "approved", "score": 1}\', approved_by = \'ann\''
    )
    async with running(settings(database)):
        job = await view.wait(job_id)
    assert (job["status"], job["approved_by"]) == ("SUCCEEDED", None)
    assert (await view.one("SELECT note FROM public.items"))["note"] == "saw 7.50"


async def test_a_stale_row_can_be_approved_and_is_checked_again(database: str, view: Records) -> None:
    job_id = await view.add_change("updater-review", await item(view, amount=Decimal("7.50")))
    with db.connect(database, name="person") as person:
        async with running(settings(database)):
            await view.wait(job_id, "WAITING_REVIEW")
            review = await view.one("SELECT id FROM rowcall.reviews")
            operate.approve(person, review["id"], operate.Act("ann"))
            job = await view.wait(job_id)
    assert (job["status"], await view.effects()) == ("SUCCEEDED", [1])


# Type, literal, and the value that the decoder of row changes gives for it (consumer/wire/columns.py).
LOGGED: list[tuple[str, str, Any]] = [
    ("integer", "7", 7),
    ("bigint", "9007199254740993", 9007199254740993),
    ("numeric(10,2)", "5", Decimal("5.00")),
    ("numeric", "NaN", None),
    ("real", "0.1", 0.10000000149011612),
    ("real", "NaN", float("nan")),
    ("double precision", "0.1", 0.1),
    ("boolean", "true", True),
    ("text", "x", "x"),
    ("char(4)", "x", "x   "),
    ("bytea", "\\x0001", b"\x00\x01"),
    ("uuid", "6f8e9f6e-3c8e-4c43-9c55-0d9d5f3f1a10", uuid.UUID("6f8e9f6e-3c8e-4c43-9c55-0d9d5f3f1a10")),
    ("date", "2030-01-02", dt.date(2030, 1, 2)),
    ("date", "infinity", Infinity.POSITIVE),
    ("time", "01:02:03.000004", dt.time(1, 2, 3, 4)),
    ("timetz", "01:02:03+02", dt.time(23, 2, 3, tzinfo=dt.UTC)),
    ("timestamp", "2030-01-02 03:04:05", dt.datetime(2030, 1, 2, 3, 4, 5)),
    ("timestamptz", "2030-01-02 03:04:05+02", dt.datetime(2030, 1, 2, 1, 4, 5, tzinfo=dt.UTC)),
    ("timestamptz", "-infinity", Infinity.NEGATIVE),
    ("interval", "1 day 02:00:00", dt.timedelta(days=1, hours=2)),
    ("jsonb", '{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
    ("json", '{"a": 1}', {"a": 1}),
    ("text[]", "{a,NULL}", ["a", None]),
    ("inet", "10.0.0.1", "10.0.0.1"),
    ("cidr", "10.0.0.0/8", "10.0.0.0/8"),
    ("int4range", "[1,5)", "[1,5)"),
    ("tstzrange", "empty", "empty"),
    ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
]


@pytest.mark.parametrize(("kind", "literal", "logged"), LOGGED, ids=[f"{row[0]} {row[1]}"[:40] for row in LOGGED])
async def test_a_value_from_the_log_equals_the_same_value_in_the_table(
    database: str, kind: str, literal: str, logged: Any
) -> None:
    if logged is None:
        logged = Decimal("NaN")
    session = await db.connect_async(database, name="test")
    try:
        await session.execute("DROP TABLE IF EXISTS public.typed")
        await session.execute(f"CREATE TABLE public.typed (id int PRIMARY KEY, value {kind})".encode())
        await session.execute("INSERT INTO public.typed VALUES (1, %s)", (literal,))
        current = await db.lock_row(session, "public", "typed", {"id": 1})
    finally:
        await session.close()
    assert current is not None
    origin = Origin("cdc", "app", "public", "typed", 7, 7, 0)
    seen = Change("rc1:x", Operation.CREATE, None, {"id": 1, "value": logged}, {"id": 1}, origin)
    assert changed_columns(seen, current, set()) == []
    # And the row as it stands can be kept as a run's input.
    assert payload.write(replace(seen, after=current))


def test_another_value_is_another_value() -> None:
    seen = Change(
        "rc1:x", Operation.CREATE, None, {"id": 1, "a": 0.1, "b": "x", "c": None, "d": 1, "e": UNCHANGED}, {"id": 1},
        Origin("cdc", "app", "public", "typed", 7, 7, 0),
    )  # fmt: skip
    now = {"id": 1, "a": 0.2, "b": "y", "c": 0, "d": True, "e": "anything"}
    assert changed_columns(seen, now, set()) == ["a", "b", "c"]
    assert changed_columns(seen, now, {"a"}) == ["b", "c"]
