"""The shape of the code, kept by test: sizes, names, nothing left behind, nothing of one machine or registry."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("consumer", "producers", "debezium", "schemas", "benchmarks")
MODULE_LINES = 400
FUNCTION_LINES = 60
VAGUE = re.compile(r"(^|_)(manager|utils?|helpers?|common|base)(_|$)", re.IGNORECASE)
# Spelled in pieces, so that this file does not find itself.
LEFT_BEHIND = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "type: ig" + "nore", "# no" + "qa: (?!BLE001)")))
HOSTS = re.compile(r"https?://[^\s\"']*/(simple|maven2)(/|\b)|index-" + r"url|files\.python" + r"hosted|repo1?\.maven")
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(work|root|farm)/")


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would take in."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listing.stdout.split("\n") if name and (ROOT / name).is_file()]


def modules() -> list[Path]:
    """The Python files of the product."""
    return [path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES]


def test_there_is_something_to_look_at() -> None:
    assert len(modules()) > 50


@pytest.mark.parametrize("path", tracked("*.py"), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_and_its_functions_can_be_read_at_a_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno + 1 <= FUNCTION_LINES, node.name


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_and_its_public_parts_too(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not tree.body:
        return
    assert ast.get_docstring(tree), "no module docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_names_say_something() -> None:
    vague = [path for path in modules() if VAGUE.search(path.stem)]
    assert vague == []


def test_nothing_is_left_behind_and_nothing_belongs_to_one_machine() -> None:
    found = []
    for path in tracked():
        if path.suffix in (".jar", ".png", ".ico", ".woff2"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for pattern in (LEFT_BEHIND, HOSTS, MACHINE_PATHS):
            if path != Path(__file__) and (match := pattern.search(text)):
                found.append(f"{path.relative_to(ROOT)}: {match.group()}")
    assert found == []


def test_the_lock_files_hold_hashes_for_everything() -> None:
    for lock in (ROOT / "deploy" / "locks").glob("*.txt"):
        pinned = re.findall(r"^([\w.\[\]-]+==\S+)", lock.read_text(), re.MULTILINE)
        assert pinned
        assert lock.read_text().count("--hash=sha256:") >= len(pinned), lock.name
