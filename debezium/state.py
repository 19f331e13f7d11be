"""The state file of one stack: what was started, where it listens, where it logs.

`debezium.launch` writes an entry as soon as a process exists, before it is ready; `debezium.stack` reads it to list
and stop. The file is replaced in one step, with mode 0600. An entry whose process is gone, or whose id now belongs to
another program, counts as stopped; its ports are kept, so a restart comes back at the same address.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from debezium.errors import StackError
from debezium.processes import Identity

VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One service in the state file."""

    identity: Identity | None
    ports: Mapping[str, int]

    def running(self) -> bool:
        """Whether the process that was started still runs."""
        return self.identity is not None and self.identity.alive()


@dataclass
class State:
    """The state file in memory; every change is written at once. Safe to change from several threads."""

    path: Path
    external: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    services: dict[str, Entry] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> State:
        """Read the file; an absent one is an empty state.

        Raises:
            StackError: the file is not ours or of another version.
        """
        if not path.exists():
            return cls(path)
        try:
            document = json.loads(path.read_text())
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']}")
            services = {name: _entry(body) for name, body in document["services"].items()}
            return cls(path, dict(document["external"]), dict(document["settings"]), services)
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(f"{path} cannot be read ({error!r}); end its processes and remove it") from error

    def record(self, service: str, entry: Entry) -> None:
        """Set a service's entry and write the file."""
        with self._guard:
            self.services[service] = entry
            self._write()

    def write(self) -> None:
        """Write the file."""
        with self._guard:
            self._write()

    def _write(self) -> None:
        document = {
            "version": VERSION,
            "external": self.external,
            "settings": self.settings,
            "services": {
                name: {
                    "pid": entry.identity and entry.identity.pid,
                    "started": entry.identity and entry.identity.started,
                    "ports": dict(entry.ports),
                }
                for name, entry in self.services.items()
            },
        }
        scratch = self.path.with_suffix(".new")
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=1)
        scratch.replace(self.path)


def _entry(body: Mapping[str, Any]) -> Entry:
    identity = None if body["pid"] is None else Identity(int(body["pid"]), float(body["started"]))
    return Entry(identity, {name: int(port) for name, port in body["ports"].items()})
