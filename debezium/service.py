"""What a service of the stack is to the launcher: one small class a service, and the scene they all act in.

`debezium.postgres`, `kafka`, `connect`, `registry` and `model` each implement `Service`; `debezium.launch` runs them.
A service tells how it is started and how one sees that it is ready; it starts nothing and waits for nothing itself.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from debezium.accounts import Account
from debezium.cache import Cache
from debezium.errors import StackError
from debezium.paths import StackPaths
from debezium.ports import HOST
from debezium.processes import Launch

# The variable that replaces a service by one that runs elsewhere.
EXTERNAL_NAMES: Mapping[str, str] = {
    "postgres": "DATABASE_URL",
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "registry": "SCHEMA_REGISTRY_URL",
    "connect": "CONNECT_URL",
    "model": "MODEL_BASE_URL",
}
DATABASE_NAME = "rowcall"


@dataclass(frozen=True)
class StackSettings:
    """What may be set for a stack; the defaults fit a machine of two cores."""

    kafka_heap_mb: int = 512
    connect_heap_mb: int = 512
    registry_heap_mb: int = 384
    partitions: int = 6
    ready_timeout_s: float = 120.0
    postgres: Mapping[str, str] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)
    connect: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Scene:
    """All that a service needs to know of its stack: files, settings, ports, and where the others are."""

    paths: StackPaths
    settings: StackSettings
    cache: Cache
    account: Account | None
    external: Mapping[str, str]
    ports: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def port(self, service: str, name: str = "main") -> int:
        """A port of a service of this stack.

        Raises:
            StackError: the service is neither started here nor given from outside.
        """
        if service not in self.ports:
            raise StackError(
                f"{service} is needed but not part of this stack; add it, or set {EXTERNAL_NAMES[service]}"
            )
        return self.ports[service][name]

    @property
    def password(self) -> str:
        """The password of the stack's own database user."""
        return self.paths.password_file.read_text().strip()

    @property
    def database_url(self) -> str:
        """Where the database is."""
        given = self.external.get("DATABASE_URL")
        return given or f"postgresql://postgres:{quote(self.password)}@{HOST}:{self.port('postgres')}/{DATABASE_NAME}"

    @property
    def kafka_bootstrap_servers(self) -> str:
        """Where the broker is."""
        return self.external.get("KAFKA_BOOTSTRAP_SERVERS") or f"{HOST}:{self.port('kafka')}"

    @property
    def schema_registry_url(self) -> str:
        """Where the schema registry is, without the path of one of its interfaces."""
        return self.external.get("SCHEMA_REGISTRY_URL") or f"http://{HOST}:{self.port('registry')}"

    @property
    def connect_url(self) -> str:
        """Where Connect's REST interface is."""
        return self.external.get("CONNECT_URL") or f"http://{HOST}:{self.port('connect')}"

    @property
    def model_base_url(self) -> str:
        """Where the model's OpenAI-compatible interface is."""
        return self.external.get("MODEL_BASE_URL") or f"http://{HOST}:{self.port('model')}/v1"


class Service(Protocol):
    """One service of the stack."""

    @property
    def name(self) -> str:
        """Its name in commands, logs and the state file."""

    @property
    def port_names(self) -> tuple[str, ...]:
        """The ports it listens on; `main` is the one others use."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The services that must be ready before it is started."""

    @property
    def stop_steps(self) -> tuple[tuple[int, float], ...]:
        """Signals that ask it to end, each with the seconds it is given."""

    def fetch(self, scene: Scene) -> None:
        """Get what must be downloaded or built; nothing of the stack runs yet."""

    def prepare(self, scene: Scene) -> None:
        """Write configuration and, at the first start, create its storage."""

    def launch(self, scene: Scene) -> Launch:
        """The command to run."""

    def ready(self, scene: Scene) -> bool:
        """Whether it answers; False while it does not yet."""


TERMINATE = ((int(signal.SIGTERM), 20.0),)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file.

    Raises:
        ValueError: a value would not survive the format.
    """
    lines = []
    for name, value in properties.items():
        if "\n" in value:
            raise ValueError(f"a line break in the property {name}")
        lines.append(f"{name}={value}".replace("\\", "\\\\"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
