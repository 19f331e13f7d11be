"""Runs as the executor holds them, and the verdicts that end or suspend them.

A `ClaimedJob` is a run with its lease: the pair (id, epoch) is the fence of everything written for it. A verdict is a
value; `outcome` turns each kind into exactly one move of the state machine.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel

from consumer.records.approval import Approval
from consumer.records.change import Change

# Longest error text kept on a job; the rest is in the logs.
ERROR_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """One run under a lease. `payload`, `approved_answer` and `stored_steps` are stored JSON text.

    `lane` is the hash of its key, `merged` how many later changes it has taken in.
    """

    id: int
    agent: str
    epoch: int
    attempt: int
    max_attempts: int
    input_kind: str
    payload: str
    steps_done: int
    event_id: str | None
    delivery: int
    occurred_at: dt.datetime | None
    key: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    root_event: str | None
    depth: int
    chain: tuple[str, ...]
    tenant: str
    traceparent: str | None
    approved_answer: str | None
    approved_by: str | None
    created_at: dt.datetime
    stored_steps: str | None
    lane: int | None = None
    merged: int = 0
    approval: Approval | None = None
    # What reviewers said when they asked for another attempt, oldest first.
    feedback: tuple[str, ...] = ()
    losses: int = 0
    postponed: int = 0
    pinned_version: int | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ClaimedJob:
        """From a row of the query `claim`."""
        return cls(
            id=row["id"],
            agent=row["job_type"],
            epoch=row["lease_epoch"],
            attempt=row["attempt_count"],
            max_attempts=row["max_attempts"],
            input_kind=row["input_kind"],
            payload=row["payload"],
            steps_done=row["steps_done"],
            event_id=row["event_id"],
            delivery=row["delivery"],
            occurred_at=row["occurred_at"],
            key=row["key_text"],
            topic=row["source_topic"],
            partition=row["source_partition"],
            offset=row["source_offset"],
            root_event=row["root_event"],
            depth=row["depth"],
            chain=tuple(row["chain"]),
            tenant=row["tenant"],
            traceparent=row["traceparent"],
            approved_answer=row["approved_answer"],
            approved_by=row["approved_by"],
            created_at=row["created_at"],
            stored_steps=row["steps"],
            lane=row["key_hash"],
            merged=row["merged"],
            approval=Approval.read(row["approval"]),
            feedback=() if row["feedback"] is None else tuple(orjson.loads(row["feedback"])),
            losses=row["losses"],
            postponed=row["postponed"],
            pinned_version=row["agent_version"],
        )

    @property
    def labels(self) -> dict[str, object]:
        """What every log line about the run carries."""
        return {"job_id": self.id, "event_id": self.event_id, "agent": self.agent, "attempt": self.attempt}

    @property
    def idempotency_key(self) -> str:
        """Stable over all attempts of one delivery of the run."""
        return f"rowcall-{self.id}-{self.delivery}"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A valid answer that may be written now."""

    answer: BaseModel


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_seconds`, or at `until`; FAILED at the attempt limit if the attempt counts."""

    code: str
    error: str
    delay_seconds: float
    counts: bool = True
    until: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """No attempt can help."""

    code: str
    error: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The agent says that there is nothing to do."""

    code: str
    error: str


@dataclass(frozen=True, slots=True)
class Review:
    """A person decides. `raw` is the model's text as received, `proposed` the answer where it could be parsed.

    `tier` is None where it is not known, as of an answer that breaks rules. Where a row has changed, `stale` has
    column → (as it was seen, as it stands), each as JSON text, and `now` the change with the row as it stands.
    """

    code: str
    reasons: tuple[str, ...]
    raw: str | None
    proposed: str | None
    tier: str | None = None
    stale: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    now: Change | None = None


@dataclass(frozen=True, slots=True)
class Rerun:
    """The row changed under the run: start again from the first step with `payload`, or end where it is None."""

    code: str
    error: str
    payload: str | None
    stale: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Released:
    """Give the run back unharmed: the worker drains, or the agent was paused."""

    reason: str
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Parked:
    """Keep the run where it is in its lane until what `reason` names has passed; no attempt is burnt."""

    reason: str
    code: str
    error: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Another owner has the run; nothing may be written."""

    reason: str


Verdict = Succeeded | Retry | Failed | Cancelled | Parked | Review | Rerun | Released | Lost


def storable(text: str) -> str:
    """`text` as Postgres takes it: NUL and lone surrogates replaced, cut at ERROR_LIMIT.

    The write that ends a run must land whatever an error message holds.
    """
    cleaned = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return cleaned if len(cleaned) <= ERROR_LIMIT else f"{cleaned[:ERROR_LIMIT]}… ({len(cleaned)} characters)"
