"""What each kind of message is taken for, and that every fault of a message is Poison."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.errors import Outage, Poison
from consumer.records import UNCHANGED, Change, Coordinates, Event, Infinity, Operation, Origin
from consumer.wire import Decoded, Decoder, Ignored, frame
from tests.envelopes import HEARTBEAT, ORDERS, TRANSACTION_MARKER, Column, Schema, Table, change, framed, order

TRIAGED: Schema = {
    "type": "record",
    "name": "OrderTriaged",
    "namespace": "orders",
    "fields": [
        {"name": "title", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Part",
                    "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}],
                },
            },
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
LOGICAL_MESSAGE: Schema = {
    "type": "record",
    "name": "MessageValue",
    "fields": [
        {"name": "op", "type": "string"},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": []}},
        {"name": "message", "type": {"type": "record", "name": "Message", "fields": []}},
    ],
}
MARKER = {"status": "BEGIN", "id": "1:2", "ts_ms": 1}
ID_KEY: Schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
SCHEMAS: dict[int, Any] = ORDERS.schemas | {
    3: HEARTBEAT,
    4: TRANSACTION_MARKER,
    5: TRIAGED,
    6: LOGICAL_MESSAGE,
    7: ID_KEY,
    8: "string",
}
REAL = json.loads((Path(__file__).parent / "debezium_3_6_1.json").read_text())


def decode(
    value: bytes | None, key: bytes | None = None, topic: str = "orders.triaged", headers: Any = None
) -> Decoded:
    return Decoder(SCHEMAS.__getitem__, epoch="1").decode(key, value, headers, Coordinates(topic, 2, 5))


def test_frame_splits_id_and_body() -> None:
    assert frame(b"\x00\x00\x00\x01\x02body") == (258, b"body")


@pytest.mark.parametrize("message", [b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01body", b"[1]", b"text", b"\xff"])
def test_bytes_without_framing_are_refused(message: bytes) -> None:
    with pytest.raises(Poison) as error:
        frame(message)
    assert error.value.code == "not_framed"
    if message:
        with pytest.raises(Poison) as error:
            decode(message)
        assert error.value.code == "not_framed"


def test_change_holds_both_images_key_origin_and_coordinates() -> None:
    message = change(ORDERS, "u", before=order(3, status="new"), after=order(3))
    record = decode(message.value, message.key, ORDERS.topic)
    assert isinstance(record, Change)
    assert record.operation is Operation.UPDATE
    assert record.key == {"id": 3}
    assert record.origin == Origin("cdc", "shop", "public", "orders", 771, 26_720_104, 1_760_000_000_000, False)
    assert record.coordinates == Coordinates(ORDERS.topic, 2, 5)
    assert record.became("status", "paid")
    assert record.after is not None
    assert record.after["amount"] == Decimal("20.50")
    assert record.after["paid_at"] == dt.datetime(2025, 10, 9, 8, 53, 20, 123456, tzinfo=dt.UTC)


def test_delete_and_truncate_have_no_after() -> None:
    deleted = change(ORDERS, "d", before=order(3))
    record = decode(deleted.value, deleted.key, ORDERS.topic)
    assert isinstance(record, Change)
    assert (record.operation, record.after, record.row["id"]) == (Operation.DELETE, None, 3)
    truncated = decode(change(ORDERS, "t").value, None, ORDERS.topic)
    assert isinstance(truncated, Change)
    assert (truncated.operation, truncated.before, truncated.after, truncated.key) == (
        Operation.TRUNCATE,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("value", [None, b"", b"null"])
def test_tombstone_is_ignored(value: bytes | None) -> None:
    assert decode(value, b"key") == Ignored("tombstone")


@pytest.mark.parametrize(
    ("value", "topic", "reason"),
    [
        (framed(3, HEARTBEAT, {"ts_ms": 1}), "renamed", "heartbeat"),
        (b'{"ts_ms":1}', "__debezium-heartbeat.outbox", "heartbeat"),
        (framed(4, TRANSACTION_MARKER, MARKER), "cdc.transaction", "transaction_marker"),
        (
            b'{"status":"END","id":"1:2","event_count":1,"data_collections":[],"ts_ms":1}',
            "cdc.transaction",
            "transaction_marker",
        ),
        (framed(6, LOGICAL_MESSAGE, {"op": "m", "source": {}, "message": {}}), "cdc.message", "logical_message"),
    ],
)  # fmt: skip
def test_connector_chatter_is_ignored(value: bytes, topic: str, reason: str) -> None:
    assert decode(value, None, topic) == Ignored(reason)


def test_json_object_with_id_is_an_event() -> None:
    headers = [
        ("id", b"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("occurred_at", b"2026-11-30T20:12:41.393094Z"),
        ("cause", None),
        ("raw", b"\xff"),
    ]
    record = decode(b'{"x":[1]}', b"k1", headers=headers)
    assert isinstance(record, Event)
    assert record.id == "ob1:rowcall:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert (record.topic, record.key, record.data) == ("orders.triaged", "k1", {"x": [1]})
    assert record.occurred_at == dt.datetime(2026, 11, 30, 20, 12, 41, 393094, tzinfo=dt.UTC)
    assert "cause" not in record.headers
    assert record.headers["raw"].encode("utf-8", "surrogateescape") == b"\xff"


@pytest.mark.parametrize("text", [b"yesterday", b"2026-11-30T20:12:41", b""])
def test_time_that_names_no_instant_is_left_to_the_header(text: bytes) -> None:
    record = decode(b"{}", headers=[("id", b"1"), ("occurred_at", text)])
    assert isinstance(record, Event)
    assert record.occurred_at is None
    assert record.headers["occurred_at"] == text.decode()


@pytest.mark.parametrize(
    "text",
    [
        b"9999-12-31T23:59:59-12:00", b"9999-12-31T12:00:00Z", b"9998-12-31T00:00:00.000001Z",
        b"0001-01-01T00:00:00+12:00", b"0001-12-31T23:59:59Z",
    ],
)  # fmt: skip
def test_time_that_cannot_be_stored_and_read_everywhere_is_left_to_the_header(text: bytes) -> None:
    event = decode(b"{}", headers=[("id", b"e"), ("occurred_at", text)])
    assert isinstance(event, Event)
    assert (event.occurred_at, event.headers["occurred_at"]) == (None, text.decode())


def test_time_of_an_offset_that_postgres_refuses_is_given_in_utc() -> None:
    event = decode(b"{}", headers=[("id", b"e"), ("occurred_at", b"2026-01-02T00:00:00+20:00")])
    assert isinstance(event, Event) and event.occurred_at is not None
    assert event.occurred_at.isoformat() == "2026-01-01T04:00:00+00:00"


def test_avro_record_with_id_is_an_event_with_avros_own_types() -> None:
    datum = {"title": "t", "at": 1, "amount": b"\xff", "parts": [{"day": 17109}], "kind": "B"}
    record = decode(framed(5, TRIAGED, datum), framed(7, ID_KEY, {"id": 9}), headers=[("id", b"1")])
    assert isinstance(record, Event)
    assert record.key == '{"id":9}'
    assert record.data == {
        "title": "t",
        "at": dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
        "amount": Decimal("-0.01"),
        "parts": [{"day": dt.date(2016, 11, 4)}],
        "kind": "B",
    }


def test_avro_string_is_an_event_too() -> None:
    record = decode(
        framed(8, {"type": "string"}, "hello"), framed(8, {"type": "string"}, "key"), headers=[("id", b"1")]
    )
    assert isinstance(record, Event)
    assert (record.data, record.key) == ("hello", "key")


def test_event_without_id_is_refused() -> None:
    with pytest.raises(Poison) as error:
        decode(b"{}", headers=[("other", b"1")])
    assert error.value.code == "missing_event_id"


def test_change_with_unframed_key_is_refused() -> None:
    message = change(ORDERS, "c", after=order(1))
    with pytest.raises(Poison) as error:
        decode(message.value, b'{"id":1}', ORDERS.topic)
    assert error.value.code == "not_framed"


def test_envelope_of_another_database_is_refused_by_what_its_source_lacks() -> None:
    schema = ORDERS.value_schema
    source = next(field["type"] for field in schema["fields"] if field["name"] == "source")
    other = source | {"fields": [field for field in source["fields"] if field["name"] not in ("lsn", "schema")]}
    fields = [field | {"type": other} if field["name"] == "source" else field for field in schema["fields"]]
    decoder = Decoder({1: schema | {"fields": fields}}.__getitem__, epoch="1")
    with pytest.raises(Poison, match="lsn, schema") as error:
        decoder.decode(None, b"\x00\x00\x00\x00\x01x", None, Coordinates("t", 0, 0))
    assert error.value.code == "unsupported_type"


def test_json_event_keeps_integers_of_any_size() -> None:
    record = decode(b'{"n":123456789012345678901}', headers=[("id", b"1")])
    assert isinstance(record, Event)
    assert record.data == {"n": 123456789012345678901}


@pytest.mark.parametrize("value", [b'{"a":NaN}', b"[" * 100_000, b'{"a":"\xff"}', b"{", b'"text"'])
def test_text_that_is_no_json_object_is_poison(value: bytes) -> None:
    with pytest.raises(Poison) as error:
        decode(value, headers=[("id", b"1")])
    assert error.value.code == "not_framed"


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(Poison, match="'x'"):
        message = change(ORDERS, "x", after=order(1))
        decode(message.value, message.key, ORDERS.topic)


@pytest.mark.parametrize("cut", [5, 6, 40, -1])
def test_cut_message_is_poison(cut: int) -> None:
    message = change(ORDERS, "c", after=order(1))
    assert message.value is not None
    with pytest.raises(Poison):
        decode(message.value[:cut], message.key, ORDERS.topic)


def test_left_over_bytes_are_poison() -> None:
    message = change(ORDERS, "c", after=order(1))
    assert message.value is not None
    with pytest.raises(Poison, match="left over"):
        decode(message.value + b"\x00", message.key, ORDERS.topic)


@given(st.binary(max_size=80), st.sampled_from([None, *SCHEMAS]), st.none() | st.binary(max_size=20))
def test_any_bytes_give_a_record_or_poison(body: bytes, schema_id: int | None, key: bytes | None) -> None:
    value = body if schema_id is None else b"\x00" + schema_id.to_bytes(4, "big") + body
    try:
        record = Decoder(_known, epoch="1").decode(key, value, [("id", b"1")], Coordinates("t", 0, 0))
    except Poison:
        return
    assert isinstance(record, Change | Event | Ignored)


def _known(schema_id: int) -> Any:
    if schema_id not in SCHEMAS:
        raise Poison("unknown", code="unknown_schema")
    return SCHEMAS[schema_id]


def test_schema_is_asked_for_once_and_an_outage_is_not_remembered() -> None:
    asked: list[int] = []
    away = True

    def schema_of(schema_id: int) -> Any:
        asked.append(schema_id)
        if away:
            raise Outage("away", dependency="registry")
        return SCHEMAS[schema_id]

    decoder = Decoder(schema_of, epoch="1")
    message = change(ORDERS, "c", after=order(1))
    with pytest.raises(Outage):
        decoder.decode(message.key, message.value, None, Coordinates("t", 0, 0))
    away = False
    asked.clear()
    for offset in range(3):
        decoder.decode(message.key, message.value, None, Coordinates("t", 0, offset))
    assert sorted(asked) == [ORDERS.key_id, ORDERS.value_id]


def test_refused_schema_is_not_built_again_and_says_the_same() -> None:
    table = Table("odd", [Column("id", "long", optional=False), Column("odd", {"type": "int", "connect.name": "Odd"})])
    decoder = Decoder(table.schemas.__getitem__, epoch="1")
    message = change(table, "c", after={"id": 1, "odd": 1})
    errors = []
    for _ in range(2):
        with pytest.raises(Poison) as error:
            decoder.decode(message.key, message.value, None, Coordinates("t", 0, 0))
        errors.append((str(error.value), error.value.code))
    assert errors[0] == errors[1] == ("column odd has type Odd, which is not supported", "unsupported_type")


def test_invalid_schema_is_poison() -> None:
    decoder = Decoder({1: {"type": "nonsense"}}.__getitem__, epoch="1")
    with pytest.raises(Poison) as error:
        decoder.decode(None, b"\x00\x00\x00\x00\x01x", None, Coordinates("t", 0, 0))
    assert error.value.code == "unsupported_type"


def real_messages() -> list[Decoded]:
    """What Debezium 3.6.1 sent for a table with nearly every type, and for one without a key."""
    schemas = {int(number): schema for number, schema in REAL["schemas"].items()}
    decoder = Decoder(schemas.__getitem__, epoch="1")
    return [
        decoder.decode(
            message["key"] and base64.b64decode(message["key"]),
            message["value"] and base64.b64decode(message["value"]),
            [(name, value and value.encode()) for name, value in message["headers"]],
            Coordinates(message["topic"], 0, offset),
        )
        for offset, message in enumerate(REAL["messages"])
    ]


def test_real_messages_have_the_expected_kinds() -> None:
    kinds = [message.operation if isinstance(message, Change) else message for message in real_messages()]
    tombstone = Ignored("tombstone")
    assert kinds == [*"ccccccud", tombstone, "c", "d", tombstone, "t"]


def test_real_messages_have_different_ids() -> None:
    ids = [message.id for message in real_messages() if isinstance(message, Change)]
    assert len(set(ids)) == len(ids) == 11


def test_real_row_has_the_values_that_were_inserted() -> None:
    update = real_messages()[6]
    assert isinstance(update, Change)
    row = dict(update.row)
    assert str(row.pop("f8")) == "nan"
    assert row.pop("u").hex == "a0eebc999c0b4ef8bb6d6bb9bd380a11"
    assert [str(item) for item in row.pop("ua")] == ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]
    assert {name for name, value in row.items() if value is UNCHANGED} == {"big", "bigb", "bigia", "biga", "bigj"}
    assert {name: value for name, value in row.items() if value is not UNCHANGED} == {
        "id": 1, "part": Decimal("-1.50"), "b": True, "i2": -2, "i4": None, "f4": 1.5,
        "n": Decimal("12345678901234567890.12345"), "n53": Decimal("0.00123"), "m": Decimal("-1.25"), "t": "new",
        "c": "ab   ", "d": dt.date(2016, 11, 4), "tm": dt.timedelta(days=1), "tm3": dt.time(10, 11, 12, 123000),
        "tz": dt.time(9, 51, 30, 123000, tzinfo=dt.UTC), "ts": dt.datetime(2016, 11, 4, 11, 51, 30, 123456),
        "ts3": dt.datetime(2016, 11, 4, 11, 51, 30, 123000),
        "tsz": dt.datetime(2016, 11, 4, 11, 51, 30, 123456, tzinfo=dt.UTC),
        "iv": dt.timedelta(days=429, hours=3), "j": {"a": 123456789012345678901}, "jb": None, "x": "<a/>", "e": "ok",
        "by": b"\x01\x02\xff", "bt": 3, "vb": 5, "ip": "192.168.2.0/12", "r": "[1,5)", "ia": [1, None, 3],
        "ta": ["a", None], "na": [Decimal("1.10"), None], "da": [dt.date(2016, 11, 4), None], "h": "a=>1,b=>null",
        "p": {"x": 1.0, "y": 2.0}, "v": [1.0, 2.0, 3.0], "lt": "a.b", "tv": "'a' 'b'", "oidc": 42,
    }  # fmt: skip


def test_real_infinities_and_far_years_are_kept() -> None:
    names = ("d", "ts", "ts3", "tsz")
    rows = {message.row["id"]: message.row for message in real_messages()[2:6] if isinstance(message, Change)}
    assert [rows[2][name] for name in names] == [Infinity.POSITIVE] * 4
    assert [rows[3][name] for name in names] == [Infinity.NEGATIVE] * 4
    assert rows[4]["d"] == "-4712-01-01"  # 4713 BC; ISO 8601 has a year 0
    assert rows[5]["d"] == "+20000-01-01"
    assert rows[5]["tsz"] == "+294276-01-01T00:00:00.000000Z"
