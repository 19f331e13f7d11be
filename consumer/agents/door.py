"""The door: everything an agent's author sees of Rowcall.

An agent is one file: an `Agent` with topics and an answer model, and functions hung on it. The trigger (`when`), the
`rule`s and the `tier` are pure and cheap; `run` works in checkpointed steps; `act` does what the validated (and, above
the low tier, approved) answer asks for outside; `write` puts the answer into the database inside the outcome
transaction. The executor implements `Context` and `Transaction`; an agent never holds a
connection or a Kafka client.
"""

from __future__ import annotations

from consumer.agents.agent import Agent, Input
from consumer.agents.answers import Tier, answer_text, choices, read_answer_text
from consumer.agents.context import Context, Reader, StepKind, Transaction
from consumer.agents.effects import (
    Effect,
    HttpAnswer,
    Resolution,
    Secret,
    did_not_happen,
    happened,
    secret,
    unknown,
)
from consumer.agents.retry import Retry
from consumer.agents.triggers import Coalesce

__all__ = [
    "Agent",
    "Coalesce",
    "Context",
    "Effect",
    "HttpAnswer",
    "Input",
    "Reader",
    "Resolution",
    "Retry",
    "Secret",
    "StepKind",
    "Tier",
    "Transaction",
    "answer_text",
    "choices",
    "did_not_happen",
    "happened",
    "read_answer_text",
    "secret",
    "unknown",
]
