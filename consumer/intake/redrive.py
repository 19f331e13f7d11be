"""Re-drives a dead letter: the same message through the same decoding, triggers and rows, by a person's wish.

It bypasses the dedup by a delivery number of its own, so an event that was recorded before it failed runs all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consumer import activate, db, dead_letters
from consumer.agents.door import Agent
from consumer.dead_letters import OFFSET_GAP
from consumer.dedup import Calendar, NewJob
from consumer.dedup import redrive as admit_again
from consumer.errors import OperatorError
from consumer.intake.jobs import jobs_of
from consumer.intake.own_writes import OwnWrites, cause_of, woken_by_others
from consumer.intake.roster import view
from consumer.intake.routing import route
from consumer.settings import Settings
from consumer.wire import Decoder


def redrive(
    session: db.SyncSession,
    settings: Settings,
    agents: Sequence[Agent],
    decoder: Decoder,
    letter_id: int,
    *,
    actor: str,
) -> Mapping[str, int]:
    """Handle a dead letter again and close it: agent → delivery number of the job it got; empty if nobody wants it.

    Raises:
        OperatorError: there is no such open dead letter, it still cannot be handled, or its agent is not active here.
        Outage: database or registry is away; nothing has changed.
        DataRefused: the database still refuses it; nothing has changed.
    """
    row = dead_letters.shown(session, letter_id)
    if row["error_code"] == OFFSET_GAP:
        raise OperatorError(
            f"dead letter {letter_id} stands for messages that Kafka has lost; it can only be discarded"
        )
    jobs = _jobs(session, settings, agents, decoder, row)
    calendar = Calendar(settings.dedup_days)
    calendar.refresh(session)
    calendar.ensure(session, {job.day for job in jobs if job.day is not None})
    with db.transaction(session):
        dead_letters.hold(session, letter_id)
        deliveries = admit_again(session, jobs, calendar)
        dead_letters.close(session, letter_id, state="REDRIVEN", actor=actor, detail={"deliveries": deliveries})
    return deliveries


def discard(session: db.SyncSession, letter_id: int, *, actor: str, reason: str) -> None:
    """Close a dead letter without handling it.

    Raises:
        OperatorError: there is no such open dead letter.
    """
    with db.transaction(session):
        dead_letters.close(session, letter_id, state="DISCARDED", actor=actor, detail={"reason": reason})


def _jobs(
    session: db.SyncSession,
    settings: Settings,
    agents: Sequence[Agent],
    decoder: Decoder,
    row: Mapping[str, Any],
) -> list[NewJob]:
    record = dead_letters.record_of(dict(row))
    roster = activate.roster(session)
    seen = view(roster, agents)
    if record.topic in seen.left_alone:
        lacking = [item.name for item in roster.rows if item.name in seen.lacking and record.topic in item.topics]
        raise OperatorError(_left_alone(record.topic, lacking))
    subscribed = [agent for agent in seen.by_topic.get(record.topic, ()) if row["agent"] in (None, agent.name)]
    if not subscribed:
        raise OperatorError(f"no active agent of this process takes messages of {record.topic}")
    routed = route([record], decoder, {(record.topic, record.partition): [(agent, 0) for agent in subscribed]})
    if routed.letters:
        letter = routed.letters[0][1]
        raise OperatorError(f"it still cannot be handled ({letter.code}): {letter.error}")
    own_writes = OwnWrites(settings.own_sources)
    writers = own_writes.writers(session, routed.hits)
    jobs = []
    for found in routed.hits:
        writer = own_writes.writer_of(found.message, writers)
        hit = woken_by_others(found, writer, routed)
        if hit is not None:
            jobs += jobs_of(hit, cause_of(hit.message, writer))
    return jobs


def _left_alone(topic: str, lacking: Sequence[str]) -> str:
    names = ", ".join(lacking)
    return (
        f"messages of {topic} are left alone here: the database has {names} as active on it, and ROWCALL_AGENTS of "
        f"this command has no code of it. Add its module to ROWCALL_AGENTS and redrive again or, if it is gone or "
        f"renamed, `rowcall agents retire {lacking[0]}` first"
    )
