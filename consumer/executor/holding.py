"""Between a verdict and its review: what the person is shown, and what their decision will be bound to.

Reads the row as it stands, asks the agent what its write would set, and fixes the digests. Runs no agent code but the
pure `preview`: nothing may have an effect before an approval.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from consumer import db, review
from consumer.agents.door import Agent, Input, choices, read_answer_text
from consumer.errors import AgentError, Outage, RowcallError
from consumer.llm.render import render
from consumer.records import UNCHANGED, Change, ReadRow, encode, payload
from consumer.records.approval import digest_of, shape_of
from consumer.records.jobs import ClaimedJob, Review, storable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long reviews wait where their agent does not say, in seconds."""

    expires: float
    escalates: float


async def request_of(
    session: db.Session, job: ClaimedJob, agent: Agent, message: Input | None, verdict: Review, waits: Waits
) -> review.Request:
    """The request that a held answer makes to a person.

    Raises:
        Outage: the row cannot be read now.
    """
    answer = _answer(agent, verdict.proposed)
    subject = verdict.now if verdict.now is not None else message
    # Before the preview looks at the row: what it reads is no reason for an approval to become stale.
    seen = _seen(subject)
    seen_text = None if seen is None else encode(seen)
    changes = await _changes(session, job, agent, subject, answer)
    text = verdict.proposed if verdict.proposed is not None else verdict.raw
    return review.Request(
        code=verdict.code,
        reasons=verdict.reasons,
        raw=verdict.raw,
        proposed=verdict.proposed,
        tier=verdict.tier,
        version=agent.version,
        digest=digest_of(agent.name, agent.version, text, job.event_id, job.key),
        shape=shape_of(
            agent.name, agent.version, verdict.code, verdict.tier, None if answer is None else choices(answer)
        ),
        seen=seen_text,
        seen_digest=None if seen_text is None else sha256(seen_text.encode()).hexdigest(),
        changes=changes,
        stale=review.stale_text(verdict.stale),
        expires=waits.expires if agent.review_expires is None else agent.review_expires.total_seconds(),
        escalates=waits.escalates if agent.review_escalates is None else agent.review_escalates.total_seconds(),
        payload=None if verdict.now is None else payload.write(_plain(verdict.now)),
    )


def _answer(agent: Agent, text: str | None) -> BaseModel | None:
    try:
        return None if text is None else read_answer_text(agent.answer, text)
    except ValidationError:
        return None


def _seen(message: Input | None) -> dict[str, Any] | None:
    """The columns that the run read, with their values; None where there is no row to come back to."""
    if not isinstance(message, Change) or not message.key or not isinstance(message.after, ReadRow):
        return None
    row = message.after.whole
    return {name: row[name] for name in sorted(message.after.read) if name in row and row[name] is not UNCHANGED}


def _plain(change: Change) -> Change:
    after = change.after.whole if isinstance(change.after, ReadRow) else change.after
    return Change(change.id, change.operation, change.before, after, change.key, change.origin, change.coordinates)


async def _changes(
    session: db.Session, job: ClaimedJob, agent: Agent, message: Input | None, answer: BaseModel | None
) -> str | None:
    """Column by column what the write would set and how the row stands; None where the agent cannot tell."""
    if answer is None or message is None:
        return None
    try:
        columns = agent.previewed(message, answer)
    except Exception as error:  # noqa: BLE001 - a preview that fails must not cost the person the answer
        _log.error(
            "the agent's preview failed: %s", error, exc_info=error, extra={"action": "preview_failed", **job.labels}
        )
        return None
    if columns is None:
        return None
    current = await _current(session, message)
    told = []
    for name, value in columns.items():
        then = {"column": storable(str(name)), "then": _fragment(value)}
        told.append(then if current is None or name not in current else {**then, "now": _fragment(current[name])})
    return orjson.dumps(told).decode()


async def _current(session: db.Session, message: Input) -> Mapping[str, Any] | None:
    # A row of another database was not watched; a table of the same name here is another one.
    if not isinstance(message, Change) or not message.key or not isinstance(message.after, ReadRow):
        return None
    try:
        return await db.read_row(session, message.origin.schema, message.origin.table, message.key)
    except Outage:
        raise
    except RowcallError as error:
        # Of another database, or not there any more: the person is shown what there is.
        _log.info("the row under review cannot be read: %s", error, extra={"action": "row_unread"})
        return None


def _fragment(value: Any) -> orjson.Fragment:
    try:
        return orjson.Fragment(render(value))
    except AgentError:
        return orjson.Fragment(render(repr(value)))
