"""What may be committed without a person: nothing that breaks the schema, however its models came to be."""

from __future__ import annotations

import datetime as dt
import enum
import functools
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_serializer

from consumer import validate
from consumer.agents.door import Agent, Tier, answer_text, read_answer_text
from consumer.errors import ConfigurationError
from consumer.records import Event
from consumer.records.jobs import Review, Succeeded

EVENT = Event("e", None, None, {}, {}, None, None)


class Colour(enum.Enum):
    RED = "red"


class Inner(BaseModel):
    n: int = Field(le=5)


class Other(BaseModel):
    n: int


class Wrapped(RootModel[list[Inner]]):
    pass


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner = Inner(n=1)
    many: list[Inner] = []
    by_name: dict[str, tuple[Inner, ...]] = {}
    wrapped: Wrapped = Wrapped([])
    either: Inner | Other | None = None


class Rich(BaseModel):
    """Values that keep their Python types, and members that no model takes back."""

    model_config = ConfigDict(extra="forbid")

    at: dt.datetime
    price: Decimal
    colour: Colour
    raw: bytes
    labels: frozenset[str]
    named: int = Field(alias="theName")

    @computed_field
    def twice(self) -> int:
        return self.named * 2

    @functools.cached_property
    def thrice(self) -> int:
        return self.named * 3

    @field_serializer("at")
    def _at(self, value: dt.datetime) -> str:
        return value.isoformat()


RICH = Rich(
    at=dt.datetime(2026, 1, 5, tzinfo=dt.UTC), price=Decimal("1.10"), colour=Colour.RED, raw=b"x",
    labels=frozenset({"a"}), theName=4,
)  # fmt: skip


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    big: int = Field(alias="theBig")
    text: str = ""


def agent(answer: type[BaseModel]) -> Agent:
    return Agent(name="a", version=1, answer=answer)


def altered() -> Inner:
    inner = Inner(n=1)
    inner.n = 99
    return inner


@pytest.mark.parametrize(
    ("values", "place"),
    [
        (lambda: {"inner": altered()}, "inner.n"),
        (lambda: {"inner": Inner.model_construct(n="DROP")}, "inner.n"),
        (lambda: {"inner": Inner.model_construct()}, "inner.n"),
        (lambda: {"many": [Inner(n=1), altered()]}, "many.1.n"),
        (lambda: {"by_name": {"k": (altered(),)}}, "by_name.k.0.n"),
        (lambda: {"wrapped": Wrapped.model_construct([altered()])}, "wrapped.0.n"),
        (lambda: {"either": altered()}, "either.n"),
    ],
)
@pytest.mark.parametrize("built", [Answer.model_construct, lambda **values: values], ids=["model", "mapping"])
def test_a_model_inside_an_answer_is_validated_however_it_was_made(values: Any, place: str, built: Any) -> None:
    verdict = validate.judge(agent(Answer), EVENT, built(**values()))
    assert isinstance(verdict, Review)
    assert verdict.code == "answer_schema"
    assert verdict.reasons[0].startswith(f"{place}: ")


def test_a_good_answer_passes_as_it_is() -> None:
    assert RICH.thrice == 12  # it stands in __dict__ from here on
    assert validate.judge(agent(Rich), EVENT, RICH) == Succeeded(RICH)
    answer = Answer(many=[Inner(n=2)], by_name={"k": (Inner(n=3),)}, wrapped=Wrapped([Inner(n=4)]), either=Other(n=99))
    assert validate.judge(agent(Answer), EVENT, answer) == Succeeded(answer)
    assert validate.judge(agent(Wrapped), EVENT, Wrapped([Inner(n=1)])) == Succeeded(Wrapped([Inner(n=1)]))


def test_what_is_proposed_can_be_approved() -> None:
    made = agent(Rich)
    made.tier(lambda *_: Tier.HIGH)
    held = validate.judge(made, EVENT, RICH)
    assert isinstance(held, Review) and held.proposed is not None
    assert validate.approved(made, EVENT, held.proposed) == Succeeded(RICH)


@pytest.mark.parametrize("name", ["big", "theBig"])
def test_an_answer_of_a_person_is_read_as_it_was_given(name: str) -> None:
    given = {name: 2**80, "text": "nul \x00"}
    assert read_answer_text(Strict, answer_text(given)) == Strict(theBig=2**80, text="nul \x00")
    with pytest.raises(ValueError, match="JSON"):
        answer_text(float("inf"))


def tiered(own: Tier) -> Agent:
    agent = Agent(name="tiered", version=1, topics=["t"], answer=Answer)
    agent.tier(lambda message, answer: own)
    return agent


@pytest.mark.parametrize(
    ("own", "least", "counts"),
    [
        (Tier.LOW, Tier.LOW, None),
        (Tier.LOW, Tier.MEDIUM, "medium"),
        (Tier.LOW, Tier.HIGH, "high"),
        (Tier.MEDIUM, Tier.LOW, "medium"),
        (Tier.HIGH, Tier.MEDIUM, "high"),
    ],
)
def test_an_operator_raises_a_tier_and_never_lowers_it(own: Tier, least: Tier, counts: str | None) -> None:
    judged = validate.judge(tiered(own), EVENT, Answer(), least)
    if counts is None:
        assert isinstance(judged, Succeeded)
        return
    assert isinstance(judged, Review)
    assert (judged.tier, judged.code) == (counts, f"tier_{counts}")
    assert ("ROWCALL_LEAST_TIERS" in judged.reasons[0]) == (own < least)


def test_effects_before_an_answer_cannot_be_held_by_its_tier() -> None:
    agent = Agent(name="early", version=1, topics=["t"], answer=Answer, effects_before_answer=True)
    assert validate.least_tiers({"early": "low"}, [agent]) == {"early": Tier.LOW}
    with pytest.raises(ConfigurationError, match=r"@agent\.act"):
        validate.least_tiers({"early": "medium"}, [agent])


def test_a_least_tier_of_an_agent_that_is_elsewhere_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert validate.least_tiers({"elsewhere": "high"}, [tiered(Tier.LOW)]) == {}
    assert [record.__dict__["action"] for record in caplog.records] == ["least_tier_unused"]
