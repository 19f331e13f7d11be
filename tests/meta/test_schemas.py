"""A schema changes only in ways that readers and records of its released form survive.

`data/schemas` holds the released forms; a release copies the new ones there.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many

import schemas

RELEASED = Path(__file__).parent / "data" / "schemas"


def carried(record: Any, writer: dict[str, Any], reader: dict[str, Any]) -> Any:
    """`record` as a reader with another schema gets it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), record)
    stream.seek(0)
    return fastavro.schemaless_reader(stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


def check(released: dict[str, Any], present: dict[str, Any]) -> None:
    """Both directions: agents may be older or newer than what they read."""
    for record in generate_many(fastavro.parse_schema(released), 20):
        carried(record, released, present)
    for record in generate_many(fastavro.parse_schema(present), 20):
        carried(record, present, released)


def test_every_topic_with_a_schema_has_a_released_form() -> None:
    assert sorted(path.stem for path in RELEASED.glob("*.avsc")) == schemas.topics()


@pytest.mark.parametrize("topic", schemas.topics())
def test_schema_reads_its_released_form_and_is_read_by_it(topic: str) -> None:
    check(json.loads((RELEASED / f"{topic}.avsc").read_text()), json.loads(schemas.load(topic) or ""))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.append({"name": "more", "type": "string"}),
        lambda fields: fields.pop(0),
        lambda fields: fields[0].update(type="boolean"),
        lambda fields: fields[0].update(name="renamed"),
    ],
    ids=["field without a default", "field removed", "type changed", "field renamed"],
)
def test_incompatible_change_is_noticed(change: Any) -> None:
    released = json.loads(schemas.load("agents.overdue") or "")
    altered = json.loads(schemas.load("agents.overdue") or "")
    change(altered["fields"])
    with pytest.raises(Exception, match=r".+"):
        check(released, altered)
