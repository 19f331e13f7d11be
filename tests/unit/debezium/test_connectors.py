"""The connectors as they are shipped: what each must have, and that they do not take each other's things."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import debezium

FOLDER = Path(debezium.__file__).parent / "connectors"
CONNECTORS: dict[str, dict[str, str]] = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
PLACEHOLDERS = {
    "DATABASE_HOST",
    "DATABASE_PORT",
    "DATABASE_USER",
    "DATABASE_PASSWORD",
    "DATABASE_NAME",
    "SCHEMA_REGISTRY_URL",
}


@pytest.fixture(params=sorted(CONNECTORS))
def connector(request: pytest.FixtureRequest) -> dict[str, str]:
    return CONNECTORS[str(request.param)]


def test_there_are_the_two_the_design_names() -> None:
    assert set(CONNECTORS) == {"rows", "outbox"}


@pytest.mark.parametrize("setting", ["slot.name", "publication.name", "topic.prefix"])
def test_no_two_connectors_share(setting: str) -> None:
    values = [connector[setting] for connector in CONNECTORS.values()]
    assert len(values) == len(set(values))


def test_every_value_is_text_as_connect_wants_it(connector: dict[str, str]) -> None:
    assert all(isinstance(value, str) for value in connector.values())


def test_placeholders_are_the_known_ones(connector: dict[str, str]) -> None:
    found = set(re.findall(r"\$\{([A-Z_]+)\}", json.dumps(connector)))
    assert found <= PLACEHOLDERS


def test_secrets_and_places_are_placeholders(connector: dict[str, str]) -> None:
    assert connector["database.password"] == "${DATABASE_PASSWORD}"
    assert connector["database.hostname"] == "${DATABASE_HOST}"


def test_each_keeps_its_slot_moving_while_its_tables_are_idle(connector: dict[str, str]) -> None:
    assert int(connector["heartbeat.interval.ms"]) > 0
    # A publication filtered by table does not carry the beat's own table; a logical message is always carried.
    assert "pg_logical_emit_message" in connector["heartbeat.action.query"]
    assert "rowcall.connector_heartbeats" in connector["heartbeat.action.query"]


def test_each_publishes_its_own_tables_only_and_polls_often(connector: dict[str, str]) -> None:
    assert connector["publication.autocreate.mode"] == "filtered"
    assert 10 <= int(connector["poll.interval.ms"]) <= 50


def test_the_outbox_sends_what_was_written_before_its_slot() -> None:
    assert CONNECTORS["outbox"]["snapshot.mode"] == "initial"


def test_the_outbox_reads_no_other_table() -> None:
    assert CONNECTORS["outbox"]["table.include.list"] == "rowcall.outbox"
    assert CONNECTORS["outbox"]["transforms"] == "outbox"


def test_row_changes_keep_null_and_carry_the_schema_in_the_body() -> None:
    rows = CONNECTORS["rows"]
    assert rows["transforms.keepNull.type"] == "io.rowcall.connect.KeepNull"
    for side in ("key", "value"):
        assert rows[f"{side}.converter.apicurio.registry.headers.enabled"] == "false"
        assert rows[f"{side}.converter.apicurio.registry.as-confluent"] == "true"
        assert rows[f"{side}.converter.apicurio.registry.url"] == "${SCHEMA_REGISTRY_URL}/apis/registry/v2"
