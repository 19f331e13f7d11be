"""docs/engine.md names what holds each promise: every test and constraint it names exists."""

from __future__ import annotations

import re
from collections import Counter
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


# As in the lists that the table answers; what is missing between them was never in the lists.
ENGINES = [
    1,
    2,
    5,
    6,
    7,
    *range(9, 17),
    *range(18, 24),
    25,
    26,
    27,
    29,
    *range(31, 36),
    37,
    38,
    39,
    40,
    42,
    44,
    45,
    46,
    48,
]
RIVALS = [*range(1, 6), *range(7, 14), 15, 16, 17, 19, 21, 22, 24, 26, 27, *range(29, 44)]


def test_every_fault_of_the_two_lists_has_its_line() -> None:
    lines = re.findall(r"^\| ((?:[ER]\d+(?:, )?)+|–) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
    numbers = Counter(number for cell, _, _ in lines for number in cell.split(", ") if number != "–")
    wanted = {f"E{number}" for number in [*ENGINES, 49, 50]} | {f"R{number}" for number in RIVALS}
    assert set(numbers) == wanted
    assert {number for number, count in numbers.items() if count > 1} == set()
    assert len(lines) == TEXT[TEXT.index("| no. |") :].count("\n|") - 1, "each line of the table is one of these"
    bare = [cell for cell, _, answer in lines if "`" not in answer and "later issue" not in answer]
    assert bare == [], "a line names a test, or says that it belongs elsewhere"
