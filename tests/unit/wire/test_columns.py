"""The type table: each wire form and the Python value it must become."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer import records
from consumer.errors import Poison
from consumer.records import UNCHANGED, Change, Coordinates, Infinity
from consumer.wire import PLACEHOLDER, Decoder
from consumer.wire.columns import json_text
from tests.envelopes import (
    DATE,
    INT16,
    JSON,
    MICRO_TIME,
    MICRO_TIMESTAMP,
    UUID,
    VARIABLE_SCALE_DECIMAL,
    ZONED_TIMESTAMP,
    Column,
    Table,
    array_of,
    change,
    connect_decimal,
    named,
    unscaled,
)

ID = Column("id", "long", optional=False)
TIME = "io.debezium.time."
DATA = "io.debezium.data."
CONNECT = "org.apache.kafka.connect.data."
POINT = named(
    {
        "type": "record",
        "name": "Point",
        "namespace": "io.debezium.data.geometry",
        "fields": [
            {"name": "x", "type": "double"},
            {"name": "y", "type": "double"},
            {"name": "wkb", "type": ["null", "bytes"]},
            {"name": "srid", "type": ["null", "int"]},
        ],
    },
    "io.debezium.data.geometry.Point",
)
GEOMETRY = named(
    {
        "type": "record",
        "name": "Geometry",
        "namespace": "io.debezium.data.geometry",
        "fields": [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"]}],
    },
    "io.debezium.data.geometry.Geometry",
)
ENTRY = {
    "type": "record",
    "name": "MapEntry",
    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "double"}],
}
SPARSE = named(
    {
        "type": "record",
        "name": "SparseVector",
        "fields": [
            {"name": "dimensions", "type": "int"},
            {"name": "vector", "type": {"type": "array", "items": ENTRY}},
        ],
    },
    "io.debezium.data.SparseVector",
)
UTC = dt.UTC
A0 = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def through(kind: Any, *values: Any, op: str = "c") -> list[Any]:
    """Send values of one column type through the decoder, all with one plan."""
    table = Table("kinds", [ID, Column("value", kind)])
    decoder = Decoder(table.schemas.__getitem__, epoch="1")
    found = []
    for number, value in enumerate(values):
        message = change(table, op, after={"id": number, "value": value})
        record = decoder.decode(message.key, message.value, None, Coordinates(table.topic, 0, number))
        assert isinstance(record, Change)
        assert record.after is not None
        found.append(record.after["value"])
    return found


@pytest.mark.parametrize(
    ("kind", "wire", "expected"),
    [
        ("boolean", True, True),
        (INT16, -32768, -32768),
        ("int", 2**31 - 1, 2**31 - 1),
        ("long", -(2**63), -(2**63)),
        ("double", math.inf, math.inf),
        ("float", 1.5, 1.5),
        ("string", "char(5)", "char(5)"),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        (connect_decimal(2, 6), unscaled(-1), Decimal("-0.01")),
        (connect_decimal(2, 6), unscaled(150), Decimal("1.50")),
        (connect_decimal(5, 3), unscaled(123), Decimal("0.00123")),
        (connect_decimal(-2, 3), unscaled(-12), Decimal("-12e2")),
        (connect_decimal(3, 5), unscaled(10**60 + 1), Decimal("1" + "0" * 57 + ".001")),
        (VARIABLE_SCALE_DECIMAL, {"scale": 4, "value": unscaled(-12345)}, Decimal("-1.2345")),
        (VARIABLE_SCALE_DECIMAL, {"scale": 0, "value": unscaled(7)}, Decimal(7)),
        (DATE, 17109, dt.date(2016, 11, 4)),
        (DATE, -2147472692, Infinity.POSITIVE),
        (DATE, -2147472691, Infinity.NEGATIVE),
        (DATE, 6585322, "+20000-01-01"),
        (DATE, -719163, "+0000-12-31"),
        (DATE, -2440550, "-4712-01-01"),
        (named("int", TIME + "Time"), 36672123, dt.time(10, 11, 12, 123000)),
        (MICRO_TIME, 42690123789, dt.time(11, 51, 30, 123789)),
        (MICRO_TIME, 86_400_000_000, dt.timedelta(days=1)),
        (named("long", TIME + "NanoTime"), 42690123789000, dt.time(11, 51, 30, 123789)),
        (named("string", TIME + "ZonedTime"), "11:51:30.123789Z", dt.time(11, 51, 30, 123789, tzinfo=UTC)),
        (named("string", TIME + "ZonedTime"), "24:00:00Z", dt.timedelta(days=1)),
        (named("long", TIME + "Timestamp"), 1478260290123, dt.datetime(2016, 11, 4, 11, 51, 30, 123000)),
        (named("long", TIME + "Timestamp"), 9223372036825200, Infinity.POSITIVE),
        (MICRO_TIMESTAMP, 1478260290123456, dt.datetime(2016, 11, 4, 11, 51, 30, 123456)),
        (MICRO_TIMESTAMP, -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (MICRO_TIMESTAMP, 9223372036825200000, Infinity.POSITIVE),
        (MICRO_TIMESTAMP, -9223372036832400000, Infinity.NEGATIVE),
        (MICRO_TIMESTAMP, 568971820800000000, "+20000-01-01T00:00:00.000000"),
        (named("long", TIME + "NanoTimestamp"), 1478260290123456000, dt.datetime(2016, 11, 4, 11, 51, 30, 123456)),
        (named("long", TIME + "NanoTimestamp"), 2**63 - 1, Infinity.POSITIVE),
        (named("long", TIME + "NanoTimestamp"), -(2**63), Infinity.NEGATIVE),
        (ZONED_TIMESTAMP, "2016-11-04T11:51:30.123456Z", dt.datetime(2016, 11, 4, 11, 51, 30, 123456, tzinfo=UTC)),
        (ZONED_TIMESTAMP, "2016-11-04T11:51:30Z", dt.datetime(2016, 11, 4, 11, 51, 30, tzinfo=UTC)),
        (ZONED_TIMESTAMP, "infinity", Infinity.POSITIVE),
        (ZONED_TIMESTAMP, "-infinity", Infinity.NEGATIVE),
        (ZONED_TIMESTAMP, "+21016-11-04T06:51:30.000000Z", "+21016-11-04T06:51:30.000000Z"),
        (ZONED_TIMESTAMP, "-4713-12-31T23:59:59.999999Z", "-4713-12-31T23:59:59.999999Z"),
        (named("string", TIME + "IsoDate"), "2017-09-15Z", dt.date(2017, 9, 15)),
        (named("string", TIME + "IsoTime"), "04:05:11.789Z", dt.time(4, 5, 11, 789000)),
        (named("string", TIME + "IsoTimestamp"), "2017-09-15T04:05:11Z", dt.datetime(2017, 9, 15, 4, 5, 11)),
        (named("int", CONNECT + "Date"), 17109, dt.date(2016, 11, 4)),
        (named("int", CONNECT + "Time"), 86_400_000, dt.timedelta(days=1)),
        (named("long", CONNECT + "Timestamp"), 1478260290123, dt.datetime(2016, 11, 4, 11, 51, 30, 123000)),
        (named("long", TIME + "MicroDuration"), 90_000_000, dt.timedelta(seconds=90)),
        (named("string", TIME + "Interval"), "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
        (UUID, A0, uuid.UUID(A0)),
        (JSON, '{"bar": [1, 2.5]}', {"bar": [1, 2.5]}),
        (JSON, "null", None),
        (JSON, '"text"', "text"),
        (JSON, "123456789012345678901234", 123456789012345678901234),
        (JSON, '"\\ud800"', "\ud800"),
        (named("string", DATA + "Xml"), "<a/>", "<a/>"),
        (named("string", DATA + "Ltree"), "a.b", "a.b"),
        (named("string", DATA + "Tsvector"), "'a' 'b'", "'a' 'b'"),
        (named("string", DATA + "Enum", allowed="a,b"), "a value added later", "a value added later"),
        (named("bytes", DATA + "Bits", length="12"), b"\x03\x08", 0b1000_0000_0011),
        (named("bytes", DATA + "Bits", length="2"), b"", 0),
        (array_of("int"), [1, None], [1, None]),
        (array_of(connect_decimal(2, 5)), [unscaled(110), None], [Decimal("1.10"), None]),
        (array_of(UUID), [A0, None], [uuid.UUID(A0), None]),
        (array_of(DATE), [17109, -2147472692], [dt.date(2016, 11, 4), Infinity.POSITIVE]),
        ({"type": "map", "values": ["null", "string"]}, {"a": "1", "b": None}, {"a": "1", "b": None}),
        (POINT, {"x": 1.0, "y": 2.0, "wkb": None, "srid": None}, {"x": 1.0, "y": 2.0}),
        (GEOMETRY, {"wkb": b"\x01", "srid": 4326}, {"wkb": b"\x01", "srid": 4326}),
        (named({"type": "array", "items": "float"}, DATA + "FloatVector"), [0.5, 1.0], [0.5, 1.0]),
        (
            SPARSE,
            {"dimensions": 9, "vector": [{"key": 3, "value": 0.5}]},
            {"dimensions": 9, "vector": {"3": 0.5}},
        ),
    ],
)  # fmt: skip
def test_value_on_the_wire_becomes_its_python_value(kind: Any, wire: Any, expected: Any) -> None:
    (found,) = through(kind, wire)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, Decimal):
        assert found.as_tuple() == expected.as_tuple()
    assert records.decode(records.encode(found)) == expected


@pytest.mark.parametrize(
    "kind",
    ["boolean", "long", "string", "bytes", connect_decimal(2, 5), DATE, MICRO_TIMESTAMP, UUID, JSON, array_of("int")],
)
def test_null_stays_none(kind: Any) -> None:
    assert through(kind, None) == [None]


def test_nan_stays_nan() -> None:
    assert math.isnan(through("double", math.nan)[0])


CODES = list(PLACEHOLDER.encode())


@pytest.mark.parametrize(
    ("kind", "placeholder", "ordinary"),
    [
        ("string", PLACEHOLDER, f"says {PLACEHOLDER}"),
        (named("string", DATA + "Xml"), PLACEHOLDER, "<a/>"),
        (JSON, PLACEHOLDER, '{"a": 1}'),
        (JSON, f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', "[]"),
        ("bytes", PLACEHOLDER.encode(), b"bytes"),
        (array_of("string"), [PLACEHOLDER], [PLACEHOLDER, "more"]),
        (array_of(JSON), [PLACEHOLDER], ["1"]),
        (array_of("int"), CODES, [1]),
        (array_of("long"), CODES, [1]),
        (array_of(DATE), CODES, [1]),
        (array_of(UUID), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], [A0]),
        ({"type": "map", "values": ["null", "string"]}, {PLACEHOLDER: PLACEHOLDER}, {"a": None}),
    ],
)
def test_unchanged_toast_value_is_never_taken_for_a_value(kind: Any, placeholder: Any, ordinary: Any) -> None:
    """In both images, in one plan with ordinary values before and after it."""
    found = through(kind, ordinary, placeholder, ordinary, op="u")
    assert found[1] is UNCHANGED
    assert found[0] is not UNCHANGED
    assert found[0] == found[2]


def test_uuid_placeholder_is_a_value_in_an_array_of_text() -> None:
    text = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
    assert through(array_of("string"), [text]) == [[text]]


def test_unchanged_values_stand_beside_converted_ones() -> None:
    table = Table(
        "docs", [ID, Column("body", "string"), Column("at", MICRO_TIMESTAMP), Column("price", connect_decimal(2, 9))]
    )
    row = {"id": 1, "body": PLACEHOLDER, "at": 0, "price": unscaled(5)}
    message = change(table, "u", before=row | {"body": "old"}, after=row)
    record = Decoder(table.schemas.__getitem__, epoch="1").decode(
        message.key, message.value, None, Coordinates(table.topic, 0, 0)
    )
    assert isinstance(record, Change)
    assert record.after == {"id": 1, "body": UNCHANGED, "at": dt.datetime(1970, 1, 1), "price": Decimal("0.05")}
    assert record.before is not None
    assert record.before["body"] == "old"
    assert not record.changed("body")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (named("string", "io.debezium.time.StructuredDate"), "io.debezium.time.StructuredDate"),
        (named("string", "io.debezium.time.Date"), "io.debezium.time.Date as Avro string"),
        (array_of(named("int", "com.example.Celsius")), "com.example.Celsius"),
        ({"type": "record", "name": "Composite", "fields": [{"name": "a", "type": "int"}]}, "record"),
        ({"type": "enum", "name": "Mood", "symbols": ["A"]}, "enum"),
    ],
)
def test_unknown_type_is_refused_by_column_and_name(kind: Any, name: str) -> None:
    value: Any = {"a": 1} if name == "record" else "A" if name == "enum" else [1] if "Celsius" in name else "x"
    with pytest.raises(Poison) as error:
        through(kind, value)
    assert error.value.code == "unsupported_type"
    assert "value" in str(error.value)
    assert name in str(error.value)


@given(st.integers(-(10**80), 10**80), st.integers(0, 60))
def test_decimals_are_exact(number: int, scale: int) -> None:
    (found,) = through(connect_decimal(scale, 38), unscaled(number))
    assert found == Decimal(f"{number}e-{scale}")
    assert found.as_tuple().exponent == -scale


@given(st.integers(-(2**63), 2**63 - 1))
def test_no_timestamp_is_an_error(microseconds: int) -> None:
    (found,) = through(MICRO_TIMESTAMP, microseconds)
    if isinstance(found, dt.datetime):
        assert (found - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) == microseconds
    else:
        assert isinstance(found, str | Infinity)


@given(st.integers(-(2**31), 2**31 - 1))
def test_no_date_is_an_error(days: int) -> None:
    (found,) = through(DATE, days)
    if isinstance(found, dt.date):
        assert (found - dt.date(1970, 1, 1)).days == days
    else:
        assert isinstance(found, str | Infinity)


def test_time_of_day_out_of_range_is_refused() -> None:
    with pytest.raises(Poison):
        through(MICRO_TIME, 86_400_000_001)


def test_json_integer_of_thousands_of_digits_is_kept() -> None:
    assert json_text("1" * 5000) == Decimal("1" * 5000)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity, "b": 1234567890123456789012}'])
def test_json_column_never_gives_nan(text: str) -> None:
    with pytest.raises(Poison):
        through(JSON, text)
