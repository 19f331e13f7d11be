"""README's configuration table is the settings class, variable by variable."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from consumer.settings import Settings

README = Path(__file__).parents[2] / "README.md"
HEADER = re.compile(r"^\|\s*variable\s*\|\s*default\s*\|\s*meaning\s*\|\s*$", re.IGNORECASE)


def documented() -> dict[str, tuple[str, str]]:
    """Variable → (default, meaning) as README has them."""
    lines = iter(README.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if HEADER.match(line):
            break
    next(lines, None)
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, default, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:4])
        rows[name.strip("`")] = (default.strip("`"), meaning)
    return rows


def default_of(field: FieldInfo) -> str:
    """A default as a person would write it into the environment."""
    value = field.get_default(call_default_factory=True)
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return ",".join(value)
        case dict():
            return ",".join(f"{name}={text}" for name, text in value.items())
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(value)


def test_every_setting_is_in_the_table_and_nothing_else() -> None:
    assert set(documented()) == {str(field.alias) for field in Settings.model_fields.values()}


def test_every_default_is_the_one_in_force() -> None:
    table = documented()
    wrong = {}
    for field in Settings.model_fields.values():
        said = table[str(field.alias)][0]
        if said not in (default_of(field), default_of(field) or "(none)", default_of(field) or "—"):
            wrong[field.alias] = (said, default_of(field))
    assert wrong == {}


def test_every_meaning_says_something() -> None:
    assert [name for name, (_, meaning) in documented().items() if len(meaning) < 10] == []
    assert [field.alias for field in Settings.model_fields.values() if not field.description] == []
