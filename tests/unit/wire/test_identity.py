"""Event IDs: fixed for ever, equal for the same change, different for any other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.errors import Poison
from consumer.records import Change, Coordinates, Event
from consumer.wire import Decoder
from tests.envelopes import ORDERS, UUID, Column, Message, Table, array_of, change, connect_decimal, order, unscaled

KEYLESS = Table("log", [Column("line", "string")], key=())
COMPOUND = Table(
    "prices",
    [
        Column("sku", "string", optional=False),
        Column("price", connect_decimal(2, 8), optional=False),
        Column("blob", "bytes", optional=False),
        Column("size", "double", optional=False),
        Column("tag", UUID, optional=False),
        Column("parts", array_of("bytes"), optional=False),
    ],
    key=("tag", "price", "blob", "size", "sku", "parts"),
)
COMPOUND_ROW = {
    "sku": 'ä\x00"',
    "price": unscaled(-150),
    "blob": b"\x00\xff",
    "size": float("nan"),
    "tag": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
    "parts": [b"\x01", None],
}


def decode(message: Message, table: Table = ORDERS, offset: int = 0, epoch: str = "1", **options: Any) -> Change:
    decoder = Decoder(table.schemas.__getitem__, epoch=epoch, **options)
    record = decoder.decode(message.key, message.value, message.headers, Coordinates(message.topic, 0, offset))
    assert isinstance(record, Change)
    return record


def event_id(header: bytes | str | None, namespace: str = "rowcall") -> str:
    decoder = Decoder(ORDERS.schemas.__getitem__, epoch="1", namespace=namespace)
    headers: list[tuple[str, Any]] = [] if header is None else [("id", header)]
    record = decoder.decode(b"k", b'{"a":1}', headers, Coordinates("orders.triaged", 0, 0))
    assert isinstance(record, Event)
    return record.id


@pytest.mark.parametrize(
    ("message", "table", "expected"),
    [
        (change(ORDERS, "c", after=order(42)), ORDERS, "rc1:bffff73070dc802bfc0bc11dc01ca884"),
        (change(ORDERS, "d", before=order(42)), ORDERS, "rc1:0ba7e2edc4668583e6a7e9342c3cd24c"),
        (change(ORDERS, "r", after=order(42)), ORDERS, "st1:0f00a24323f7939938ee3593f009021f"),
        (change(ORDERS, "t"), ORDERS, "rc1:affe078beabad486f28b84ac694ff4eb"),
        (change(KEYLESS, "c", after={"line": "a"}, total_order=3), KEYLESS, "rc1:e3a9278b5a4a97656c51dc9d9aa16d39"),
        (change(COMPOUND, "c", after=COMPOUND_ROW), COMPOUND, "rc1:7fa068651fc39057c6e1098ed5e992e2"),
    ],
    ids=["create", "delete", "snapshot", "truncate", "keyless", "compound"],
)
def test_recipes_never_change(message: Message, table: Table, expected: str) -> None:
    assert decode(message, table).id == expected


def test_compound_key_enters_as_it_travelled() -> None:
    """Decimals as unscaled:scale, bytes as hex, floats as text, strings untouched, in the key schema's order."""
    from hashlib import sha256

    import orjson

    key = ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "-150:2", "00ff", "nan", 'ä\x00"', ["01", None]]
    identity = ["1", "cdc", "shop", "public", "prices", 771, 26_720_104, 1_760_000_000_000, "c", key, None]
    expected = "rc1:" + sha256(orjson.dumps(identity)).hexdigest()[:32]
    assert decode(change(COMPOUND, "c", after=COMPOUND_ROW), COMPOUND).id == expected


@settings(deadline=None)
@given(
    offset=st.integers(0, 2**60),
    partition_key_id=st.integers(1, 2**31),
    value_id=st.integers(1, 2**31),
    envelope_ms=st.integers(0, 2**40),
    sequence=st.none() | st.text(),
    xmin=st.none() | st.integers(0, 2**40),
    note=st.none() | st.text(),
    total_order=st.none() | st.integers(0, 2**31),
)
def test_same_change_has_same_id_however_it_comes_again(
    offset: int,
    partition_key_id: int,
    value_id: int,
    envelope_ms: int,
    sequence: str | None,
    xmin: int | None,
    note: str | None,
    total_order: int | None,
) -> None:
    if partition_key_id == value_id:
        value_id += 1
    first = decode(change(ORDERS, "u", after=order(7), before=order(7)))
    again = Table("orders", ORDERS.columns, key_id=partition_key_id, value_id=value_id)
    row = order(7, note=note)  # the row image may differ: a refreshed schema or a reselected column
    message = change(
        again, "u", before=order(7), after=row, envelope_ms=envelope_ms, total_order=total_order, sequence=sequence,
        xmin=xmin, version="3.7.0.Final", ts_us=1, ts_ns=None,
    )  # fmt: skip
    moved = Message("another.topic", message.key, message.value, message.headers)
    assert decode(moved, again, offset).id == first.id


