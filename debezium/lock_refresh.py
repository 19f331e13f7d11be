"""Rewrites `lock.json` from the coordinates it names: `python -m debezium.lock_refresh`.

Run by a person after changing a root's version in the lock file; what follows is a normal start, which fetches what
changed. Each set is resolved again with all that its roots depend on, less what is excluded, and every file's SHA-256
is written down. It writes the lock file last and at once, so a failed refresh leaves the old one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

from jgo.maven import Artifact as MavenArtifact
from jgo.maven import MavenContext

from debezium import lock


def main() -> None:
    """Resolve every set again and write the lock file."""
    current = lock.load()
    with tempfile.TemporaryDirectory(prefix="rowcall-lock-") as folder:
        maven = MavenContext(repo_cache=Path(folder), timeout=60)
        sets = {name: refresh(maven, body) for name, body in current.sets.items()}
    for body in sets.values():
        print(f"{body.name}: {len(body.artifacts)} files")
    scratch = lock.LOCK_PATH.with_suffix(".new")
    scratch.write_text(lock.render(dataclasses.replace(current, sets=sets)))
    scratch.replace(lock.LOCK_PATH)


def refresh(maven: MavenContext, body: lock.ArtifactSet) -> lock.ArtifactSet:
    """Resolve one set.

    A root `group:name:version` brings what it depends on; `group:name:version:type:classifier` is that one file. The
    logging binding is a lone file because its parent's list of versions would replace Kafka's own.
    """
    found: dict[tuple[str, str, str], lock.Artifact] = {}
    for artifact in _resolve(maven, body.roots):
        if f"{artifact.groupId}:{artifact.artifactId}" not in body.exclude:
            found[artifact.groupId, artifact.artifactId, artifact.classifier] = _locked(artifact)
    return dataclasses.replace(body, artifacts=tuple(found[key] for key in sorted(found)))


def _resolve(maven: MavenContext, roots: tuple[str, ...]) -> list[MavenArtifact]:
    lone = [root.split(":") for root in roots if root.count(":") == 4]
    found = [
        maven.project(group, name).at_version(version).artifact(classifier=classifier, packaging=kind)
        for group, name, version, kind, classifier in lone
    ]
    whole = [maven.create_dependency(root) for root in roots if root.count(":") == 2]
    if whole:
        inputs, transitive = maven.resolver.resolve(whole)
        found += [dependency.artifact for dependency in [*inputs, *transitive]]
    return found


def _locked(artifact: MavenArtifact) -> lock.Artifact:
    digest = hashlib.sha256(artifact.resolve().read_bytes()).hexdigest()
    return lock.Artifact(
        group=artifact.groupId,
        name=artifact.artifactId,
        version=artifact.version,
        sha256=digest,
        classifier=artifact.classifier,
        type=artifact.packaging,
    )


if __name__ == "__main__":
    main()
