"""Answers at the door: their tiers, and the text they are stored as."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel


@functools.total_ordering
class Tier(enum.Enum):
    """How far an answer may act by itself: LOW runs, MEDIUM waits for review, HIGH has no effect before approval.

    Ordered, so that `max(POLICY[action], Tier(answer.risk_level))` lets the model raise the tier and never lower it.
    """

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    def __lt__(self, other: Tier) -> bool:
        order = list(Tier)
        return order.index(self) < order.index(other)


def answer_text(answer: Any) -> str:
    """An answer that waits for a person, or that a person gave, as it is stored: plain JSON, fields by their names.

    Raises:
        ValueError: when it holds NaN or an infinity, which JSON has not.
    """
    if isinstance(answer, BaseModel):
        # Without computed fields, which no model takes back.
        return answer.model_dump_json(by_alias=False, round_trip=True)
    return json.dumps(answer, allow_nan=False)


def read_answer_text(model: type[BaseModel], text: str) -> BaseModel:
    """The answer in text that `answer_text` or a model wrote: fields by their names or their aliases.

    Raises:
        pydantic.ValidationError: when it breaks the schema.
    """
    return model.model_validate_json(text, strict=True, by_alias=True, by_name=True)


def choices(answer: BaseModel) -> dict[str, Any]:
    """What an answer chooses: the values of its fields of few values (Literal, Enum, bool, null), of others the type.

    Two answers with the same choices ask a person for the same decision, whatever their texts and numbers.
    """
    kinds = {name: field.annotation for name, field in type(answer).model_fields.items()}
    return {name: _choice(kind, getattr(answer, name)) for name, kind in kinds.items()}


def _choice(kind: Any, value: Any) -> Any:
    match value:
        case BaseModel():
            return choices(value)
        case Mapping():
            return {str(key): _choice(kind, item) for key, item in value.items()}
        case list() | tuple():
            return [_choice(kind, item) for item in value]
        case set() | frozenset():
            return sorted((_choice(kind, item) for item in value), key=repr)
        case enum.Enum():
            return value.name
        case None | bool():
            return value
    return repr(value) if _holds_literal(kind) else type(value).__name__


def _holds_literal(kind: Any) -> bool:
    """Whether a Literal stands anywhere in the annotation, as in `Literal["a"] | None`."""
    return get_origin(kind) is Literal or any(_holds_literal(part) for part in get_args(kind))
