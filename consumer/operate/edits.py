"""Answers that a person gives or edits: kept as JSON to the letter, checked by the agent's schema and rules.

Promises: a value keeps its type, an explicit null stays one, and no edit is lost in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from consumer.agents.door import Agent, answer_text, read_answer_text
from consumer.errors import OperatorError
from consumer.operate.act import Row
from consumer.records import payload


def answer_json(answer: Any) -> str:
    """An answer as it is stored.

    Raises:
        OperatorError: when JSON has no form for it.
    """
    try:
        return answer_text(answer)
    except (ValueError, TypeError) as error:
        raise OperatorError(f"the answer cannot be stored as JSON: {error}. Give another with --answer") from error


def edited(text: str, edits: Mapping[str, Any], agent: Agent | None) -> str:
    """The answer in `text` with these fields set; a dot in a name goes into a nested object.

    Raises:
        OperatorError: there is no such field, or no object to go into.
    """
    answer: Any = json.loads(text)
    for name, value in edits.items():
        *path, last = name.split(".")
        place = answer
        for number, part in enumerate(path):
            key = _key(place, part, agent if number == 0 else None)
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise OperatorError(f"cannot set {name}: there is no object to set it in. Give the whole with --answer")
        place[_key(place, last, None if path else agent)] = value
    return answer_json(answer)


def check(agent: Agent, review: Row, text: str, *, rules: bool) -> None:
    """Check an answer by the agent's schema, and by its rules where a person has given it.

    Raises:
        OperatorError: naming what is wrong with it.
    """
    try:
        answer = read_answer_text(agent.answer, text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors())
        raise OperatorError(
            f"the answer does not fit {agent.answer.__name__}: {wrong}. Give another with --answer"
        ) from error
    if not rules:
        return
    message = payload.read(
        review["input_kind"], review["payload"], event_id=review["event_id"] or f"job:{review['job_id']}",
        key=review["key"],
    )  # fmt: skip
    if broken := agent.broken_rules(message, answer):
        raise OperatorError(f"the answer breaks a rule: {'; '.join(broken)}. Give another", code="answer_rules")


def _key(place: Any, name: str, agent: Agent | None) -> str:
    """The name under which the object has the field: a model may have answered by alias."""
    if not isinstance(place, dict) or name in place or agent is None:
        return name
    for field, info in agent.answer.model_fields.items():
        forms = {field, info.alias, info.validation_alias}
        if name in forms:
            return next((form for form in forms if isinstance(form, str) and form in place), name)
    known = ", ".join(agent.answer.model_fields)
    if agent.answer.model_config.get("extra") == "allow":
        return name
    raise OperatorError(f"{agent.answer.__name__} has no field {name!r}; its fields are {known}")
