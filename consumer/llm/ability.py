"""What an endpoint can do, learnt from what it refuses: the forms of JSON mode, of the token limit, of temperature.

Remembered per process and answer model, so that a schema one endpoint cannot compile does not cost the other agents
theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from consumer.llm.error_body import ErrorBody

Mode = Literal["json_schema", "json_object", "prompt"]

_NEXT_MODE: Final[dict[Mode, Mode]] = {"json_schema": "json_object", "json_object": "prompt"}
_STATUSES: Final = frozenset({400, 415, 422, 501})
_FORMAT: Final = re.compile(
    r"response.?format|json_?schema|json_?object|structured.?output|guided.?(?:json|decoding)", re.IGNORECASE
)
_UNSUPPORTED: Final = re.compile(r"support|not allowed|unknown|unrecognized|instead|only", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ability:
    """How a request is written."""

    mode: Mode
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True


def refused_form(status: int, error: ErrorBody) -> bool:
    """Whether the endpoint refuses the form of JSON mode, of the token limit, or of temperature."""
    return status in _STATUSES and _part(error) is not None


def step_down(ability: Ability, error: ErrorBody, *, automatic: bool) -> Ability | None:
    """The next form to try; None where there is none, or where the setting fixes the mode that was refused."""
    match _part(error):
        case "format" if automatic and ability.mode in _NEXT_MODE:
            return replace(ability, mode=_NEXT_MODE[ability.mode])
        case "tokens" if ability.tokens_field == "max_tokens":
            return replace(ability, tokens_field="max_completion_tokens")
        case "temperature" if ability.temperature:
            return replace(ability, temperature=False)
    return None


def _part(error: ErrorBody) -> Literal["format", "tokens", "temperature"] | None:
    text = f"{error.parameter} {error.code} {error.message}"
    if "json_validate_failed" in error.names or error.generation:
        return None
    if _FORMAT.search(text):
        return "format"
    if "max_completion_tokens" in text and "max_tokens" in text:
        return "tokens"
    if "temperature" in text and _UNSUPPORTED.search(text):
        return "temperature"
    return None
