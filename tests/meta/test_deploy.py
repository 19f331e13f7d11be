"""What `deploy/`, the Dockerfile and docker-compose.yml name exists, fits the settings, and can be installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from consumer import settings
from consumer.connect.config import database_variables
from consumer.settings import Settings
from debezium import connect as local_connect
from debezium.postgres import REGISTRY_DATABASE

ROOT = Path(__file__).parents[2]
SECRETS = "/run/secrets/"
SETTING_NAMES = {str(field.alias) for field in Settings.model_fields.values()}
ONE_SHOT = {"migrate", "connectors"}
SERVICES = {"postgres", "kafka", "connect", "registry", "worker", "model"} | ONE_SHOT


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
    elif name == "worker":
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


def test_images_are_pinned_to_a_version() -> None:
    for name in SERVICES:
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


@pytest.mark.parametrize("name", ["worker", "migrate", "connectors"])
def test_the_environment_of_our_containers_is_made_of_settings(name: str) -> None:
    for variable in service(name)["environment"]:
        assert variable.removesuffix("_FILE") in SETTING_NAMES


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


# --- Dockerfile -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def exposed(self) -> str:
        return next(line.split()[1] for line in self.lines if line.startswith("EXPOSE "))


def stages() -> list[Stage]:
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    arguments = dict(line.removeprefix("ARG ").split("=", 1) for line in lines if line.startswith("ARG "))
    found: list[Stage] = []
    for line in lines:
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            base = re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], match[1])
            found.append(Stage(base, match[2], ()))
        elif found:
            found[-1] = Stage(found[-1].base, found[-1].name, (*found[-1].lines, line))
        else:
            assert line.startswith("ARG "), line
    return found


def stage(name: str) -> Stage:
    return next(part for part in stages() if part.name == name)


def test_the_default_target_is_the_worker() -> None:
    assert stages()[-1].name == "worker"


def test_base_images_are_pinned_to_a_release() -> None:
    names = {part.name for part in stages()}
    for part in stages():
        assert part.base in names or re.search(r":\d+\.\d+\.\d+", part.base), part.base


@pytest.mark.parametrize("name", ["worker", "connect", "model"])
def test_images_run_without_root_and_tell_their_health(name: str) -> None:
    users = [line.split()[1] for line in stage(name).lines if line.startswith("USER ")]
    assert users and users[-1].isdigit() and int(users[-1]) > 0
    assert [line.split()[0] for line in stage(name).lines].count("HEALTHCHECK") == 1
    for line in stage(name).lines:
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert isinstance(json.loads(line.split(maxsplit=1)[1]), list), "exec form, or SIGTERM never arrives"


def copied() -> Iterator[tuple[Stage, list[str]]]:
    for part in stages():
        for line in part.lines:
            if line.startswith("COPY "):
                yield part, line.split()[1:]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for part, words in copied():
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in {other.name for other in stages()}
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), f"{part.name}: {source}"
            assert any(source == path or source.startswith(f"{path}/") for path in sent), f"{source} in .dockerignore"


def test_no_secret_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines and not any("secrets" in line or line in ("!.", "!deploy") for line in lines)


def test_pip_installs_only_what_a_lock_names() -> None:
    for part in stages():
        for line in part.lines:
            for command in re.findall(r"pip install ([^&]*)", line):
                assert "--require-hashes" in command or "--no-index" in command, f"{part.name}: {command}"


def test_no_registry_host_stands_anywhere() -> None:
    for path in [ROOT / "Dockerfile", ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*")]:
        if path.is_file() and "secrets" not in path.parts:
            assert not re.search(
                r"index-url|registry\.npmjs|repo1?\.maven|pypi\.org|docker\.io|ghcr|quay", path.read_text()
            )


def test_the_worker_image_installs_in_a_clean_environment(tmp_path: Path) -> None:
    """The build stage's own commands, with its paths moved under a temporary folder."""
    source, target, wheels = tmp_path / "src", tmp_path / "opt", tmp_path / "wheels"
    builder = tmp_path / "builder"
    venv.create(builder, with_pip=True)
    for part, words in copied():
        if part.name == "build":
            for path in words[:-1]:
                found = ROOT / path
                destination = source / words[-1] / (found.name if words[-1].endswith("/") else "")
                destination.parent.mkdir(parents=True, exist_ok=True)
                if found.is_dir():
                    shutil.copytree(found, destination, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copyfile(found, destination)
    moves = {"/opt/rowcall": target, "/tmp/build.txt": tmp_path / "build.txt", "/tmp/wheels": wheels}
    environment = {"PATH": f"{builder / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), **network_settings()}
    for line in stage("build").lines:
        if line.startswith("RUN "):
            script = line.removeprefix("RUN ")
            for path, moved in moves.items():
                script = script.replace(path, shlex.quote(str(moved)))
            subprocess.run(["/bin/bash", "-ec", script], cwd=source, env=environment, check=True, timeout=280)
    shown = subprocess.run(
        [target / "bin/rowcall", "--help"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=True, capture_output=True
    )
    assert b"worker" in shown.stdout and b"connectors" in shown.stdout
    inside = (
        "import consumer.db as d, schemas; d.queries('claim'); d.queries('example_tables'); print(schemas.topics())"
    )
    read = subprocess.run(
        [target / "bin/python", "-c", inside],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    assert b"orders.triaged" in read.stdout


def network_settings() -> dict[str, str]:
    """How this machine reaches its package index, which is no part of the image."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_CERT")) or name.lower().endswith("_proxy")
    }


# --- systemd --------------------------------------------------------------------------------------------------------

UNIT = ROOT / "deploy/rowcall-worker.service"


def unit(section: str) -> dict[str, str]:
    body = UNIT.read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    lines = [line for line in body.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "systemd-analyze is missing; .ci/run installs it (Debian package systemd)"
    # verify wants the program to exist; in this machine's installation it lies elsewhere.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/rowcall/bin/rowcall", "/bin/true"))
    checked = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr.strip()) == (0, "")


def test_the_unit_restarts_always_and_drains() -> None:
    section = unit("Service")
    assert section["Restart"] == "always"
    assert unit("Unit")["StartLimitIntervalSec"] == "0"
    assert int(section["TimeoutStopSec"]) > Settings.model_fields["drain_seconds"].default
    assert section["ExecStart"].split()[1:] == ["worker"]


def test_the_environment_file_is_for_root_alone_and_made_of_settings() -> None:
    example = ROOT / "deploy/rowcall.env.example"
    path = unit("Service")["EnvironmentFile"]
    assert f"-m 0600 deploy/rowcall.env.example {path}" in example.read_text()
    given = properties(example)
    assert {name.removesuffix("_FILE") for name in given} <= SETTING_NAMES
    settings.load(given)
