"""A valid answer comes out as it went in; nothing damaged ever comes out as another answer."""

from __future__ import annotations

import datetime as dt
import json
import time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from consumer.llm.answer import Invalid, Valid, read_answer


class Line(BaseModel):
    """As lax as an author can make it; and recursive, so that an inner object fits the outer schema."""

    model_config = ConfigDict(extra="allow", strict=False, allow_inf_nan=True)

    text: str = ""
    amount: float | None = None
    count: int = 0
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    lines: list[Line] = []
    more: dict[str, Line] = {}


TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = {
    "text": TEXTS | st.sampled_from(['{"a": 1}', "}", '"', "```", "</think>", "<tool_call>", "[", "\\", ","]),
    "amount": NUMBERS,
    "count": st.integers(-(2**80), 2**80),
    "flag": st.booleans(),
    "kind": st.sampled_from(["a", "b"]),
}
LINES = st.recursive(
    st.fixed_dictionaries({}, optional=PLAIN),
    lambda inner: st.fixed_dictionaries(
        {}, optional=PLAIN | {"lines": st.lists(inner, max_size=2), "more": st.dictionaries(TEXTS, inner, max_size=2)}
    ),
    max_leaves=4,
)
AROUND = st.sampled_from(
    [
        ("", ""),
        ("```json\n", "\n```"),
        ("Here it is:\n", "\nDone."),
        ("<think>{ or [?</think>\n", ""),
        ("\ufeff \n", " "),
    ]
)
PIECES = st.sampled_from(['"', "{", "}", "[", "]", ",", ":", "\\", "1", "null", " ", "NaN", "\n", "/**/", '"a":1,'])


@given(LINES, AROUND, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None)
def test_a_valid_answer_comes_out_as_it_went_in(
    value: dict[str, Any], around: tuple[str, str], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    result = read_answer(around[0] + text + around[1], Line)
    assert isinstance(result, Valid), result
    assert result.text == text
    assert result.value.model_dump(exclude_unset=True) == value


@given(LINES, AROUND, st.booleans(), st.data())
@settings(max_examples=500, deadline=None)
def test_a_cut_answer_is_never_taken_for_another_one(
    value: dict[str, Any], around: tuple[str, str], front: bool, data: st.DataObject
) -> None:
    text = around[0] + json.dumps(value) + around[1]
    # Cut at one end: an object from the middle may be a whole answer, and nobody could tell.
    cut = data.draw(st.integers(0, len(text)))
    start, end = (cut, len(text)) if front else (0, cut)
    result = read_answer(text[start:end], Line)
    if isinstance(result, Valid):
        assert result.value == Line.model_validate_json(json.dumps(value))
    elif end == len(text) and start == 0:
        pytest.fail(f"the whole answer was refused: {result}")


@given(LINES, AROUND, st.data())
@settings(max_examples=500, deadline=None)
def test_a_damaged_answer_is_taken_only_for_what_it_says(
    value: dict[str, Any], around: tuple[str, str], data: st.DataObject
) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    drop = data.draw(st.integers(0, 2))
    damaged = text[:at] + data.draw(PIECES | st.just("")) + text[at + drop :]
    result = read_answer(around[0] + damaged + around[1], Line)
    if isinstance(result, Valid) and result.value.model_dump(exclude_unset=True) != value:
        assert json.loads(damaged) == json.loads(result.text)


@given(st.text(max_size=60) | st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_no_text_at_all_makes_it_raise(text: str) -> None:
    assert isinstance(read_answer(text, Line), Valid | Invalid)


INNER = '{"text":"inner"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"more":{"x":' + INNER,
        '"x":' + INNER + "}}",
        '"x": ' + INNER,
        INNER + ',{"text":"b"}]',
        INNER + ", and so on",
        "[" + INNER,
        'the list is [1, 2], so: {"text":"a"}',
        '{"text":"a"} or {"text":"b"}',
        '{"text":"a"} or {',
        json.dumps(INNER),
        f"<tool_call>{INNER}</tool_call>",
        f'[TOOL_CALLS]{{"name":"x","arguments":{INNER}}}',
    ],
)
def test_a_part_of_something_larger_is_no_answer(text: str) -> None:
    assert isinstance(read_answer(text, Line), Invalid)


class Typed(BaseModel):
    """Types that JSON has no form for; strict still takes the one text form of each."""

    day: dt.date | None = None
    at: dt.datetime | None = None
    amount: Decimal | None = None
    id: UUID | None = None
    pair: tuple[int, int] | None = None
    lax: float | None = Field(None, strict=False)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"day":"2026-01-31"}', True),
        ('{"day":"2026-02-31"}', False),
        ('{"at":"2026-01-31T10:00:00Z"}', True),
        ('{"amount":"1.10"}', True),
        ('{"amount":"NaN"}', False),
        ('{"amount":1e999}', False),
        ('{"id":"12345678-1234-1234-1234-123456789abc"}', True),
        ('{"pair":[1,2]}', True),
        ('{"pair":[1,2,3]}', False),
        ('{"lax":"nan"}', False),
        ('{"lax":1e999}', False),
        ('{"lax":true}', False),
    ],
)
def test_strict_whatever_the_author_set(text: str, valid: bool) -> None:
    assert isinstance(read_answer(text, Typed), Valid) is valid


@pytest.mark.parametrize(
    "text", ['{"text":"' + '\\"' * 400_000, "{" + " " * 900_000, '"' + " " * 900_000 + INNER, "{" * 900_000]
)
def test_a_hostile_answer_costs_no_more_than_its_length(text: str) -> None:
    began = time.perf_counter()
    assert isinstance(read_answer(text, Line), Invalid)
    assert time.perf_counter() - began < 2
