"""From a row to one clean value: expressions over columns, and what is done with values that would blind a detector.

Nothing here raises for a bad value: it becomes a word that is counted. Promises: what reaches a detector is finite.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from consumer.records import UNCHANGED

MISSING: Final = "missing"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown_column"
SKIPPED: Final = "skipped"
_TEXT: Final = 200
# Squares of a number must be finite too.
_HUGE: Final = 1e150
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"abs": abs, "len": len, "log": math.log}

Row = Mapping[str, Any]


class Refused(Exception):
    """A value that is not fed; `word` says why."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class Expression:
    """A column, a path into a nested value (`customer.country`), or arithmetic with + - * /, abs, len and log.

    Raises:
        ValueError: the text is none of these; the message says which part.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._of: Callable[[Row], Any] = _compiled(text)

    def __call__(self, row: Row) -> Any:
        """The value in a row. Refused with the reason where there is none."""
        return self._of(row)


def number(value: Any) -> float:
    """A finite number, or Refused."""
    if type(value) is float and -_HUGE <= value <= _HUGE:
        return value
    if isinstance(value, str | bytes) or not isinstance(value, int | float | Decimal):
        raise Refused(REFUSED)
    try:
        made = float(value)
    except (OverflowError, ValueError):
        raise Refused(REFUSED) from None
    if not math.isfinite(made) or abs(made) > _HUGE:
        raise Refused(REFUSED)
    return made


def category(value: Any) -> str:
    """A text that the database can hold, cut to 200 characters."""
    text = value if isinstance(value, str) else str(value)
    if len(text) <= _TEXT and text.isascii() and "\x00" not in text:
        return text
    return text[:_TEXT].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def number_or_category(value: Any) -> float | str:
    """A number where it is one, a category otherwise."""
    return number(value) if isinstance(value, int | float | Decimal) else category(value)


def _compiled(text: str) -> Callable[[Row], Any]:
    if text.replace("_", "a").isalnum() and not text[0].isdigit():
        return lambda row: _column(row, text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is no expression; write a column, a path a.b, or arithmetic over them") from error
    return _node(tree, text)


def _node(tree: ast.expr, text: str) -> Callable[[Row], Any]:
    match tree:
        case ast.Name(id=name):
            return lambda row: _column(row, name)
        case ast.Attribute(value=inner, attr=name):
            of = _node(inner, text)
            return lambda row: _column(of(row), name)
        case ast.Constant(value=int() | float() as constant) if not isinstance(constant, bool):
            return lambda row: constant
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            of = _node(inner, text)
            return lambda row: -number(of(row))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            one, other, work = _node(left, text), _node(right, text), _OPERATORS[type(sign)]
            return lambda row: _worked(work, number(one(row)), number(other(row)))
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
            of, function = _node(inner, text), _FUNCTIONS[name]
            return lambda row: _worked(function, of(row) if name == "len" else number(of(row)))
    raise ValueError(f"{text!r} holds more than columns, numbers, + - * /, abs, len and log")


def _worked(work: Callable[..., Any], *values: Any) -> Any:
    try:
        return work(*values)
    except (ArithmeticError, ValueError, TypeError):
        raise Refused(REFUSED) from None


def _column(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        raise Refused(UNKNOWN)
    value = row[name]
    if value is None:
        raise Refused(MISSING)
    if value is UNCHANGED:
        raise Refused(SKIPPED)
    return value
