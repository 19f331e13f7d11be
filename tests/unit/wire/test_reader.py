"""The written reader against fastavro: the same values, and for broken bytes the same value or the same error."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.errors import Poison
from consumer.wire import reader as reader_module
from consumer.wire.avro import FAULTS, Schema, parse, read
from consumer.wire.reader import reader
from tests.envelopes import ORDERS, change, framed, order

LONG = st.integers(-(2**63), 2**63 - 1)
# Numbers whose length in bytes is anything from 1 to 10.
SIZED = st.integers(0, 63).flatmap(lambda bits: st.integers(-(2**bits), 2**bits - 1))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)

Typed = tuple[Any, st.SearchStrategy[Any]]
"""A schema and its values."""

PRIMITIVES: list[Typed] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", LONG | SIZED),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("string", TEXT),
    ("bytes", st.binary(max_size=80)),
]


def _named(counter: list[int], kind: str, **more: Any) -> Schema:
    counter[0] += 1
    return {"type": kind, "name": f"n{counter[0]}", **more}


@st.composite
def typed(draw: st.DrawFn, counter: list[int], depth: int = 3) -> Typed:
    kind = draw(
        st.sampled_from(["primitive"] * 3 + ["enum", "fixed"] + ["union", "array", "map", "record"] * (depth > 0))
    )
    if kind == "primitive":
        return draw(st.sampled_from(PRIMITIVES))
    if kind == "enum":
        return _named(counter, "enum", symbols=["A", "B", "C"]), st.sampled_from(["A", "B", "C"])
    if kind == "fixed":
        return _named(counter, "fixed", size=3), st.binary(min_size=3, max_size=3)
    if kind == "record":
        fields = draw(st.lists(typed(counter, depth - 1), max_size=4))
        schema = _named(
            counter, "record", fields=[{"name": f"f{n}", "type": part} for n, (part, _) in enumerate(fields)]
        )
        return schema, st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(fields)})
    inner, values = draw(typed(counter, depth - 1).filter(lambda part: not isinstance(part[0], list)))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=5)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=4)
    return (["null", inner], st.none() | values) if inner != "null" else ("null", st.none())


@st.composite
def messages(draw: st.DrawFn) -> tuple[Schema, bytes]:
    counter = [0]
    fields = draw(st.lists(typed(counter), min_size=1, max_size=5))
    names = [f"f{n}" for n in range(len(fields))]
    schema = {
        "type": "record",
        "name": "top",
        "fields": [{"name": n, "type": t} for n, (t, _) in zip(names, fields, strict=True)],
    }
    datum = {name: draw(values) for name, (_, values) in zip(names, fields, strict=True)}
    return parse(schema), framed(1, schema, datum)


def outcome(read_it: Callable[[bytes], Any], message: bytes) -> str:
    """What came of reading, comparable where values hold NaN."""
    try:
        return repr(read_it(message))
    except (Poison, *FAULTS) as error:
        return type(error).__name__


@settings(deadline=None)
@given(messages())
def test_whatever_fastavro_writes_is_read_as_fastavro_reads_it(case: tuple[Schema, bytes]) -> None:
    schema, message = case
    function = reader_module._function(schema, {})
    assert function is not None
    datum, end = function(message, 5)
    assert end == len(message)
    assert repr(datum) == repr(read(schema, message))


@settings(deadline=None)
@given(messages(), st.data())
def test_broken_bytes_are_taken_or_refused_as_fastavro_does(case: tuple[Schema, bytes], data: st.DataObject) -> None:
    schema, message = case
    body = bytearray(message[5:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        match data.draw(st.sampled_from(["cut", "change", "insert"])):
            case "cut":
                del body[at:]
            case "change" if at < len(body):
                body[at] = data.draw(st.integers(0, 255))
            case _:
                body[at:at] = data.draw(st.binary(min_size=1, max_size=3))
    broken = message[:5] + bytes(body)
    assert outcome(reader(schema), broken) == outcome(lambda text: read(schema, text), broken)


@pytest.mark.parametrize("number", [0, -1, 63, -64, 64, -65, 8191, 8192, 2**20, -(2**20) - 1, 2**63 - 1, -(2**63)])
def test_numbers_of_every_length(number: int) -> None:
    schema = parse({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    function = reader_module._function(schema, {})
    assert function is not None
    message = framed(1, schema, {"n": number})
    assert function(message, 5) == ({"n": number}, len(message))


def test_a_negative_length_does_not_go_back_in_the_message() -> None:
    fields = [{"name": "text", "type": "string"}, {"name": "flag", "type": "boolean"}]
    schema = parse({"type": "record", "name": "R", "fields": fields})
    # Going back by one, the flag would be read from the byte before, and the message would seem to fit.
    with pytest.raises(EOFError):
        reader(schema)(b"\x00\x00\x00\x00\x01\x01\x01")


def test_a_record_that_holds_itself() -> None:
    schema = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "n", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
    }
    datum = {"n": 1, "next": {"n": 300, "next": None}}
    assert reader(parse(schema))(framed(1, schema, datum)) == datum


def test_what_is_left_out_is_passed_over_whatever_it_is() -> None:
    parts: list[Any] = [
        "long", "string", "bytes", "double", "boolean", ["null", "long"], ["null", "string"],
        {"type": "array", "items": "long"}, {"type": "map", "values": "string"},
        {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "string"}, {"name": "y", "type": "long"}]},
        {"type": "fixed", "name": "Three", "size": 3}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "null",
    ]  # fmt: skip
    values: list[Any] = [
        2**40, "é" * 99, b"\x00" * 200, 0.5, True, 2**50, "text", [1, 2**33], {"k": "v"}, {"x": "s", "y": 9}, b"abc",
        "B", None,
    ]  # fmt: skip
    fields = [{"name": f"f{n}", "type": part} for n, part in enumerate(parts)]
    schema = {"type": "record", "name": "R", "fields": [*fields, {"name": "kept", "type": "long"}]}
    message = framed(1, schema, {f"f{n}": value for n, value in enumerate(values)} | {"kept": 7})
    left_out = {"R": frozenset(f"f{n}" for n in range(len(parts)))}
    function = reader_module._function(parse(schema), left_out)
    assert function is not None
    assert function(message, 5) == ({"kept": 7}, len(message))
    assert outcome(reader(parse(schema), left_out), message[:-1]).startswith("EOFError")


def test_names_and_symbols_are_data_never_code() -> None:
    """fastavro refuses such names in a record; symbols and a field of a lax registry must not become statements."""
    hostile = 'x\']; raise SystemExit  #\n"""'
    schema: Schema = {"type": "record", "name": "R", "fields": [{"name": hostile, "type": "long"}]}
    assert reader(schema)(b"\x00\x00\x00\x00\x01\x0e") == {hostile: 7}
    enum: Schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "e", "type": {"type": "enum", "name": "E", "symbols": [hostile]}}],
    }
    assert reader(enum)(b"\x00\x00\x00\x00\x01\x00") == {"e": hostile}


def test_a_schema_too_deep_for_a_function_is_read_by_fastavro() -> None:
    schema: Any = "long"
    for _ in range(30):
        schema = {"type": "array", "items": schema}
    record = {"type": "record", "name": "R", "fields": [{"name": "deep", "type": schema}]}
    assert reader_module._function(parse(record), {}) is None
    assert reader(parse(record))(framed(1, record, {"deep": []})) == {"deep": []}


def test_the_envelope_of_a_change() -> None:
    schema = parse(ORDERS.value_schema)
    message = change(ORDERS, "u", before=order(1), after=order(2, note=None), total_order=3).value
    assert message is not None
    function = reader_module._function(schema, {})
    assert function is not None
    body = fastavro.schemaless_reader(io.BytesIO(message[5:]), schema)
    assert function(message, 5) == (body, len(message))
