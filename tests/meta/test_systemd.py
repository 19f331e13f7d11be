"""The systemd units: accepted by systemd itself, restart always, their environment file for root alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from consumer import settings
from consumer.settings import Settings

ROOT = Path(__file__).parents[2]

UNITS = {
    name: ROOT / f"deploy/rowcall-{name}.service" for name in ("worker", "scheduler", "webhooks", "drift", "watchdog")
}


def unit(section: str, name: str = "worker") -> dict[str, str]:
    body = UNITS[name].read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    lines = [line for line in body.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "systemd-analyze is missing; .ci/run installs it (Debian package systemd)"
    # verify wants the program to exist; in this machine's installation it lies elsewhere.
    copy = tmp_path / UNITS[name].name
    copy.write_text(UNITS[name].read_text().replace("/opt/rowcall/bin/rowcall", "/bin/true"))
    checked = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr.strip()) == (0, "")


def test_the_unit_restarts_always_and_drains() -> None:
    section = unit("Service")
    assert section["Restart"] == "always"
    assert unit("Unit")["StartLimitIntervalSec"] == "0"
    assert int(section["TimeoutStopSec"]) > Settings.model_fields["drain_seconds"].default
    assert section["ExecStart"].split()[1:] == ["worker"]


@pytest.mark.parametrize("name", [name for name in UNITS if name != "worker"])
def test_a_unit_beside_the_worker_has_its_own_file_and_health_port(name: str) -> None:
    section = unit("Service", name)
    given = environment(name)
    if name != "scheduler":  # whose schedules stand in the agents' modules
        assert given[f"ROWCALL_{name.upper()}"] == f"/etc/rowcall/{name}.toml"
        assert (ROOT / f"deploy/{name}.toml").is_file()
    assert section["ExecStart"].split()[1:] == ["schedule" if name == "scheduler" else name, "run"]
    assert (section["Restart"], unit("Unit", name)["StartLimitIntervalSec"]) == ("always", "0")
    assert section["EnvironmentFile"] == unit("Service")["EnvironmentFile"]


def test_each_unit_has_a_health_port_of_its_own() -> None:
    ports = [environment(name).get("ROWCALL_HEALTH_PORT", "the default") for name in UNITS]
    assert len(set(ports)) == len(UNITS)
    assert str(Settings.model_fields["health_port"].default) not in ports


def test_the_webhook_endpoint_gets_the_secrets_of_its_file_from_systemd() -> None:
    name, _, path = unit("Service", "webhooks")["LoadCredential"].partition(":")
    assert path.startswith("/etc/rowcall/")
    (source,) = tomllib.loads((ROOT / "deploy/webhooks.toml").read_text())["source"].values()
    folder = f"/run/credentials/{UNITS['webhooks'].name}"
    assert [environment("webhooks")[f"{secret}_FILE"] for secret in source["secrets"]] == [f"{folder}/{name}"]


def environment(name: str) -> dict[str, str]:
    """What the unit sets itself."""
    lines = UNITS[name].read_text().splitlines()
    pairs = [pair for line in lines if line.startswith("Environment=") for pair in line.partition("=")[2].split()]
    return dict(pair.split("=") for pair in pairs)


def test_the_environment_file_is_for_root_alone_and_made_of_settings() -> None:
    example = ROOT / "deploy/rowcall.env.example"
    path = unit("Service")["EnvironmentFile"]
    assert f"-m 0600 deploy/rowcall.env.example {path}" in example.read_text()
    lines = [line for line in example.read_text().splitlines() if line and not line.startswith("#")]
    given = {name: value for name, _, value in (line.partition("=") for line in lines)}
    assert {name.removesuffix("_FILE") for name in given} <= {
        str(field.alias) for field in Settings.model_fields.values()
    }
    settings.load(given)


def test_ci_installs_what_this_needs_and_runs_every_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert "missing+=(systemd)" in script.read_text()
    assert script.read_text().rstrip().endswith("exec make test")
