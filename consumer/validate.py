"""Stage: validate. Before it, the agent's run returned an answer; after it, the outcome writes it or a person decides.

Writes nothing. Promises: nothing that breaks the answer's schema or a business rule, and nothing above the low tier,
is committed without a person's approval.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, RootModel, ValidationError

from consumer.agents.door import Agent, Input, Tier, answer_text, read_answer_text
from consumer.errors import AgentError, ConfigurationError, ModelInvalid
from consumer.llm.answer import Valid, read_answer
from consumer.records.jobs import ClaimedJob, Review, Succeeded

_log = logging.getLogger(__name__)


def judge(agent: Agent, message: Input, answer: Any, least: Tier = Tier.LOW) -> Succeeded | Review:
    """Check what a run returned: schema, then business rules, then tier, which operators may raise to `least`.

    Raises:
        AgentError: the run returned something that is no answer at all.
    """
    if not isinstance(answer, BaseModel | Mapping):
        raise AgentError(
            f"agent {agent.name} returned {type(answer).__name__}; its run must return a {agent.answer.__name__}"
        )
    try:
        checked = _checked(agent.answer, answer)
    except _Broken as error:
        return Review("answer_schema", error.reasons, raw=_text(answer), proposed=None)
    if unbounded := not_finite(checked.model_dump()):
        return Review("answer_schema", unbounded, raw=_text(answer), proposed=None)
    proposed = answer_text(checked)
    broken = agent.broken_rules(message, checked)
    if broken:
        return Review("answer_rules", tuple(broken), raw=proposed, proposed=proposed)
    own = agent.tier_of(message, checked)
    tier = max(own, least)
    if tier > Tier.LOW:
        raised = f" (ROWCALL_LEAST_TIERS; the agent says {own.value})" if own < least else ""
        reason = f"the answer is of tier {tier.value}{raised} and waits for approval"
        return Review(f"tier_{tier.value}", (reason,), raw=proposed, proposed=proposed, tier=tier.value)
    return Succeeded(checked)


def least_tiers(named: Mapping[str, str], agents: Iterable[Agent]) -> dict[str, Tier]:
    """What operators demand, by agent: `named` is the setting, agents that are not here are told of in the log.

    Raises:
        ConfigurationError: an agent that has its effects before its answer cannot be held by the answer's tier.
    """
    here = {agent.name: agent for agent in agents}
    for name in sorted(named.keys() - here.keys()):
        _log.warning(
            "ROWCALL_LEAST_TIERS names %s, which is no agent of this worker",
            name,
            extra={"action": "least_tier_unused"},
        )
    tiers = {name: Tier(text) for name, text in named.items() if name in here}
    for name, tier in tiers.items():
        if tier > Tier.LOW and here[name].effects_before_answer:
            raise ConfigurationError(
                f"ROWCALL_LEAST_TIERS asks to hold the answers of {name}, whose effects come before its answer "
                "(effects_before_answer): move them into its @agent.act, or leave it out of the setting"
            )
    return tiers


def approved(agent: Agent, message: Input, text: str, job: ClaimedJob | None = None) -> Succeeded | Review:
    """Check an answer that a person approved: it is the one they saw, and its schema holds still.

    Rules and tier are the person's decision, but not for an answer that they wrote themselves: rules hold for people.
    """
    approval = None if job is None else job.approval
    tier = None if approval is None else approval.tier
    if job is not None and approval is not None:
        broken = approval.broken_by(agent.name, agent.version, text, job.event_id, job.key)
        if broken is not None:
            return Review("approval_stale", (broken,), raw=text, proposed=text, tier=tier)
    try:
        answer = read_answer_text(agent.answer, text)
    except ValidationError as error:
        return Review("answer_schema", reasons(error), raw=text, proposed=None)
    if approval is not None and approval.edited and (wrong := agent.broken_rules(message, answer)):
        return Review("answer_rules", tuple(wrong), raw=text, proposed=text)
    return Succeeded(answer)


def held(agent: Agent, error: ModelInvalid) -> Review:
    """The review of a model's answer that broke schema or rules after its re-ask.

    It proposes the answer's object alone, without the prose or the fence that a model may put around it.
    """
    found = read_answer(error.raw, agent.answer)
    return Review(error.code, error.reasons, raw=error.raw, proposed=found.text if isinstance(found, Valid) else None)


def reasons(error: ValidationError, place: tuple[str, ...] = ()) -> tuple[str, ...]:
    """One sentence for each thing wrong with an answer, or with the model that stands at `place` in it."""
    return tuple(f"{'.'.join(map(str, (*place, *item['loc']))) or 'answer'}: {item['msg']}" for item in error.errors())


def not_finite(value: Any, place: str = "answer") -> tuple[str, ...]:
    """One sentence for each NaN or infinity in dumped values: JSON has neither, and would turn them into null."""
    if isinstance(value, float | Decimal):
        return () if math.isfinite(value) else (f"{place}: must be a finite number",)
    if isinstance(value, Mapping):
        return tuple(text for name, item in value.items() for text in not_finite(item, str(name)))
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(text for item in value for text in not_finite(item, place))
    return ()


class _Broken(Exception):
    """An answer, or a model inside it, breaks its schema."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


def _checked(model: type[BaseModel], answer: BaseModel | Mapping[str, Any]) -> BaseModel:
    if type(answer) is model:
        return _validated(model, _fields(answer, ()), (), by_alias=False)
    values = _fields(answer, ()) if isinstance(answer, BaseModel) else _again(dict(answer), ())
    return _validated(model, values, (), by_alias=True)


def _again(value: Any, place: tuple[str, ...]) -> Any:
    """`value` with every model in it validated once more, from the inside out.

    An instance may have been built or altered without validation, and pydantic takes instances as they are. Models stay
    models of their own class and other values keep their types: a dump would pass both through serializers, and lose
    which member of a union a model was.
    """
    if isinstance(value, BaseModel):
        return _validated(type(value), _fields(value, place), place, by_alias=False)
    if isinstance(value, dict):
        return {name: _again(item, (*place, str(name))) for name, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_again(item, (*place, str(number))) for number, item in enumerate(value))
    return value


def _fields(value: BaseModel, place: tuple[str, ...]) -> Any:
    if isinstance(value, RootModel):
        return _again(value.root, place)
    # Not all of __dict__: cached properties stand there too.
    held = {name: vars(value)[name] for name in type(value).__pydantic_fields__ if name in vars(value)}
    return {name: _again(item, (*place, name)) for name, item in (held | (value.model_extra or {})).items()}


def _validated(model: type[BaseModel], values: Any, place: tuple[str, ...], *, by_alias: bool) -> BaseModel:
    try:
        return model.model_validate(values, strict=True, by_alias=by_alias, by_name=True)
    except ValidationError as error:
        raise _Broken(reasons(error, place)) from error


def _text(answer: BaseModel | Mapping[str, Any]) -> str:
    return repr(dict(answer))
