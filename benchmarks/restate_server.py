"""Restate's server: fetched from its npm package into the user's cache, checked by SHA-256, started with one partition.

`benchmarks/restate.lock.json` names version and digests. npm is used as it is set up on this machine; where it is
missing or refuses, nothing that needs Restate is measured.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.figures import NotMeasured
from benchmarks.services import Child, running, until
from debezium import ports
from debezium.paths import cache_directory

LOCK: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "restate.lock.json").read_text())
FETCH_SECONDS: Final = 600


class Server(NamedTuple):
    """A running server: where requests go, and where it is told what to call."""

    ingress: str
    admin: str


def binary() -> Path:
    """The server's program, from the cache or fetched.

    Raises:
        NotMeasured: there is none for this machine, or it cannot be had.
    """
    package = LOCK["packages"].get(platform.machine())
    if package is None:
        raise NotMeasured(f"the lock has no Restate server for {platform.machine()}")
    folder = cache_directory() / f"restate-{LOCK['version']}-{package['sha256'][:12]}"
    program = folder / "restate-server"
    if not program.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="scratch-") as scratch:
            _unpack(_fetched(package, Path(scratch)), Path(scratch) / "bin")
            (Path(scratch) / "bin").rename(folder)
    return program


def _fetched(package: dict[str, str], scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise NotMeasured("npm is not installed: Restate's server comes from its package registry")
    named = f"{package['name']}@{LOCK['version']}"
    try:
        done = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", str(scratch), named],
            capture_output=True, text=True, check=False, timeout=FETCH_SECONDS, cwd=scratch,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"npm did not fetch {named} within {FETCH_SECONDS} s") from error
    found = list(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(found) != 1:
        raise NotMeasured(f"npm cannot fetch {named}: {done.stderr.strip()[-300:]}")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != package["sha256"]:
        raise NotMeasured(f"{named} has the SHA-256 {digest}, not the one in restate.lock.json")
    return found[0]


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(archive) as content:
        member = content.extractfile("package/bin/restate-server")
        if member is None:
            raise NotMeasured("Restate's package holds no bin/restate-server")
        with (folder / "restate-server").open("wb") as file:
            shutil.copyfileobj(member, file)
    (folder / "restate-server").chmod(0o755)


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A fresh server in `folder`, ready; its settings are the defaults but for the one partition."""
    chosen: list[int] = []
    for _ in range(3):
        chosen.append(ports.choose(taken=frozenset(chosen)))
    ingress, admin, node = chosen
    with tempfile.TemporaryDirectory(dir=folder, prefix="restate-") as data:
        environment = {
            "RESTATE_DEFAULT_NUM_PARTITIONS": "1",
            "RESTATE_BASE_DIR": data,
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "warn",
        }
        child = Child([str(binary())], environment, folder / "restate.log")
        with running([child]):
            at = Server(f"http://127.0.0.1:{ingress}", f"http://127.0.0.1:{admin}")
            until(lambda: _ready(child, at), "Restate is ready", seconds=60)
            yield at


def _ready(child: Child, at: Server) -> bool:
    child.check()
    try:
        return all(
            httpx.get(url, timeout=2).is_success for url in (f"{at.admin}/health", f"{at.ingress}/restate/health")
        )
    except httpx.TransportError:
        return False
