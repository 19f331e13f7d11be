"""The Dockerfile: pinned bases, no root, nothing installed that no lock names; and its build stage works as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


def test_the_model_image_copies_all_that_its_server_imports(tmp_path: Path) -> None:
    for part, words in copied():
        if part.name == "model" and not words[0].startswith("--from="):
            for path in words[:-1]:
                destination = (
                    tmp_path / words[-1] / (ROOT / path).name if words[-1].endswith("/") else tmp_path / words[-1]
                )
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, destination)
    command = [sys.executable, "-c", "import debezium.model_server as server; print(server.__file__)"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert shown.stdout.startswith(str(tmp_path))


def test_the_lock_is_read_entry_by_entry(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("one==1 \\\n    --hash=sha256:aa\none-more==2 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n")
    command = ["awk", "-v", "names=one-more", "-f", str(ROOT / "deploy/locked.awk"), str(lock)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert shown.stdout == "one-more==2 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    command[2] = "names=one missing"
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
