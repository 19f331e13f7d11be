"""The stored form of values: every value type comes back as it was, in a form that Postgres' json takes."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.records import UNCHANGED, Change, Event, Infinity, Operation, Origin, decode, encode, payload
from consumer.records.codec import TAG
from consumer.records.jobs import ERROR_LIMIT, storable

# Any code point, NUL and lone surrogates included.
TEXT = st.text(st.characters(codec=None, exclude_categories=()))
# To the second, as Postgres has them; Python cannot read back the offsets of microseconds that it writes.
OFFSETS = st.integers(-15 * 3600, 15 * 3600).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
ZONES = st.none() | OFFSETS
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 64), 1 << 64),
    st.floats(),
    TEXT,
    st.binary(),
    st.decimals(allow_nan=True, allow_infinity=True),
    st.dates(),
    st.times(timezones=ZONES),
    st.datetimes(timezones=ZONES),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([UNCHANGED, *Infinity]),
)
KEYS = st.one_of(TEXT, st.sampled_from([TAG, "$rc", "$rc2", "v", ""]))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20)


def same(left: Any, right: Any) -> bool:
    """Equal in value and type; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float | Decimal):
        return repr(left) == repr(right) or bool(math.isnan(left) and math.isnan(right))
    if isinstance(left, dt.datetime | dt.time):
        return bool(left.isoformat() == right.isoformat())
    return bool(left == right)


@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(VALUES)
def test_what_is_stored_is_json_without_nul_surrogates_or_a_number_beyond_64_bits(value: Any) -> None:
    text = encode(value)
    text.encode()
    assert "\x00" not in text and "\\u0000" not in text and "\\ud8" not in text.lower().replace("\\\\", "")

    def whole(number: str) -> int:
        assert -(1 << 63) <= int(number) < 1 << 64
        return int(number)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(text, parse_int=whole, parse_constant=refuse)


@pytest.mark.parametrize("value", [{"a": [1, 2.5, "x", None, True]}, [], {}, "text", 0, {"v": {"w": 1}}])
def test_plain_values_are_stored_as_themselves(value: Any) -> None:
    assert json.loads(encode(value)) == value


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    """A str with another base."""


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Name("n"), "n"),
        ((1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
    ],
)
def test_relatives_of_a_value_are_stored_as_it(value: Any, stored: Any) -> None:
    assert same(decode(encode(value)), stored)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, encode, [object()], {"a": object()}])
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_an_unknown_tag_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="unknown tag"):
        decode('{"$rc1": "later", "v": 1}')


@given(TEXT)
def test_any_text_can_be_made_storable(text: str) -> None:
    cleaned = storable(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert len(text) > ERROR_LIMIT or len(cleaned) == len(text)


def test_a_huge_text_is_cut_and_says_how_long_it_was() -> None:
    cleaned = storable("x\x00\ud800" * 1_000_000)
    assert len(cleaned) < ERROR_LIMIT + 50 and cleaned.endswith("(3000000 characters)")


ORIGINS = st.builds(
    Origin,
    connector=st.just("cdc"),
    database=st.text(max_size=5),
    schema=st.text(max_size=5),
    table=st.text(max_size=5),
    txid=st.none() | st.integers(0, (1 << 32) - 1),
    lsn=st.none() | st.integers(0, (1 << 63) - 1),
    committed_ms=st.integers(0, 1 << 50),
    snapshot=st.booleans(),
)
ROWS = st.none() | st.dictionaries(KEYS, VALUES, max_size=5)
MESSAGES = st.one_of(
    st.builds(
        Change, id=st.just("rc1:x"), operation=st.sampled_from(Operation), before=ROWS, after=ROWS, key=ROWS,
        origin=ORIGINS,
    ),
    st.builds(
        Event, id=st.just("ob1:x"), topic=st.just("t"), key=st.none() | TEXT, data=VALUES,
        headers=st.dictionaries(TEXT, TEXT, max_size=3),
    ),
)  # fmt: skip


@given(MESSAGES)
def test_a_stored_message_is_the_same_message_again(message: Change | Event) -> None:
    again = payload.read(payload.kind_of(message), payload.write(message), event_id=message.id, topic="t")
    assert type(again) is type(message)
    if isinstance(message, Change) and isinstance(again, Change):
        assert all(same(getattr(again, part), getattr(message, part)) for part in ("before", "after", "key"))
        assert (again.operation, again.origin, again.id) == (message.operation, message.origin, message.id)
    elif isinstance(message, Event) and isinstance(again, Event):
        assert same(again.data, message.data) and again.headers == message.headers and again.key == message.key


def test_an_integer_written_by_hand_is_exact_whatever_its_length() -> None:
    assert decode('{"n": 12345678901234567890123}') == {"n": 12345678901234567890123}
    assert decode("[9223372036854775807, -9223372036854775809]") == [9223372036854775807, -9223372036854775809]
