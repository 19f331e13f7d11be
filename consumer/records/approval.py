"""What a person's decision is bound to: a digest of the action and its arguments, and the row as the run saw it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from consumer.records.codec import decode


def digest_of(agent: str, version: int | None, answer: str | None, event_id: str | None, key: str | None) -> str:
    """Names one request: the same agent and version, answer, input event and key of the row give the same digest.

    `answer` is JSON text, whose form does not matter; or the model's text where no answer could be read from it.
    """
    try:
        value: Any = None if answer is None else json.loads(answer)
    except (ValueError, RecursionError):
        # Whatever a model wrote has a digest.
        value = {"text": answer}
    return _digest([agent, version, value, event_id, key])


def shape_of(agent: str, version: int, code: str, tier: str | None, choices: object) -> str:
    """Names requests that are alike: the same choices of the same agent, held for the same cause."""
    return _digest([agent, version, code, tier, choices])


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Approval:
    """The decision under which a run resumes.

    `seen` names the columns of the row that its answer came from; None where there is no row, or it is not known.
    """

    review_id: int
    digest: str | None
    version: int | None
    edited: bool
    tier: str | None
    seen: frozenset[str] | None

    @classmethod
    def read(cls, text: str | None) -> Approval | None:
        """From the JSON that the query `claim` brings; None where nothing was approved through a review."""
        if text is None:
            return None
        found = orjson.loads(text)
        seen = None if found["seen"] is None else frozenset(decode(found["seen"]))
        return cls(found["review"], found["digest"], found["version"], found["edited"], found["tier"], seen)

    def broken_by(self, agent: str, version: int, answer: str, event_id: str | None, key: str | None) -> str | None:
        """Why this approval is not one of that answer under that version; None where it is."""
        if self.version is not None and self.version != version:
            return f"version {self.version} of the agent was approved, and version {version} is to write it"
        if self.digest is not None and self.digest != digest_of(agent, self.version, answer, event_id, key):
            return "the answer to be written is not the one that was approved"
        return None
