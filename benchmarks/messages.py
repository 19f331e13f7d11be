"""The messages of the intake benchmarks: updates of ten columns, a transaction each, as Debezium sends them.

One envelope is made by tests.envelopes and varied: key, values, log position, transaction and commit time differ from
message to message, as they do in a log, so nothing can be cached that could not be in production.
"""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import psycopg

from tests.envelopes import ORDERS, Table, change, order

_FRAME = struct.Struct(">bI")


def raw_schema(schema: Any) -> Any:
    """The schema without logical types: values are given as they travel."""
    if isinstance(schema, dict):
        return {name: raw_schema(item) for name, item in schema.items() if name != "logicalType"}
    return [raw_schema(item) for item in schema] if isinstance(schema, list) else schema


def updates(count: int, *, first_txid: int, table: Table = ORDERS) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of `count` updates of different rows, committed now, in transactions `first_txid` and after."""
    key_schema = fastavro.parse_schema(raw_schema(table.key_schema))
    value_schema = fastavro.parse_schema(raw_schema(table.value_schema))
    sample = change(table, "u", before=order(1, status="open"), after=order(1), total_order=1).value
    assert sample is not None
    envelope: Any = fastavro.schemaless_reader(io.BytesIO(sample[_FRAME.size :]), value_schema)
    now_ms = int(time.time() * 1000)
    for number in range(count):
        envelope["before"], envelope["after"] = order(number, status="open"), order(number)
        ts_ms = now_ms + number // 10
        source = envelope["source"]
        source |= {"txId": first_txid + number, "lsn": 26_720_104 + number * 312}
        source |= {"ts_ms": ts_ms, "ts_us": ts_ms * 1000, "ts_ns": ts_ms * 1_000_000}
        envelope["transaction"]["id"] = f"{first_txid + number}:{source['lsn']}"
        yield (
            _framed(table.key_id, key_schema, {"id": number}),
            _framed(table.value_id, value_schema, envelope),
        )


def _framed(schema_id: int, schema: Any, datum: Any) -> bytes:
    out = io.BytesIO()
    out.write(_FRAME.pack(0, schema_id))
    fastavro.schemaless_writer(out, schema, datum)
    return out.getvalue()


def take_transactions(url: str, count: int) -> int:
    """Use up `count` transaction IDs of the server and return the first.

    Intake asks the database about the transaction of each change, so the made-up ones must be real and over.
    """
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("SET synchronous_commit = off")
        row = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        session.execute(
            f"DO $$ BEGIN FOR i IN 1..{int(count)} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$".encode()
        )
    return int(row[0]) + 1
