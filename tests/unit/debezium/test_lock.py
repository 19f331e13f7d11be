"""The lock file: readable, complete, and free of addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import debezium
from debezium import lock
from debezium.errors import CacheError

PACKAGE = Path(debezium.__file__).parent


def test_the_lock_holds_every_root_it_was_resolved_from() -> None:
    for body in lock.load().sets.values():
        held = {(artifact.group, artifact.name, artifact.version) for artifact in body.artifacts}
        for root in body.roots:
            group, name, version = root.split(":")[:3]
            assert (group, name, version) in held


def test_what_is_excluded_from_a_plugin_is_not_in_it() -> None:
    for body in lock.load().sets.values():
        held = {f"{artifact.group}:{artifact.name}" for artifact in body.artifacts}
        assert not held & set(body.exclude)


def test_a_set_holds_one_version_of_each_file() -> None:
    for body in lock.load().sets.values():
        names = [(artifact.group, artifact.name, artifact.classifier) for artifact in body.artifacts]
        assert len(names) == len(set(names))


def test_kafkas_own_jars_are_all_of_one_version() -> None:
    kafka = lock.load().sets["kafka"].artifacts
    assert {artifact.version for artifact in kafka if artifact.group == "org.apache.kafka"} == {"4.3.1"}


def test_the_lock_is_written_as_it_was_read() -> None:
    assert lock.render(lock.load()) == lock.LOCK_PATH.read_text()


def test_a_hash_that_is_none_is_refused() -> None:
    document = json.loads(lock.LOCK_PATH.read_text())
    document["sets"]["compiler"]["artifacts"][0]["sha256"] = "abc"
    with pytest.raises(ValueError, match="not a SHA-256"):
        lock.parse(document)


def test_a_broken_lock_file_says_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "lock.json"
    broken.write_text("{}")
    with pytest.raises(CacheError, match="lock_refresh"):
        lock.load(broken)


def test_the_digest_of_a_set_follows_its_files() -> None:
    body = lock.load().sets["compiler"]
    changed = lock.ArtifactSet(body.name, body.roots, body.exclude, ())
    assert body.digest != changed.digest


def test_no_file_of_the_package_names_an_address() -> None:
    for path in PACKAGE.rglob("*"):
        if path.suffix in {".json", ".py", ".java", ".properties"}:
            assert "https://" not in path.read_text(), path
