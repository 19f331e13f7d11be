"""What is written for Kafka, Connect and the registry, and what the stack tells of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from debezium import kafka, registry, service, stack
from debezium.cache import Cache
from debezium.cli import dev
from debezium.errors import NotRunning, StackError, UnknownService
from debezium.paths import StackPaths
from debezium.postgres import client_environment
from debezium.reporting import Reporter
from debezium.service import Scene, StackSettings


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    (tmp_path / "postgres.password").write_text("pass word\n")
    return Scene(
        paths=StackPaths(tmp_path, tmp_path / "postgres"),
        settings=StackSettings(kafka={"log.retention.hours": "1"}),
        cache=Cache(tmp_path / "cache", Reporter(quiet=True)),
        account=None,
        external={},
        ports={
            "postgres": {"main": 20_001},
            "kafka": {"main": 20_002, "controller": 20_003},
            "registry": {"main": 20_004, "management": 20_005},
        },
    )


def test_properties_survive_javas_reader(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "some.properties"
    service.write_properties(target, {"path": "C:\\data", "plain": "value"})
    assert target.read_text() == "path=C:\\\\data\nplain=value\n"
    with pytest.raises(ValueError, match="line break"):
        service.write_properties(target, {"bad": "a\nb"})


def test_the_broker_listens_on_loopback_and_needs_no_second_one(scene: Scene) -> None:
    properties = kafka.properties(scene)
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20002"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20003"
    factors = {value for name, value in properties.items() if "replication.factor" in name or "min.isr" in name}
    assert factors == {"1"}
    assert properties["log.retention.hours"] == "1"


def test_the_registry_stores_in_the_stacks_database(scene: Scene) -> None:
    environment = registry.environment(scene)
    assert environment["APICURIO_DATASOURCE_URL"] == "jdbc:postgresql://127.0.0.1:20001/registry"
    assert environment["APICURIO_DATASOURCE_PASSWORD"] == "pass word"
    assert environment["QUARKUS_MANAGEMENT_PORT"] == "20005"


def test_a_service_from_outside_takes_the_place_of_ours(scene: Scene) -> None:
    scene.external = {"DATABASE_URL": "postgresql://someone:secret@db.example:6000/shop"}
    environment = registry.environment(scene)
    assert environment["APICURIO_DATASOURCE_URL"] == "jdbc:postgresql://db.example:6000/registry"
    assert environment["APICURIO_DATASOURCE_USERNAME"] == "someone"


def test_a_missing_service_names_the_variable_that_replaces_it(scene: Scene) -> None:
    with pytest.raises(StackError, match="CONNECT_URL"):
        assert scene.connect_url


def test_our_own_addresses_left_in_the_shell_are_not_taken_for_another_service(scene: Scene) -> None:
    given = {"DATABASE_URL": scene.database_url, "KAFKA_BOOTSTRAP_SERVERS": "broker.example:9092", "CONNECT_URL": ""}
    assert stack._foreign(scene, given) == {"KAFKA_BOOTSTRAP_SERVERS": "broker.example:9092"}


def test_the_environment_leaves_out_what_the_stack_does_not_have(tmp_path: Path) -> None:
    info = stack.StackInfo("postgresql://x", "", "", "", None, tmp_path, {})
    assert info.environment() == {"DATABASE_URL": "postgresql://x"}


def test_a_directory_without_a_stack(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="rowcall dev up"):
        stack.status(tmp_path)
    stack.stop(tmp_path)
    stack.stop(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_an_unknown_service_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UnknownService, match="redis"):
        stack.start(tmp_path / "stack", services=("postgres", "redis"))
    assert not (tmp_path / "stack").exists()


def test_the_command_line_explains_instead_of_tracing(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(dev, ["status", "--directory", str(tmp_path)])
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("rowcall: no stack was started")
    assert "--directory" in outcome.stderr and "ROWCALL_STACK_DIR" in outcome.stderr
    assert "Traceback" not in outcome.output


def test_a_wrong_service_is_wrong_usage(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(dev, ["up", "--services", "redis", "--directory", str(tmp_path / "stack")])
    assert outcome.exit_code == 2
    assert "redis" in outcome.stderr


def test_down_says_when_there_was_nothing_to_stop(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(dev, ["down", "--directory", str(tmp_path / "absent")])
    assert (outcome.exit_code, outcome.stdout) == (0, f"nothing was running in {tmp_path / 'absent'}\n")


def test_psql_gets_its_own_arguments_and_the_password_by_the_environment(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    own = client_environment(scene.database_url)
    monkeypatch.setattr(stack, "psql", lambda directory: (directory / "psql", own))
    monkeypatch.setattr(os, "execve", lambda *arguments: called.append(arguments))
    given = ["-h", "-Atc", "SELECT 1", "--csv"]
    CliRunner().invoke(dev, ["psql", "--directory", str(tmp_path), *given])
    ((program, arguments, environment),) = called
    assert (program, arguments) == (tmp_path / "psql", [str(tmp_path / "psql"), *given])
    assert environment["PGPASSWORD"] == "pass word"
    assert environment["PGPORT"] == "20001"


def test_logs_prints_the_end_of_a_services_log(tmp_path: Path) -> None:
    paths = StackPaths.of(tmp_path, None)
    paths.state_file.write_text("{}")
    paths.log("kafka").parent.mkdir()
    paths.log("kafka").write_text("".join(f"line {number}\n" for number in range(500)))
    given = ["logs", "kafka", "--directory", str(tmp_path)]
    assert CliRunner().invoke(dev, [*given, "-n", "2"]).stdout == "line 498\nline 499\n"
    assert CliRunner().invoke(dev, given).stdout.splitlines() == [f"line {number}" for number in range(400, 500)]
    never = CliRunner().invoke(dev, ["logs", "connect", "--directory", str(tmp_path)])
    assert never.exit_code == 1 and "connect was never started" in never.stderr


@pytest.mark.parametrize("command", ["up", "status", "down", "logs", "restart", "psql"])
def test_every_command_has_help(command: str) -> None:
    outcome = CliRunner().invoke(dev, [command, "--help"])
    assert outcome.exit_code == 0
    assert "--directory" in outcome.output
