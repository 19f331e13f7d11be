"""Stage: validate. Before it, the agent's run returned an answer; after it, the outcome writes it or a person decides.

Writes nothing. Promises: nothing that breaks the answer's schema or a business rule, and nothing above the low tier,
is committed without a person's approval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ValidationError

from consumer.agents.door import Agent, Input, Tier
from consumer.errors import AgentError, ModelInvalid
from consumer.llm.answer import Valid, read_answer
from consumer.records.jobs import Review, Succeeded


def judge(agent: Agent, message: Input, answer: Any) -> Succeeded | Review:
    """Check what a run returned: schema, then business rules, then tier.

    Raises:
        AgentError: the run returned something that is no answer at all.
    """
    if not isinstance(answer, BaseModel | Mapping):
        raise AgentError(
            f"agent {agent.name} returned {type(answer).__name__}; its run must return a {agent.answer.__name__}"
        )
    try:
        checked = _checked(agent.answer, answer)
    except ValidationError as error:
        return Review("answer_schema", reasons(error), raw=_text(answer), proposed=None)
    if unbounded := not_finite(checked.model_dump()):
        return Review("answer_schema", unbounded, raw=_text(answer), proposed=None)
    proposed = checked.model_dump_json()
    broken = agent.broken_rules(message, checked)
    if broken:
        return Review("answer_rules", tuple(broken), raw=proposed, proposed=proposed)
    tier = agent.tier_of(message, checked)
    if tier > Tier.LOW:
        reason = f"the answer is of tier {tier.name.lower()} and waits for approval"
        return Review(f"tier_{tier.name.lower()}", (reason,), raw=proposed, proposed=proposed)
    return Succeeded(checked)


def approved(agent: Agent, text: str) -> Succeeded | Review:
    """Check an answer that a person approved: its schema holds still; rules and tier are the person's decision."""
    try:
        return Succeeded(agent.answer.model_validate_json(text, strict=True, by_alias=True, by_name=True))
    except ValidationError as error:
        return Review("answer_schema", reasons(error), raw=text, proposed=None)


def held(agent: Agent, error: ModelInvalid) -> Review:
    """The review of a model's answer that broke schema or rules after its re-ask.

    It proposes the answer's object alone, without the prose or the fence that a model may put around it.
    """
    found = read_answer(error.raw, agent.answer)
    return Review(error.code, error.reasons, raw=error.raw, proposed=found.text if isinstance(found, Valid) else None)


def reasons(error: ValidationError) -> tuple[str, ...]:
    """One sentence for each thing wrong with an answer."""
    return tuple(f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors())


def not_finite(value: Any, place: str = "answer") -> tuple[str, ...]:
    """One sentence for each NaN or infinity in dumped values: JSON has neither, and would turn them into null."""
    if isinstance(value, float | Decimal):
        return () if math.isfinite(value) else (f"{place}: must be a finite number",)
    if isinstance(value, Mapping):
        return tuple(text for name, item in value.items() for text in not_finite(item, str(name)))
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(text for item in value for text in not_finite(item, place))
    return ()


def _checked(model: type[BaseModel], answer: BaseModel | Mapping[str, Any]) -> BaseModel:
    if type(answer) is model:
        # An instance may have been built or altered without validation.
        return model.model_validate(dict(answer), strict=True, by_name=True)
    values = dict(answer) if isinstance(answer, BaseModel) else answer
    return model.model_validate(values, strict=True, by_alias=True, by_name=True)


def _text(answer: BaseModel | Mapping[str, Any]) -> str:
    return repr(dict(answer))
