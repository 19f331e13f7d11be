"""docker-compose.yml and Connect's image: valid, health-checked, and true to the settings and the connectors."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from consumer import settings
from consumer.connect.config import database_variables
from consumer.settings import Settings
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels import load as load_channels
from debezium import connect as local_connect
from debezium.postgres import REGISTRY_DATABASE
from producers.drift.monitors import load as load_monitors
from producers.webhooks.signatures import Verifier
from producers.webhooks.sources import load as load_sources
from tests.meta.test_images import stage, stages

ROOT = Path(__file__).parents[2]
SECRETS = "/run/secrets/"
SETTING_NAMES = {str(field.alias) for field in Settings.model_fields.values()}
ONE_SHOT = {"migrate", "connectors"}
LOOPS = {"worker", "scheduler", "webhooks", "drift", "watchdog"}
SERVICES = {"postgres", "kafka", "connect", "registry", "model"} | LOOPS | ONE_SHOT


def compose() -> dict[str, Any]:
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(content, dict)
    return content


def service(name: str) -> dict[str, Any]:
    found = compose()["services"][name]
    assert isinstance(found, dict)
    return found


def properties(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


# --- docker-compose.yml ---------------------------------------------------------------------------------------------


def test_compose_fits_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests/meta/data/compose-spec.json").read_text())
    # The file writes its dialect's address in a form that is not the dialect's own.
    schema["$schema"] = jsonschema.Draft201909Validator.META_SCHEMA["$schema"]
    jsonschema.Draft201909Validator.check_schema(schema)
    found = jsonschema.Draft201909Validator(schema).iter_errors(compose())
    errors = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in found]
    assert errors == []


def test_compose_has_every_part_and_the_tiny_model_only_on_request() -> None:
    assert set(compose()["services"]) == SERVICES
    assert [name for name in SERVICES if "profiles" in service(name)] == ["model"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_is_health_checked_or_runs_once(name: str) -> None:
    healthcheck: Any = service(name).get("healthcheck")
    if name in ONE_SHOT:
        assert healthcheck == {"disable": True}
        assert service(name)["restart"].startswith("on-failure")
    elif name in LOOPS:
        assert healthcheck is None, "the image's own health check counts"
        assert any(line.startswith("HEALTHCHECK") for line in stage("worker").lines)
    else:
        assert {"test", "interval", "timeout", "retries"} <= healthcheck.keys()
        assert service(name)["restart"] == "unless-stopped"


def test_what_a_service_waits_for_can_happen() -> None:
    for name in SERVICES:
        for other, wait in service(name).get("depends_on", {}).items():
            once = wait["condition"] == "service_completed_successfully"
            assert once == (other in ONE_SHOT), f"{name} waits for {other}"


def test_images_are_pinned_to_a_version_and_name_no_host() -> None:
    for name in SERVICES:
        assert "." not in service(name)["image"].rpartition(":")[0]
        tag = service(name)["image"].rpartition(":")[2]
        assert re.match(r"\d+\.\d+", tag), f"{name}: {tag}"


def test_the_image_carries_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for name in ("worker", "migrate", "connectors", "connect", "model"):
        assert service(name)["image"].rpartition(":")[2] == version[1]


def test_build_targets_are_stages_of_the_dockerfile() -> None:
    for name in SERVICES:
        if build := service(name).get("build"):
            assert build["target"] in {part.name for part in stages()}


@pytest.mark.parametrize("name", sorted(LOOPS | ONE_SHOT))
def test_the_environment_of_our_containers_is_made_of_settings(name: str) -> None:
    for variable in service(name)["environment"]:
        secret = name == "webhooks" and variable.removesuffix("_FILE") in webhook_secrets()
        assert secret or variable.removesuffix("_FILE") in SETTING_NAMES


def webhook_secrets() -> set[str]:
    """The variables that deploy/webhooks.toml takes its secrets from."""
    sources = tomllib.loads((ROOT / "deploy/webhooks.toml").read_text())["source"]
    return {variable for source in sources.values() for variable in source["secrets"]}


def test_the_webhook_endpoint_has_its_secrets_and_is_reached_where_it_listens(tmp_path: Path) -> None:
    environment = service("webhooks")["environment"]
    assert {f"{variable}_FILE" for variable in webhook_secrets()} <= environment.keys()
    given = {name: str(value).replace(SECRETS, f"{tmp_path}/") for name, value in environment.items()}
    for secret in service("webhooks")["secrets"]:
        (tmp_path / secret).write_text("a secret of this test")
    for source, keyring in load_sources(ROOT / "deploy/webhooks.toml", given):
        Verifier(source, keyring)
    assert environment["ROWCALL_WEBHOOK_HOST"] == "0.0.0.0"
    port = Settings.model_fields["webhook_port"].default
    assert service("webhooks")["ports"] == [f"127.0.0.1:{port}:{port}"]


@pytest.mark.parametrize("name", ["drift", "watchdog", "webhooks"])
def test_the_file_a_service_reads_is_mounted_where_its_setting_says(name: str) -> None:
    path = service(name)["environment"][f"ROWCALL_{name.upper()}"]
    assert service(name)["volumes"] == [f"./deploy/{name}.toml:{path}:ro"]
    assert service(name)["environment"].items() >= service("worker")["environment"].items()


def test_the_example_files_are_good(tmp_path: Path) -> None:
    load_monitors(ROOT / "deploy/drift.toml")
    made = load_channels(ROOT / "deploy/watchdog.toml", settings.load({}), topic=NoTopic)
    assert [(route.name, route.type) for route in made] == [("agents", "topic")]
    whole = uncommented("watchdog").replace("/usr/local/bin/page", "/bin/true")
    (tmp_path / "watchdog.toml").write_text(whole)
    secrets = {"PAGER_SECRET": "YSBzZWNyZXQgb2YgdGhlIHRlc3Q=", "SMTP_PASSWORD": "x"}
    made = load_channels(tmp_path / "watchdog.toml", settings.load({}), topic=NoTopic, environment=secrets)
    assert [route.type for route in made] == ["topic", "webhook", "email", "command"]
    (tmp_path / "webhooks.toml").write_text(uncommented("webhooks"))
    secrets = dict.fromkeys(["GITHUB_WEBHOOK_SECRET", "STRIPE_SECRET", "STRIPE_SECRET_OLD", "SHOP_SECRET"], "x" * 16)
    sources = load_sources(tmp_path / "webhooks.toml", secrets)
    assert [source.scheme for source, _ in sources] == ["github", "stripe", "hmac"]


def uncommented(name: str) -> str:
    """An example file with all that stands in comments for a user to take."""
    text = (ROOT / f"deploy/{name}.toml").read_text()
    return re.sub(r"^# (?=\[|[a-z_]+ = )", "", text, flags=re.MULTILINE)


class NoTopic:
    def __init__(self, name: str, topic: str) -> None:
        self.name = name

    def send(self, alert: Alert) -> None:
        raise AssertionError


def test_the_worker_finds_each_service_where_it_listens() -> None:
    environment = service("worker")["environment"]
    assert environment["KAFKA_BOOTSTRAP_SERVERS"] == "kafka:9092"
    assert "INTERNAL://kafka:9092" in service("kafka")["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert environment["SCHEMA_REGISTRY_URL"].endswith(published("registry"))
    assert environment["CONNECT_URL"].endswith(published("connect"))
    assert environment["MODEL_BASE_URL"] == "${MODEL_BASE_URL:-http://model:8080/v1}"
    assert stage("model").exposed == "8080" and stage("connect").exposed == "8083"


def published(name: str) -> str:
    return f"//{name}:{service(name)['ports'][0].rpartition(':')[2]}"


def test_the_health_port_is_the_settings_port() -> None:
    port = str(Settings.model_fields["health_port"].default)
    assert service("worker")["ports"][0].rpartition(":")[2] == port == stage("worker").exposed
    assert f"ROWCALL_HEALTH_PORT={port}" in stage("worker").text and f":{port}/healthz" in stage("worker").text


def test_a_worker_has_longer_to_stop_than_it_drains() -> None:
    drain = Settings.model_fields["drain_seconds"].default
    assert int(service("worker")["stop_grace_period"].removesuffix("s")) > drain


def test_ports_are_open_to_this_machine_only() -> None:
    for name in SERVICES:
        for port in service(name).get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_no_secret_stands_in_an_environment() -> None:
    for name in SERVICES:
        for variable, value in service(name).get("environment", {}).items():
            if re.search("PASSWORD|KEY|SECRET|TOKEN|DATABASE_URL", variable):
                assert variable.endswith("_FILE") and value.startswith(SECRETS), f"{name}: {variable}"


def test_secrets_are_files_that_make_secrets_writes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets"))
    for _ in range(2):  # the second time it keeps what is there
        subprocess.run([tmp_path / "deploy/make-secrets"], check=True, capture_output=True)
    folder = tmp_path / "deploy/secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name, secret in compose()["secrets"].items():
        assert (tmp_path / secret["file"]).is_file(), name
    password = (folder / "database_password").read_text()
    assert len(password) == 48
    variables = database_variables((folder / "database_url").read_text())
    assert variables == {
        "DATABASE_HOST": "postgres",
        "DATABASE_PORT": "5432",
        "DATABASE_USER": "postgres",
        "DATABASE_PASSWORD": password,
        "DATABASE_NAME": service("postgres")["environment"]["POSTGRES_DB"],
    }
    assert (folder / "registry.properties").read_text() == f"apicurio.datasource.password={password}"
    for name in SERVICES:
        for secret in service(name).get("secrets", ()):
            source = secret["source"] if isinstance(secret, dict) else secret
            assert source in compose()["secrets"]


def test_the_worker_reads_its_settings_from_the_secret_files(tmp_path: Path) -> None:
    (tmp_path / "database_url").write_text("postgresql://postgres:geheim@postgres:5432/rowcall\n")
    (tmp_path / "model_api_key").write_text("")
    given = {
        name: str(value).replace(SECRETS, f"{tmp_path}/") for name, value in service("worker")["environment"].items()
    }
    given |= {"MODEL_BASE_URL": "http://model:8080/v1", "MODEL_NAME": "rowcall-tiny"}
    loaded = settings.load(given)
    assert loaded.database_url.get_secret_value() == "postgresql://postgres:geheim@postgres:5432/rowcall"


def test_volumes_and_mounted_files_exist() -> None:
    for name in SERVICES:
        for volume in service(name).get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose()["volumes"] or (ROOT / source).is_file(), f"{name}: {source}"


def test_the_registry_stores_in_the_database_that_is_made_for_it() -> None:
    assert f"CREATE DATABASE {REGISTRY_DATABASE};" in (ROOT / "deploy/postgres/registry.sql").read_text()
    assert service("registry")["environment"]["APICURIO_DATASOURCE_URL"].endswith(f"postgres:5432/{REGISTRY_DATABASE}")


def test_topics_are_kept_for_less_than_the_dedup_horizon() -> None:
    hours = int(service("kafka")["environment"]["KAFKA_LOG_RETENTION_HOURS"])
    assert hours < 24 * Settings.model_fields["dedup_days"].default


def test_postgres_writes_a_logical_log_with_room_for_each_connector() -> None:
    command = service("postgres")["command"]
    assert "wal_level=logical" in command
    slots = next(int(part.partition("=")[2]) for part in command if part.startswith("max_replication_slots="))
    assert slots >= len(list((ROOT / "debezium/connectors").glob("*.json")))


# --- Kafka Connect --------------------------------------------------------------------------------------------------


def test_connect_runs_with_the_settings_of_the_local_stack() -> None:
    source = Path(local_connect.__file__).read_text()
    local = dict(re.findall(r'^ +"([a-z.]+)": "([^"]*)",$', source, re.MULTILINE))
    ours = properties(ROOT / "deploy/connect/connect.properties")
    assert len(local) > 10
    assert {name: ours.get(name) for name in local} == local
    assert ours["plugin.path"] in stage("connect").text
    assert ours["listeners"].rpartition(":")[2] == stage("connect").exposed


def test_the_plugin_path_holds_all_the_connectors_name(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "deploy/artifacts.py"), "plugins", str(tmp_path / "plugins")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    classes = set()
    for jar in (tmp_path / "plugins").glob("*/*.jar"):
        listed = subprocess.run(
            [sys.executable, "-m", "zipfile", "-l", jar], check=True, capture_output=True, text=True
        )
        classes |= set(re.findall(r"^(\S+)\.class", listed.stdout, re.MULTILINE))
    for file in (ROOT / "debezium/connectors").glob("*.json"):
        config = json.loads(file.read_text())
        named = [
            value for key, value in config.items() if re.search(r"\.class$|^transforms\..*\.type$|\.converter$", key)
        ]
        for name in named:
            in_kafka = name.startswith("org.apache.kafka.connect.")
            assert in_kafka or name.replace(".", "/") in classes, f"{file.name}: {name}"
