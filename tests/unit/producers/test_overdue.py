"""The event of an alert: the same each time, fit for its schema and for the database."""

from __future__ import annotations

import orjson

import schemas
from consumer.wire.encode import avro_schema, check_message, encode
from producers.overdue import SCHEMA, event
from tests.unit.watchdog.alerts import alert


def test_an_alerts_event_has_its_id_and_time_whenever_it_is_made() -> None:
    assert event(alert(), "t") == event(alert(), "t")
    assert (event(alert(), "t").id, event(alert(), "t").occurred_at) == (alert().id, alert().detected_at)


def test_whatever_stands_in_an_alert_fits_the_schema_and_the_database() -> None:
    schema = avro_schema(orjson.loads(schemas.load(SCHEMA) or ""), 1)
    told = event(alert(subject="a\x00\ud800", state="b\x00", message="c\udfff" * 20_000, due_at=None), "t")
    check_message("t", key=told.key, event_type=told.event_type)
    encode("t", told.record, schema)
