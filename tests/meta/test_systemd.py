"""The systemd unit: accepted by systemd itself, restarts always, its environment file for root alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from consumer import settings
from consumer.settings import Settings

ROOT = Path(__file__).parents[2]

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