@pytest.mark.parametrize(
    "other",
    [
        {"lsn": 26_720_105},
        {"lsn": None},
        {"txId": 772},
        {"ts_ms": 1_760_000_000_001},
        {"name": "cdc2"},
        {"db": "shop2"},
        {"schema": "private"},
        {"table": "orders2"},
    ],
)
def test_any_other_part_of_the_identity_gives_another_id(other: dict[str, Any]) -> None:
    assert decode(change(ORDERS, "c", after=order(7), **other)).id != decode(change(ORDERS, "c", after=order(7))).id


def test_operation_key_and_epoch_are_part_of_the_id() -> None:
    ids = {
        decode(change(ORDERS, "c", after=order(7))).id,
        decode(change(ORDERS, "u", after=order(7))).id,
        decode(change(ORDERS, "d", before=order(7))).id,
        decode(change(ORDERS, "c", after=order(8))).id,
        decode(change(ORDERS, "c", after=order(7)), epoch="2").id,
    }
    assert len(ids) == 5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("cud"), st.integers(0, 3)), unique=True, max_size=8))
def test_different_changes_have_different_ids(changes: list[tuple[int, str, int]]) -> None:
    ids = set()
    for lsn, op, number in changes:
        image = {"before" if op == "d" else "after": order(number)}
        ids.add(decode(change(ORDERS, op, lsn=lsn, before=image.get("before"), after=image.get("after"))).id)
    assert len(ids) == len(changes)


def test_identical_rows_without_a_key_are_told_apart_by_their_place_in_the_transaction() -> None:
    one, two = (decode(change(KEYLESS, "c", after={"line": "a"}, total_order=n), KEYLESS) for n in (1, 2))
    assert one.id != two.id
    assert one.key is None


@pytest.mark.parametrize(
    ("table", "options"), [(KEYLESS, {}), (ORDERS, {"custom_keys": ["public.orders"]})], ids=["keyless", "custom"]
)
def test_row_without_identity_is_refused(table: Table, options: dict[str, Any]) -> None:
    row = {"line": "a"} if table is KEYLESS else order(1)
    with pytest.raises(Poison) as error:
        decode(change(table, "c", after=row), table, **options)
    assert error.value.code == "no_row_identity"


def test_custom_key_takes_the_place_in_the_transaction_too() -> None:
    messages = [change(ORDERS, "c", after=order(1), total_order=n) for n in (1, 2)]
    one, two = (decode(message, custom_keys=["public.orders"]) for message in messages)
    assert one.id != two.id


def test_truncate_needs_no_row_identity() -> None:
    """And transaction metadata switched on later does not give the same truncate another ID."""
    assert decode(change(ORDERS, "t")).id == decode(change(ORDERS, "t", total_order=5)).id


def test_snapshot_row_is_known_by_its_content() -> None:
    first = decode(change(ORDERS, "r", after=order(7), snapshot="first"))
    again = decode(change(ORDERS, "r", after=order(7), lsn=None, txId=None, ts_ms=5, snapshot="incremental"))
    other = decode(change(ORDERS, "r", after=order(7, note="changed"), snapshot="first"))
    assert first.id == again.id != other.id
    assert first.origin.snapshot
    assert first.id.startswith("st1:")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "ob1:rowcall:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (b'"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"', "ob1:rowcall:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (b'{"schema":{"type":"string"},"payload":"Order-7"}', "ob1:rowcall:Order-7"),
        (b'{"schema":{"type":"int64"},"payload":7}', "ob1:rowcall:7"),
        (b"7", "ob1:rowcall:7"),
        ("Order-7", "ob1:rowcall:Order-7"),
        (b"{broken", "ob1:rowcall:{broken"),
    ],
)
def test_header_id_is_the_same_whatever_header_converter_wrote_it(header: bytes | str, expected: str) -> None:
    assert event_id(header) == expected


def test_namespace_keeps_senders_apart() -> None:
    assert event_id(b"1", "shop") == "ob1:shop:1"


@pytest.mark.parametrize("header", [None, b"", b'""', b'{"schema":{"type":"string"},"payload":null}'])
def test_event_without_id_is_refused(header: bytes | None) -> None:
    with pytest.raises(Poison) as error:
        event_id(header)
    assert error.value.code == "missing_event_id"
