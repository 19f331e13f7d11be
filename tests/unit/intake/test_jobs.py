"""Rows of jobs: lanes, days and the text that COPY takes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pydantic import BaseModel

from consumer.agents.door import Agent
from consumer.errors import Poison
from consumer.intake.jobs import KEY_TEXT_LIMIT, jobs_of, lane
from consumer.intake.own_writes import Cause
from consumer.intake.routing import Hit
from consumer.kafka import Record
from consumer.records import Change, Event, Operation, Origin

NOBODY = Cause(None, None, 0, ())
RECORD = Record("cdc.public.orders", 3, 42, b"k", b"v", None, None)
COLUMNS = (
    "payload", "kind", "lane", "key", "event", "occurred", "topic", "partition", "offset",
    "root", "parent", "depth", "chain", "unknown", "agent", "attempts",
)  # fmt: skip


class Answer(BaseModel):
    """What the agents would answer."""

    text: str


def agent(name: str) -> Agent:
    """An agent by name."""
    return Agent(name=name, version=1, answer=Answer, topics=[RECORD.topic], max_attempts=3)


def change(key: dict[str, Any] | None, *, ms: int = 1_760_000_000_123, table: str = "orders", **row: Any) -> Change:
    """An insert."""
    origin = Origin("cdc", "shop", "public", table, 1, 2, ms)
    return Change("rc1:abc", Operation.CREATE, None, row or key, key, origin)


def columns(message: Change | Event, cause: Cause = NOBODY, name: str = "a") -> dict[str, str]:
    """The one job's row, by column, as it stands in the COPY text."""
    (job,) = jobs_of(Hit(0, RECORD, message, [agent(name)]), cause)
    assert job.line.endswith(b"\n")
    return dict(zip(COLUMNS, job.line[:-1].decode().split("\t"), strict=True))


def test_the_same_row_has_one_lane_whatever_changed() -> None:
    first, second = columns(change({"id": 1}, note="x")), columns(change({"id": 1}, note="y"))
    assert first["lane"] == second["lane"]
    assert columns(change({"id": 2}))["lane"] != first["lane"]
    assert columns(change({"id": 1}, table="other"))["lane"] != first["lane"]


def test_a_lane_is_64_bits_signed_and_never_changes() -> None:
    assert lane(["public", "orders", {"id": 1}]) == -3009995959827923394
    assert -(2**63) <= lane(["public", "orders", {"id": "\udcff"}]) < 2**63


def test_rows_and_events_without_a_key_have_lanes_of_their_own() -> None:
    assert columns(change(None, note="x"))["lane"] != columns(change(None, note="x"))["lane"]
    event = Event("ob1:e", "t", None, {})
    assert columns(event)["lane"] != columns(event)["lane"]
    assert columns(event)["key"] == r"\N"


def test_a_long_key_is_shown_short_and_clean() -> None:
    shown = columns(change({"id": "a\x00" + "x" * 1000}))["key"]
    assert len(shown) == KEY_TEXT_LIMIT
    assert "\x00" not in shown
    assert columns(change({"a": 1, "b": "c"}))["key"] == "a=1, b=c"


def test_what_copy_would_misread_is_escaped() -> None:
    row = columns(change({"id": 'tab\there\nline\\ "q"'}), Cause("r\t", 7, 2, ('a"b', "c\\d")), name="na\tme")
    assert row["key"] == 'tab\\there\\nline\\\\ "q"'
    assert (row["root"], row["parent"], row["depth"]) == ("r\\t", "7", "2")
    assert row["chain"] == '{"a\\\\"b","c\\\\\\\\d"}'
    assert (row["agent"], row["attempts"]) == ("na\\tme", "3")


def test_the_day_is_the_one_the_id_fixes() -> None:
    def day(message: Change | Event) -> int | None:
        return jobs_of(Hit(0, RECORD, message, [agent("a")]), NOBODY)[0].day

    assert day(change({"id": 1}, ms=86_400_000 * 3 - 1)) == 2
    assert day(Event("ob1:e", "t", None, {})) is None
    moment = dt.datetime(1970, 1, 3, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert day(Event("ob1:e", "t", None, {}, {}, moment)) == 1
    snapshot = Change("st1:e", Operation.READ, None, {"id": 1}, None, Origin("c", "d", "s", "t", 1, 2, 3, True))
    assert day(snapshot) is None


@pytest.mark.parametrize("milliseconds", [-1, 10**15])
def test_a_commit_time_out_of_range_is_poison(milliseconds: int) -> None:
    with pytest.raises(Poison, match="out of range"):
        columns(change({"id": 1}, ms=milliseconds))
