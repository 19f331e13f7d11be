"""What a trigger can ask of a change, and what a column list lets through."""

from __future__ import annotations

import datetime as dt
import logging
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from consumer.agents.door import Agent, Coalesce
from consumer.errors import AgentError, ConfigurationError
from consumer.records import UNCHANGED, UNKNOWN_COLUMN, Change, Event, Operation, Origin, ReadRow
from consumer.records import change as changes

ROW = {"id": 1, "status": "paid", "amount": Decimal("2.50"), "note": None, "doc": {"a": [1]}, "f": 0.5}


class Answer(BaseModel):
    """What the agents would answer."""

    text: str


def change(operation: str, before: Any, after: Any) -> Change:
    """A change of public.orders."""
    return Change(
        "rc1:a", Operation(operation), before, after, {"id": 1}, Origin("cdc", "shop", "public", "orders", 1, 2, 3)
    )


def update(**after: Any) -> Change:
    """An update of ROW."""
    return change("u", ROW, ROW | after)


def agent(*columns: str, **options: Any) -> Agent:
    """An agent that watches columns."""
    return Agent(name="a", version=1, answer=Answer, columns=columns, **options)


def test_a_column_list_wakes_for_its_columns_only() -> None:
    watching = agent("status", "note")
    assert watching.wants(update(status="shipped"))
    assert watching.wants(update(note="x"))
    assert not watching.wants(update(amount=Decimal(3)))
    assert not watching.wants(update())


@pytest.mark.parametrize("operation", ["c", "r", "d", "t"])
def test_inserts_and_deletes_count_for_a_column_list(operation: str) -> None:
    before, after = {"c": (None, ROW), "r": (None, ROW), "d": (ROW, None), "t": (None, None)}[operation]
    assert agent("status").wants(change(operation, before, after))


def test_events_pass_a_column_list() -> None:
    assert agent("status").wants(Event("ob1:e", "t", None, {}))


def test_when_is_asked_after_the_columns_and_only_then() -> None:
    watching, asked = agent("status"), list[Any]()

    @watching.when
    def when(message: Any) -> bool:
        asked.append(message)
        return False

    assert not watching.wants(update(note="x")) and asked == []
    assert not watching.wants(update(status="shipped")) and len(asked) == 1


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (None, None, False),
        (None, 0, True),
        ("", None, True),
        (float("nan"), float("nan"), False),
        (Decimal("NaN"), Decimal("NaN"), False),
        (float("nan"), 1.0, True),
        (Decimal("1.50"), Decimal("1.5"), False),
        ({"a": 1}, {"a": True}, True),
        ([1, [float("nan")]], [1, [float("nan")]], False),
        ([1], [1, 2], True),
        ({"a": None}, {}, True),
        ("long", UNCHANGED, False),
        (UNCHANGED, UNCHANGED, False),
        (UNCHANGED, "long", True),
    ],
)
def test_a_column_changed_when_its_value_did(before: Any, after: Any, differs: bool) -> None:
    made = change("u", {"id": 1, "x": before}, {"id": 1, "x": after})
    assert made.changed("x") is differs
    assert agent("id", "x").wants(made) is differs


def test_a_column_added_to_the_table_is_no_change_while_it_is_null() -> None:
    assert not change("u", {"id": 1}, {"id": 1, "new": None}).changed("new")
    assert change("u", {"id": 1}, {"id": 1, "new": 1}).changed("new")


def test_was_and_became_see_the_way() -> None:
    made = update(status="shipped")
    assert made.was("status", "paid") and made.became("status", "shipped")
    assert not made.was("status", "open") and not made.became("status", "paid")
    assert not update().became("status", "paid")
    assert change("c", None, ROW).became("status", "paid") and not change("c", None, ROW).was("status", "paid")
    assert change("d", ROW, None).was("status", "paid") and not change("d", ROW, None).became("status", "paid")
    assert update(note="x").was("note", None)


def test_rose_and_fell_compare_numbers() -> None:
    assert update(amount=Decimal(3)).rose("amount") and not update(amount=Decimal(3)).fell("amount")
    assert update(amount=Decimal(1)).fell("amount") and not update(amount=None).fell("amount")
    assert not update(note=5).rose("note") and not change("c", None, ROW).rose("amount")


def test_operations_have_names() -> None:
    kinds = [(made.inserted, made.updated, made.deleted) for made in (change(o, None, None) for o in "crudt")]
    assert kinds == [(True, False, False)] * 2 + [(False, True, False)] + [(False, False, True)] * 2


def test_an_old_row_that_is_not_known_counts_as_changed_and_is_told_once_a_table(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_TOLD", set())
    made = change("u", None, ROW)
    with caplog.at_level(logging.WARNING):
        assert agent("status").wants(made) and agent("status").wants(made)
        assert made.changed("status") and made.became("status", "paid") and made.was("status", "open")
        assert made.rose("amount") and not made.became("status", "open")
    (line,) = [record for record in caplog.records if "REPLICA IDENTITY FULL" in record.getMessage()]
    assert "public.orders" in line.getMessage()


@pytest.mark.parametrize("asked", ["changed", "was", "became", "rose", "fell"])
def test_a_misspelt_column_is_an_error_and_never_silence(asked: str) -> None:
    arguments = ("statsu", "paid") if asked in ("was", "became") else ("statsu",)
    with pytest.raises(AgentError, match=r"public\.orders has no column 'statsu'; it has amount, .*status") as caught:
        getattr(update(), asked)(*arguments)
    assert caught.value.code == UNKNOWN_COLUMN
    with pytest.raises(AgentError):
        agent("id", "statsu").wants(update(note="x"))
    assert agent("status", "statsu").wants(update(status="shipped"))


def test_columns_that_woke_the_agent_are_columns_it_read() -> None:
    after = ReadRow(ROW | {"status": "shipped"})
    assert agent("status").wants(change("u", ROW, after))
    assert after.read == {"status"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "status"}, r'write columns=\["status"\]'),
        ({"columns": ["status", ""]}, "holds ''"),
        ({"columns": ["status", 3]}, "holds 3"),
        ({"columns": {"status": 1}}, "must be a list of names, not dict"),
        ({"coalesce": Coalesce(dt.timedelta(0))}, "above 0"),
        ({"coalesce": Coalesce(dt.timedelta(days=8))}, "at most 7 days"),
        ({"coalesce": Coalesce(dt.timedelta(30), max_wait=dt.timedelta(1))}, "at most 7 days"),
        ({"coalesce": Coalesce(dt.timedelta(seconds=30), max_wait=dt.timedelta(seconds=1))}, "at least the window"),
    ],
)
def test_a_trigger_that_cannot_work_is_refused_at_start(options: dict[str, Any], said: str) -> None:
    made = Agent(name="a", version=1, answer=Answer, **options)

    @made.run
    async def run(ctx: object, message: object) -> Answer:
        return Answer(text="")

    with pytest.raises(ConfigurationError, match=said):
        made.check()
