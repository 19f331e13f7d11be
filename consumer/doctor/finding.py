"""One finding, and the words for a neighbour that is away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from consumer.errors import ConfigurationError, RowcallError

Level = Literal["ok", "warn", "fail"]

# What resolvers say, in the C libraries and in Java.
_UNRESOLVED: Final = (
    "resolve",
    "name or service not known",
    "nodename nor servname",
    "temporary failure in name resolution",
    "no address associated",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen and why it matters, and what to do where it is not ok."""

    level: Level
    area: str
    what: str
    why: str = ""
    advice: str = ""


def refused(area: str, error: RowcallError, setting: str) -> Finding:
    """The finding of a neighbour that cannot be used: a wrong name, a wrong login or an absence."""
    text = str(error)
    if any(words in text.lower() for words in _UNRESOLVED):
        return Finding("fail", area, "the host name cannot be resolved", text, f"correct the host in {setting}")
    if isinstance(error, ConfigurationError):
        return Finding("fail", area, "it refuses us, or a setting is wrong", text, f"correct {setting}")
    return Finding("fail", area, "it does not answer", text, f"start it, or correct {setting}; runs wait meanwhile")
