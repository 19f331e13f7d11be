"""docs/drift.md names what holds each fault off, and shows monitors that work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from producers.drift.monitors import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "drift.md").read_text("utf-8")
NUMBERS = {"1", "3", "4", "5", "8", "9", "10", "11", "12", "13", "14"}


def test_every_test_that_the_drift_document_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - defined == set()


def test_every_fault_that_is_known_of_others_has_a_test() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", TEXT, re.MULTILINE))
    assert rows.keys() == NUMBERS
    assert [number for number, row in rows.items() if "`test_" not in row] == []


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL))
def test_monitors_that_the_drift_document_shows_are_valid(example: str, tmp_path: Path) -> None:
    (tmp_path / "drift.toml").write_text(example, "utf-8")
    assert load(tmp_path / "drift.toml")[1]
