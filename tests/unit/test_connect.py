"""Connector files, masks, differences, clashes and advice: everything about connectors that needs no Connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer.connect import (
    ConnectorStatus,
    Difference,
    Mask,
    TaskStatus,
    clashes,
    database_variables,
    differences,
    lint,
    load,
    removed_tables,
    tables_of,
)
from consumer.connect.client import outage_of, rebalancing
from consumer.errors import ConfigurationError
from consumer.http import Response

SHIPPED = Path(__file__).parents[2] / "debezium" / "connectors"
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
ENVIRONMENT = {
    **database_variables("postgresql://rowcall:s3cr%40t@db:5433/shop"),
    "SCHEMA_REGISTRY_URL": "http://registry:8081",
}


def write(directory: Path, name: str, content: Any) -> Path:
    path = directory / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def postgres(**settings: str) -> dict[str, str]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return {"connector.class": POSTGRES, "database.hostname": "db", "database.dbname": "shop"} | names


def test_database_url_gives_the_placeholders() -> None:
    assert database_variables("postgresql://rowcall:s3cr%40t@db:5433/shop") == {
        "DATABASE_HOST": "db",
        "DATABASE_PORT": "5433",
        "DATABASE_USER": "rowcall",
        "DATABASE_PASSWORD": "s3cr@t",
        "DATABASE_NAME": "shop",
    }


@pytest.mark.parametrize("url", ["host=db password=hunter2", "postgresql:///shop?password=hunter2", "pg://hunter2:x"])
def test_database_url_that_connect_cannot_use_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        database_variables(url)
    assert "hunter2" not in str(error.value)


def test_shipped_connectors_load_and_clash_with_nothing() -> None:
    files = load(SHIPPED, ENVIRONMENT)
    assert [file.name for file in files] == ["outbox", "rows"]
    assert clashes({file.name: file.config for file in files}, {}) == []
    assert all("${DATABASE" not in value for file in files for value in file.config.values())


def test_shipped_connectors_need_no_advice() -> None:
    assert [(file.name, lint(file.config)) for file in load(SHIPPED, ENVIRONMENT)] == [("outbox", []), ("rows", [])]


def test_placeholders_of_connect_itself_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "a", {"x": "${routedByValue}", "y": "${file:/run/secrets/p:key}", "z": "${HOST}:${PORT}"})
    (file,) = load(tmp_path, {"HOST": "db", "PORT": "1"})
    assert file.config == {"x": "${routedByValue}", "y": "${file:/run/secrets/p:key}", "z": "db:1"}


def test_missing_variable_names_file_key_and_variable(tmp_path: Path) -> None:
    path = write(tmp_path, "a", {"database.password": "${DATABASE_PASSWORD}"})
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, {})
    assert all(part in str(error.value) for part in (str(path), "database.password", "DATABASE_PASSWORD"))


def test_placeholder_may_come_from_a_secret_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    write(tmp_path, "a", {"database.password": "${DATABASE_PASSWORD}"})
    (file,) = load(tmp_path, {"DATABASE_PASSWORD_FILE": str(tmp_path / "secret")})
    assert file.config["database.password"] == "hunter2"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path, {"DATABASE_PASSWORD_FILE": str(tmp_path / "none")})


def test_value_of_the_environment_is_not_filled_in_again(tmp_path: Path) -> None:
    write(tmp_path, "a", {"database.password": "${DATABASE_PASSWORD}"})
    (file,) = load(tmp_path, {"DATABASE_PASSWORD": "a${HOST}b", "HOST": "db"})
    assert file.config["database.password"] == "a${HOST}b"


def test_both_forms_of_file_and_plain_json_values(tmp_path: Path) -> None:
    write(tmp_path, "flat", {"tasks.max": 1, "on": True})
    write(tmp_path, "wrapped", {"name": "named", "config": {"a": "b"}})
    assert [(file.name, file.config) for file in load(tmp_path, {})] == [
        ("flat", {"tasks.max": "1", "on": "true"}),
        ("named", {"a": "b"}),
    ]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": {"b": 1}}', '{"a": null}', '{"name": 1, "config": {}}'])
def test_file_that_is_no_connector_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, "broken", content)
    with pytest.raises(ConfigurationError, match=path.name):
        load(tmp_path, {})


def test_empty_directory_and_double_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no connector files"):
        load(tmp_path, {})
    write(tmp_path, "a", {"name": "same", "config": {}})
    write(tmp_path, "b", {"name": "same", "config": {}})
    with pytest.raises(ConfigurationError, match="same"):
        load(tmp_path, {})


def test_secrets_are_masked_by_name_by_value_and_in_urls(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a",
        {
            "database.password": "${DATABASE_PASSWORD}",
            "sasl.jaas.config": "user=x password=topsecret",
            "registry.url": "http://reg:pw@registry:8081/x",
            "query": "select '${API_KEY}'",
        },
    )
    (file,) = load(tmp_path, {"DATABASE_PASSWORD": "hunter2", "API_KEY": "k3y"})
    shown = {key: file.mask.value(key, value) for key, value in file.config.items()}
    assert shown == {
        "database.password": "***",
        "sasl.jaas.config": "***",
        "registry.url": "http://***@registry:8081/x",
        "query": "select '***'",
    }
    assert file.mask.text("login with hunter2 failed") == "login with *** failed"
    assert "hunter2" not in repr(file)
    assert "k3y" not in repr(file)


def test_empty_secret_does_not_garble_texts(tmp_path: Path) -> None:
    write(tmp_path, "a", {"database.password": "${DATABASE_PASSWORD}"})
    (file,) = load(tmp_path, {"DATABASE_PASSWORD": ""})
    assert file.mask.text("plain") == "plain"


def test_difference_is_key_by_key_and_masked() -> None:
    wanted = {"a": "1", "b": "2", "database.password": "new", "same": "x"}
    running = {"name": "rows", "a": "0", "c": "3", "database.password": "old", "same": "x"}
    assert differences(wanted, running, Mask()) == [
        Difference("a", "1", "0"),
        Difference("b", "2", None),
        Difference("c", None, "3"),
        Difference("database.password", "***", "***"),
    ]


@pytest.mark.parametrize("setting", ["slot.name", "publication.name", "topic.prefix"])
def test_shared_name_is_a_clash_in_files_and_with_what_runs(setting: str) -> None:
    one = postgres(slot_name="s", publication_name="p", topic_prefix="a")
    two = postgres(slot_name="t", publication_name="q", topic_prefix="b") | {setting: one[setting]}
    for found in (clashes({"one": one, "two": two}, {}), clashes({"two": two}, {"one": one})):
        assert len(found) == 1
        assert all(word in found[0] for word in (setting, one[setting], "one", "two"))


def test_defaults_clash_as_well() -> None:
    found = clashes({"one": postgres(topic_prefix="a"), "two": postgres(topic_prefix="b")}, {})
    assert [clash.split()[0] for clash in found] == ["slot.name", "publication.name"]


def test_connector_does_not_clash_with_its_own_running_form_or_with_others_among_themselves() -> None:
    one = postgres(slot_name="s", publication_name="p", topic_prefix="a")
    assert clashes({"one": one}, {"one": one}) == []
    assert clashes({"one": one}, {"x": postgres(topic_prefix="x"), "y": postgres(topic_prefix="x")}) == []


def test_same_names_in_other_servers_and_databases_are_no_clash() -> None:
    one = postgres(slot_name="s", publication_name="p", topic_prefix="a")
    assert clashes({"one": one, "two": one | {"database.hostname": "db2", "topic.prefix": "b"}}, {}) == []
    elsewhere = one | {"database.dbname": "other", "topic.prefix": "b", "slot.name": "t"}
    assert clashes({"one": one, "two": elsewhere}, {}) == []


def test_loopback_addresses_are_one_server() -> None:
    one = postgres(slot_name="s", publication_name="p", topic_prefix="a") | {"database.hostname": "localhost"}
    two = one | {"database.hostname": "127.0.0.1", "publication.name": "q", "topic.prefix": "b"}
    assert len(clashes({"one": one, "two": two}, {})) == 1


def rows() -> dict[str, str]:
    return {file.name: dict(file.config) for file in load(SHIPPED, ENVIRONMENT)}["rows"]


def outbox() -> dict[str, str]:
    return {file.name: dict(file.config) for file in load(SHIPPED, ENVIRONMENT)}["outbox"]


@pytest.mark.parametrize(
    ("config", "change", "setting", "cost"),
    [
        (rows(), {"transforms": ""}, "transforms", "NULL"),
        (rows(), {"heartbeat.interval.ms": "0"}, "heartbeat.interval.ms", "WAL"),
        (rows(), {"heartbeat.action.query": None}, "heartbeat.action.query", "WAL"),
        (rows(), {"poll.interval.ms": None}, "poll.interval.ms", "450 ms"),
        (rows(), {"tombstones.on.delete": None}, "tombstones.on.delete", "empty message"),
        (
            rows(),
            {"value.converter.apicurio.registry.headers.enabled": None},
            "value.converter.apicurio.registry.headers.enabled",
            "not_framed",
        ),
        (
            rows(),
            {"key.converter.apicurio.registry.as-confluent": "false"},
            "key.converter.apicurio.registry.as-confluent",
            "eight bytes",
        ),
        (
            rows(),
            {"key.converter.apicurio.registry.use-id": None},
            "key.converter.apicurio.registry.use-id",
            "Confluent",
        ),
        (rows(), {"schema.name.adjustment.mode": None}, "schema.name.adjustment.mode", "stops"),
        (rows(), {"provide.transaction.metadata": "false"}, "provide.transaction.metadata", "no_row_identity"),
        (rows(), {"publication.autocreate.mode": None}, "publication.autocreate.mode", "every table"),
        (rows(), {"slot.name": None}, "slot.name", "shared"),
        (rows(), {"topic.creation.default.partitions": None}, "topic.creation.default.partitions", "second worker"),
        (outbox(), {"snapshot.mode": "no_data"}, "snapshot.mode", "never published"),
        (
            rows(),
            {"value.converter": "org.apache.kafka.connect.json.JsonConverter"},
            "value.converter.replace.null.with.default",
            "NULL",
        ),
    ],
)  # fmt: skip
def test_lacking_setting_is_named_with_its_cost(
    config: dict[str, str], change: dict[str, str | None], setting: str, cost: str
) -> None:
    merged = config | change
    (advice,) = lint({key: value for key, value in merged.items() if value is not None})
    assert advice.setting == setting
    assert cost in advice.cost


def test_a_publication_that_a_person_makes_covers_what_that_person_wants() -> None:
    merged: dict[str, str] = {**rows(), "publication.autocreate.mode": "disabled"}
    assert lint(merged) == []


def test_tables_of_a_connector() -> None:
    assert tables_of({"table.include.list": "public\\.orders, public.customers,"}) == (
        "public.orders",
        "public.customers",
    )
    assert tables_of({}) == ()


@pytest.mark.parametrize(
    ("wanted", "running", "removed"),
    [
        ("public.orders,public.customers", "public.tickets", ("public.tickets",)),
        ("public.orders,public.tickets", "public.tickets,public.orders", ()),
        ("public\\.(tickets|orders)", "public.tickets", ()),
        ("public.(", "public.(,public.a", ("public.a",)),
        ("public.orders", "", ("every other table",)),
        ("", "public.tickets", ()),
    ],
)
def test_tables_that_a_file_would_no_longer_capture(wanted: str, running: str, removed: tuple[str, ...]) -> None:
    had = postgres(table_include_list=running)
    assert removed_tables({"table.include.list": wanted}, had) == removed


def test_health_of_a_connector_is_that_of_all_its_tasks() -> None:
    running, failed = TaskStatus(0, "RUNNING", "w", ""), TaskStatus(1, "FAILED", "w", "why")
    assert ConnectorStatus("a", "RUNNING", "w", "", (running,)).healthy
    assert not ConnectorStatus("a", "RUNNING", "w", "", ()).healthy
    both = ConnectorStatus("a", "RUNNING", "w", "", (running, failed))
    assert (both.healthy, both.failed) == (False, True)


@pytest.mark.parametrize(
    ("status", "message", "away"),
    [
        (200, "", False),
        (400, "Connector configuration is invalid", False),
        (404, "not found", False),
        (409, "Cannot complete request because of a conflicting operation", True),
        (500, "Failed to find any class that implements Connector and which name matches Foo", False),
        (500, "Request timed out", True),
        (503, "", True),
        (401, "", True),
    ],
)
def test_what_a_status_of_connect_means(status: int, message: str, away: bool) -> None:
    answer = Response(status, {}, json.dumps({"error_code": status, "message": message}).encode())
    outage = outage_of(answer, "http://connect")
    assert (outage is not None) == away
    assert outage is None or (outage.dependency == "connect" and message in str(outage))


@pytest.mark.parametrize(
    ("status", "message", "waited_for"),
    [
        (409, "Cannot complete request because of a conflicting operation", True),
        (500, "Request cannot be completed because a rebalance is expected", True),
        (500, "Request timed out", False),
        (404, "not found", False),
    ],
)
def test_a_rebalance_is_waited_for(status: int, message: str, waited_for: bool) -> None:
    answer = Response(status, {}, json.dumps({"error_code": status, "message": message}).encode())
    assert rebalancing(answer) == waited_for
