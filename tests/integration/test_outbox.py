"""Outbox rows on a real Postgres: they stand or fall with the transaction, once, in the order of emission."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from consumer import db
from consumer.outbox import Outbox
from tests.unit.test_outbox import JOB, RECORD, Sent


class Registry:
    """Gives every schema the same number and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        self.asked.append((subject, schema["name"]))
        return 7


@pytest.fixture
async def session(database: str) -> AsyncIterator[db.Session]:
    opened = await db.connect_async(database, name="test")
    yield opened
    await opened.close()


async def rows(session: db.Session) -> list[dict[str, Any]]:
    cursor = await session.execute("SELECT *, ctid FROM rowcall.outbox ORDER BY ctid")
    return await cursor.fetchall()


async def test_rows_stand_in_the_order_of_emission_with_all_the_router_needs(session: db.Session) -> None:
    outbox = Outbox(Registry(), namespace="1:9")
    free = [Sent({"number": number}, topic="free", key=None, event_type="") for number in range(3)]
    async with db.async_transaction(session):
        await outbox.send(session, JOB, [Sent(RECORD), *free])
    first, *others = await rows(session)
    assert (first["topic"], first["key"], first["event_type"]) == ("orders.triaged", "42", "order_triaged")
    assert (first["content_type"], first["job_id"]) == ("application/avro", 11)
    assert bytes(first["payload"])[:5] == b"\x00\x00\x00\x00\x07"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["occurred_at"])
    assert [bytes(row["payload"]) for row in others] == [b'{"number":0}', b'{"number":1}', b'{"number":2}']
    assert {row["key"] for row in others} == {None}


async def test_emitting_again_leaves_the_first_row_as_it_is(session: db.Session, clock: Any) -> None:
    outbox = Outbox(Registry(), namespace="1:9")
    await outbox.send(session, JOB, [Sent(RECORD)])
    before = await rows(session)
    clock.advance(60)
    await outbox.send(session, JOB, [Sent(RECORD)])
    assert await rows(session) == before


async def test_a_rolled_back_transaction_leaves_no_row(session: db.Session) -> None:
    outbox = Outbox(Registry(), namespace="1:9")
    with pytest.raises(RuntimeError):
        async with db.async_transaction(session):
            await outbox.send(session, JOB, [Sent(RECORD)])
            raise RuntimeError
    assert await rows(session) == []


async def test_the_registry_is_asked_once_for_each_topic_with_a_schema(session: db.Session) -> None:
    registry = Registry()
    outbox = Outbox(registry, namespace="1:9")
    for _ in range(2):
        await outbox.send(session, JOB, [Sent(RECORD), Sent({"a": 1}, topic="free"), Sent(RECORD)])
    assert registry.asked == [("orders.triaged-value", "OrderTriaged")]


async def test_a_run_that_emits_nothing_writes_nothing(session: db.Session) -> None:
    await Outbox(Registry(), namespace="1:9").send(session, JOB, [])
    assert await rows(session) == []
