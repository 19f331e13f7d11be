"""The stored input: whatever a message holds comes back, by the fast way and by the codec's."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.records import UNCHANGED, Change, Coordinates, Event, Infinity, Operation, Origin, payload

ORIGIN = Origin("cdc", "shop", "public", "orders", 771, 26_720_104, 1_760_000_000_000)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(max_size=20),
    st.decimals(allow_nan=False),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([UNCHANGED, Infinity.POSITIVE, Infinity.NEGATIVE, "a\x00b", "\udcff", "$rc1"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
names = st.text(min_size=1) | st.sampled_from(["$rc1", "v", "a\x00"])
rows = st.none() | st.dictionaries(names, values, max_size=6)


@given(before=rows, after=rows, key=rows)
def test_a_change_comes_back_as_it_was(before: Any, after: Any, key: Any) -> None:
    change = Change("rc1:1", Operation.UPDATE, before, after, key, ORIGIN, Coordinates("t", 1, 2))
    text = payload.write(change)
    assert payload.read("change", text, event_id="rc1:1", topic="t", partition=1, offset=2) == change
    assert "\\u0000" not in text.replace("\\\\", "")
    json.loads(text)


@given(data=values, headers=st.dictionaries(st.text(), st.text(st.characters()), max_size=3))
def test_an_event_comes_back_as_it_was(data: Any, headers: dict[str, str]) -> None:
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    event = Event("ob1:x", "t", "k", data, headers, moment, Coordinates("t", 0, 9))
    stored = payload.write(event)
    read = payload.read("event", stored, event_id="ob1:x", topic="t", partition=0, offset=9, occurred_at=moment)
    assert read == event


def test_not_a_number_comes_back() -> None:
    change = Change("i", Operation.CREATE, None, {"x": float("nan"), "y": Decimal("NaN")}, None, ORIGIN)
    read = payload.read("change", payload.write(change), event_id="i")
    assert isinstance(read, Change) and read.after is not None
    assert read.after["x"] != read.after["x"]
    assert read.after["y"].is_nan()


def test_the_fast_way_and_the_codec_tag_alike() -> None:
    row = {
        "n": 1, "b": True, "s": "ü", "f": 0.5, "d": Decimal("1.50"), "bytes": b"\x00", "day": dt.date(2026, 1, 1),
        "t": dt.time(1, 2), "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "for": dt.timedelta(microseconds=7),
    }  # fmt: skip
    fast = json.loads(payload.write(Change("i", Operation.CREATE, None, row, None, ORIGIN)))
    slow = json.loads(payload.write(Change("i", Operation.CREATE, None, row | {"u": uuid.UUID(int=1)}, None, ORIGIN)))
    del slow["after"]["u"]
    assert fast == slow


def test_a_queued_job_is_an_event_around_its_payload() -> None:
    event = payload.read("payload", '{"repository": "a/b"}', event_id="job:1", key="k")
    assert event == Event("job:1", None, "k", {"repository": "a/b"})


@pytest.mark.parametrize("text", ["{}", '{"op": "x"}', "[]", "3", "not json"])
def test_a_text_that_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        payload.read("change", text, event_id="i")
