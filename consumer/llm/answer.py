"""An answer's text → one validated object, or the reasons why not. Nothing is repaired and nothing is guessed.

Accepted around the object: one leading `<think>…</think>` block, and prose or a markdown fence that could not itself be
a part of JSON. Two parsers must agree on it: Python's, with guards for what both would let pass (double keys, NaN,
1e999, NUL, depth), then pydantic's, strict and closed whatever the author's model is set to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

# Characters; what Instructor allows in bytes, far above any answer within `max_tokens`.
ANSWER_LIMIT: Final = 1024 * 1024
# Levels; far above any answer model, far below Python's recursion limit.
DEPTH_LIMIT: Final = 64
# Reasons shown to the model and kept; more of them help neither.
_REASON_LIMIT: Final = 20

_THINK_OPEN: Final = "<think>"
_THINK_CLOSE: Final = "</think>"
# Possessive, and an open string runs to the end: every character is looked at once, whatever a model sends.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_STRUCTURE: Final = re.compile(r"[{}\[\]]|<\|?/?(?:tool|function)", re.IGNORECASE)

Rules = Callable[[Any], list[str]]


@dataclass(frozen=True, slots=True)
class Valid:
    """A validated answer; `text` is the JSON object as it stood."""

    value: BaseModel
    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """No usable answer; `code` is one of the table, `reasons` are sentences for model and people."""

    code: str
    reasons: tuple[str, ...]


class _Refused(ValueError):
    """Well-formed for a lenient parser, and still not an answer."""


def read_answer(text: str, answer: type[BaseModel], rules: Rules | None = None) -> Valid | Invalid:
    """Validate by shape, schema and rules, in this order; the first line that breaks ends it."""
    if len(text) > ANSWER_LIMIT:
        return Invalid("model_schema", (f"the answer is longer than {ANSWER_LIMIT} characters",))
    body = text.strip().removeprefix("\ufeff").lstrip()
    if body.startswith(_THINK_OPEN):
        _, closed, body = body.partition(_THINK_CLOSE)
        if not closed:
            return Invalid("model_truncated", ("the answer ended inside its reasoning",))
        body = body.lstrip()
    if not body:
        return Invalid("model_empty_content", ("the answer holds no text",))
    try:
        candidate = _one_object(body)
    except _Refused as error:
        return Invalid("model_schema", (str(error),))
    except ValueError as error:
        return Invalid("model_invalid_json", (f"not exactly one JSON object: {error}",))
    return _validate(candidate, answer, rules)


def _validate(candidate: str, answer: type[BaseModel], rules: Rules | None) -> Valid | Invalid:
    try:
        value = answer.model_validate_json(candidate, strict=True, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        reasons = tuple(f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in details)
        return Invalid("model_schema", reasons[:_REASON_LIMIT])
    broken = rules(value) if rules is not None else []
    return Invalid("model_rules", tuple(broken[:_REASON_LIMIT])) if broken else Valid(value, candidate)


def _one_object(body: str) -> str:
    """The text of the one JSON object in `body`.

    Raises:
        _Refused: when it is JSON that cannot be an answer.
        ValueError: when there is no object, or not only one.
    """
    start = body.find("{")
    if start < 0:
        _load(body)  # names the fault where it is not JSON at all
        raise _Refused("answer: a JSON object is wanted")
    if start and _is_json(body):
        raise _Refused("answer: a JSON object is wanted, not one inside something else")
    end = _end_of_object(body, start)
    candidate = body[start:end]
    value = _load(candidate)
    rest = body[end:]
    if (again := rest.find("{")) >= 0:
        end = _end_of_object(rest, again)
        if _load(rest[again:end]) != value:
            raise ValueError("more than one object, and they differ")
        rest = rest[:again] + rest[end:]
    if not _is_prose(body[:start], rest):
        raise ValueError("what stands around the object looks like a part of it")
    return candidate


def _is_prose(before: str, after: str) -> bool:
    """Whether the object can be no part of something larger that was cut: no structure, no comma or key beside it."""
    if _STRUCTURE.search(before) or _STRUCTURE.search(after):
        return False
    tail = before.rstrip()
    tail = tail[:-1].rstrip() if tail.endswith(('":', "':", '" :')) else tail
    return not tail.endswith((",", '"', "'", "\\")) and not after.lstrip().startswith((",", ":", '"', "'", "\\"))


def _end_of_object(text: str, start: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark in "{[":
            depth += 1
            if depth > DEPTH_LIMIT:
                raise _Refused(f"the answer is nested deeper than {DEPTH_LIMIT} levels")
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError("the object is not closed")


def _is_json(text: str) -> bool:
    try:
        _load(text)
    except _Refused:
        return True
    except ValueError:
        return False
    return True


def _load(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)
    except RecursionError:
        raise _Refused(f"the answer is nested deeper than {DEPTH_LIMIT} levels") from None
    if "\\u" in text:
        _refuse_unstorable(value)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"{double[:100]}: this key stands twice in one object")
    return result


def _constant(name: str) -> float:
    raise _Refused(f"{name} is not a JSON number")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"{text[:40]} is beyond the range of numbers")
    return number


def _refuse_unstorable(value: Any) -> None:
    match value:
        case str() if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise _Refused("a text holds NUL or half a character, which cannot be stored")
        case dict():
            for name, item in value.items():
                _refuse_unstorable(name)
                _refuse_unstorable(item)
        case list():
            for item in value:
                _refuse_unstorable(item)
