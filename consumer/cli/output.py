"""What commands print: tables for people, JSON for machines, and nothing a terminal would obey.

Answers of models and bytes of strangers are shown here, so control characters are made visible first.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
import orjson
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Wide enough for a line of a log file; a terminal has its own width.
_PLAIN_WIDTH: Final = 200
# Columns that hold JSON text; they stand as JSON in JSON. Some commands have sentences in a column of such a name.
_JSON_COLUMNS: Final = frozenset(
    {
        *("payload", "result", "output", "approved_answer", "proposed_answer", "detail"),
        *("changes", "stale_changes", "seen", "evidence"),
    }
)
_CELL_CHARACTERS: Final = 300
# A column this narrow is never wrapped; a wider one gets at least as much room, and wraps.
_SHORT: Final = 20

as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON for machines.")


def print_json(value: Any) -> None:
    """`value` as indented JSON; bytes as hexadecimal text."""
    click.echo(orjson.dumps(_embedded(value), default=_plain, option=orjson.OPT_INDENT_2).decode())


def print_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, empty: str, title: str | None = None
) -> None:
    """The columns of the rows that hold something, or the sentence `empty`.

    Where the columns do not fit side by side, each row is a paragraph: its short values on one line, long ones below.
    """
    rows = list(rows)
    if not rows:
        click.echo(empty)
        return
    cells = {column: [shown(row[column]) for row in rows] for column in columns}
    cells = {column: texts for column, texts in cells.items() if any(texts)}
    target, short = console(), {column for column, texts in cells.items() if _width(column, texts) <= _SHORT}
    if sum(_width(column, cells[column]) if column in short else _SHORT for column in cells) + 3 * len(cells) + 1 > (
        target.width
    ):
        _print_paragraphs(target, cells, short, title)
        return
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", expand=False)
    for column in cells:
        table.add_column(_heading(column), overflow="fold", no_wrap=column in short)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, line))
    target.print(table)


def _print_paragraphs(target: Console, cells: Mapping[str, list[str]], short: set[str], title: str | None) -> None:
    if title is not None:
        target.print(Text(title, style="bold"))
    for line in zip(*cells.values(), strict=True):
        values = {column: text for column, text in zip(cells, line, strict=True) if text}
        brief = [f"{_heading(column)} {text}" for column, text in values.items() if column in short]
        for packed in _packed(brief, target.width):
            target.print(Text(packed), overflow="fold")
        for column, text in values.items():
            if column not in short:
                target.print(Padding(Text.assemble((_heading(column), "bold"), "  ", text), (0, 0, 0, 4)))


def _packed(parts: Sequence[str], width: int) -> list[str]:
    """The parts on as few lines as hold them whole."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + 2 + cell_len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part if not lines else f"    {part}")
    return lines


def _width(column: str, texts: Sequence[str]) -> int:
    return max(len(_heading(column)), *(cell_len(text) for text in texts))


def _heading(column: str) -> str:
    return column.replace("_", " ")


def print_fields(row: Mapping[str, Any], *, title: str) -> None:
    """One row as a list of its fields that hold something."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in row.items():
        if value not in (None, "", [], ()):
            table.add_row(_heading(name), Text(shown(value, limit=None)))
    console().print(table)


def console() -> Console:
    """Where tables go: stdout."""
    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_PLAIN_WIDTH)


def shown(value: Any, *, limit: int | None = _CELL_CHARACTERS) -> str:
    """A value for people: times to the second in UTC, lists by comma, control characters visible, long texts cut."""
    match value:
        case None:
            return ""
        case dt.datetime():
            return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        case bytes() | memoryview():
            text = bytes(value).decode("utf-8", "backslashreplace")
        case list() | tuple():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    text = safe(text)
    return text if limit is None or len(text) <= limit else f"{text[:limit]}…"


def safe(text: str) -> str:
    """`text` with everything that a terminal would obey, or could not be encoded, made visible."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )


def _embedded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _fragment(item) if key in _JSON_COLUMNS else _embedded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_embedded(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _fragment(value: Any) -> Any:
    return orjson.Fragment(value) if isinstance(value, str) and _is_json(value) else _embedded(value)


def _is_json(text: str) -> bool:
    try:
        # Numbers of any size, which stored JSON may hold.
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return str(value)
