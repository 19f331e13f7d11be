"""Digests of requests, and which requests are alike."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from consumer.agents.door import choices
from consumer.records.approval import Approval, digest_of, shape_of

BASE: dict[str, Any] = {"agent": "a", "version": 1, "answer": '{"x": 1, "y": null}', "event_id": "e", "key": "k"}


def test_a_digest_is_of_the_meaning_of_an_answer_and_not_of_its_form() -> None:
    assert digest_of(**BASE) == digest_of(**{**BASE, "answer": '{"y":null,"x":1}'})


@pytest.mark.parametrize(
    "changed",
    [
        {"agent": "b"}, {"version": 2}, {"event_id": None}, {"key": "l"}, {"answer": '{"x": 1}'}, {"answer": None},
        {"answer": '{"x": "1", "y": null}'}, {"answer": '{"x": true, "y": null}'}, {"answer": "no JSON"},
        {"answer": "[" * 200_000}, {"answer": "9" * 5_000}, {"answer": "half \ud800"},
    ],
)  # fmt: skip
def test_another_request_has_another_digest_whatever_a_model_wrote(changed: dict[str, Any]) -> None:
    assert digest_of(**BASE | changed) != digest_of(**BASE)


def test_an_approval_holds_for_the_answer_and_version_it_was_given_for() -> None:
    approval = Approval(1, digest_of(**BASE), 1, False, "medium", None)
    given = {name: value for name, value in BASE.items() if name != "version"}
    assert approval.broken_by(version=1, **given) is None
    assert "version 2" in str(approval.broken_by(version=2, **given))
    assert "not the one" in str(approval.broken_by(version=1, **given | {"answer": "{}"}))


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Part(BaseModel):
    kind: Literal["a", "b"]
    text: str = ""


class Answer(BaseModel):
    action: Literal["ship", "hold"] | None = "ship"
    level: Annotated[Literal[1, 2], Field()] = 1
    sure: bool = True
    mood: Mood = Mood.GOOD
    title: str = ""
    size: int = 0
    parts: list[Part] = []
    many: list[Literal["x", "y"]] = []
    flags: dict[str, bool] = {"a": True}
    chosen: set[Literal["x", "y"]] = {"x"}


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({"title": "other", "size": 9}, True), ({"action": "hold"}, False), ({"action": None}, False),
        ({"level": 2}, False), ({"sure": False}, False), ({"mood": Mood.BAD}, False),
        ({"parts": [Part(kind="b")]}, False), ({"parts": [Part(kind="a", text="other")]}, True),
        ({"many": ["y"]}, False), ({"flags": {"a": False}}, False), ({"chosen": {"y"}}, False),
    ],
)  # fmt: skip
def test_alike_are_answers_that_make_the_same_choices(fields: dict[str, Any], alike: bool) -> None:
    base: dict[str, Any] = {"parts": [Part(kind="a")], "many": ["x"]}
    first = shape_of("a", 1, "tier_medium", "medium", choices(Answer(**base)))
    assert (shape_of("a", 1, "tier_medium", "medium", choices(Answer(**base | fields))) == first) is alike
