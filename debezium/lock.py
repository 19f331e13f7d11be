"""The lock file of everything that is not a Python dependency: jars, the registry's archive and the model's weights.

Before it: `debezium.lock_refresh` writes `lock.json`. After it: `debezium.cache` fetches what is named here and
accepts a file only when its SHA-256 is the one written down. The lock names coordinates, never an address, so a
mirror set up in the clients serves as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debezium.errors import CacheError

LOCK_PATH = Path(__file__).with_name("lock.json")


@dataclass(frozen=True)
class Artifact:
    """One file in a Maven repository."""

    group: str
    name: str
    version: str
    sha256: str
    classifier: str = ""
    type: str = "jar"

    @property
    def filename(self) -> str:
        """The file's name as Maven writes it."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.type}"


@dataclass(frozen=True)
class ArtifactSet:
    """The files of one service or plugin, with the coordinates they were resolved from."""

    name: str
    roots: tuple[str, ...]
    exclude: tuple[str, ...]
    artifacts: tuple[Artifact, ...]

    @property
    def digest(self) -> str:
        """Twelve hex digits that change when any file of the set changes."""
        joined = "\n".join(sorted(artifact.sha256 for artifact in self.artifacts))
        return hashlib.sha256(joined.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Weights:
    """The tiny model's weights, carried by a wheel."""

    distribution: str
    version: str
    sha256: str
    member: str

    @property
    def filename(self) -> str:
        """The weights' file name without the folder inside the wheel."""
        return self.member.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Lock:
    """The whole lock file."""

    sets: Mapping[str, ArtifactSet]
    model: Weights


def load(path: Path = LOCK_PATH) -> Lock:
    """Read the lock file.

    Raises:
        CacheError: it is missing or not what the code expects.
    """
    try:
        document = json.loads(path.read_text())
        return parse(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"the lock file {path} cannot be read ({error!r}); restore it or run python -m debezium.lock_refresh"
        ) from error


def parse(document: Mapping[str, Any]) -> Lock:
    """Turn the lock file's JSON into a `Lock`; raises KeyError, TypeError or ValueError on any other shape."""
    sets = {name: _parse_set(name, body) for name, body in document["sets"].items()}
    model = Weights(**document["model"])
    for digest in [model.sha256, *(a.sha256 for s in sets.values() for a in s.artifacts)]:
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"not a SHA-256: {digest!r}")
    return Lock(sets=sets, model=model)


def render(lock: Lock) -> str:
    """Write the lock as JSON with one file a line, so a change shows as one line in a diff."""
    sets = []
    for name, body in sorted(lock.sets.items()):
        files = ",\n".join("    " + json.dumps(_artifact_fields(artifact)) for artifact in body.artifacts)
        roots, exclude = json.dumps(body.roots), json.dumps(body.exclude)
        sets.append(f'  "{name}": {{"roots": {roots}, "exclude": {exclude}, "artifacts": [\n{files}\n  ]}}')
    joined = ",\n".join(sets)
    return f'{{\n"model": {json.dumps(vars(lock.model))},\n"sets": {{\n{joined}\n}}\n}}\n'


def _parse_set(name: str, body: Mapping[str, Any]) -> ArtifactSet:
    artifacts = tuple(Artifact(**fields) for fields in body["artifacts"])
    return ArtifactSet(name, tuple(body["roots"]), tuple(body["exclude"]), artifacts)


def _artifact_fields(artifact: Artifact) -> dict[str, str]:
    fields = dict(vars(artifact))
    if not artifact.classifier:
        del fields["classifier"]
    if artifact.type == "jar":
        del fields["type"]
    return fields
