"""docs/engine.md names what holds each promise: every test and constraint it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "engine.md").read_text("utf-8")


def test_every_test_that_the_engines_document_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - defined == set()


def test_every_constraint_that_the_engines_document_names_exists() -> None:
    named = set(re.findall(r"(?:constraint|trigger) `(\w+)`", TEXT))
    sql = "".join(path.read_text("utf-8") for path in (ROOT / "consumer" / "sql" / "migrations").glob("*.sql"))
    assert named and {name for name in named if not re.search(rf"(CONSTRAINT|TRIGGER) {name}\b", sql)} == set()
