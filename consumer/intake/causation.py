"""The rules of causation, and what of a message must be looked at before its jobs are admitted like all others.

Before: `own_writes` says what a message was caused by. After: `consumer.dedup` parks, counts and coalesces. An agent's
own write never comes here, it is filtered before. Promises: a chain that meets the same agent for the same row again,
or grows deeper than ROWCALL_MAX_DEPTH, ends in a parked job and an alert. The same rules for jobs that are queued
inside the database are in sql/functions/inherit_cause.sql.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from consumer import db, telemetry
from consumer.agents.door import Agent, Coalesce
from consumer.dedup import CAUSATION_LOOP, Merge, Parked, Special
from consumer.intake.jobs import lane_of
from consumer.intake.own_writes import Cause
from consumer.intake.routing import Hit
from consumer.records import Change, payload
from consumer.records.chain import entry

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("intake")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def specials_of(hit: Hit, cause: Cause, max_depth: int) -> Iterator[tuple[tuple[str, str], Special]]:
    """What is special about the jobs of a message, by (agent, event ID); agents with plain jobs are left out."""
    lane = lane_of(hit)
    for agent in hit.agents:
        fault = None if cause.root is None else fault_of(agent, lane, cause, max_depth)
        merge = _merge(hit, lane, agent.coalesce) if agent.coalesce is not None and lane is not None else None
        if cause.root is not None or merge is not None:
            special = Special(cause.root, cause.job, cause.depth, cause.chain, fault, merge)
            yield (agent.name, hit.message.id), special


def fault_of(agent: Agent, lane: int | None, cause: Cause, max_depth: int) -> str | None:
    """Which rule of causation a run of the agent for this lane would break; None where it breaks none.

    An agent with `on_own_write="run"` has asked to follow itself: its own runs just before do not count as a loop.
    """
    chain: Sequence[str] = cause.chain
    mine = entry(agent.name, lane)
    if agent.on_own_write == "run":
        while chain and chain[-1] == mine:
            chain = chain[:-1]
    if lane is not None and mine in chain:
        return f"agent {agent.name} already stands for this row in the chain that led here: {' → '.join(cause.chain)}"
    if cause.depth > max_depth:
        return f"{cause.depth} runs deep, ROWCALL_MAX_DEPTH is {max_depth}: {' → '.join(cause.chain)}"
    return None


def announce(loops: Iterable[Parked]) -> None:
    """Alert of jobs that have been parked: one line for each agent and root, and the metric for each job."""
    by_kind: dict[tuple[str, str], list[Parked]] = {}
    for parked in loops:
        telemetry.CAUSATION_LOOPS.add(agent=parked.agent)
        by_kind.setdefault((parked.agent, parked.root), []).append(parked)
    for (agent, root), parts in by_kind.items():
        _log.error(
            "%d jobs of agent %s are parked, the first is %d: %s. Look at `rowcall jobs show %d`, then "
            "`rowcall jobs retry --root %s` or `rowcall jobs cancel --root %s`",
            len(parts), agent, parts[0].job_id, parts[0].why, parts[0].job_id, root, root,
            extra={"action": CAUSATION_LOOP, "agent": agent, "job_id": parts[0].job_id, "root_event": root,
                   "jobs": len(parts)},
        )  # fmt: skip


def alert_queued(session: db.SyncSession) -> None:
    """Alert of what was parked inside the database since an intake last looked."""
    with db.translated():
        found = session.execute(_SQL["any_alerts"]).fetchone()
    if found is None or not found["found"]:
        return
    with db.transaction(session):
        rows = session.execute(_SQL["take_alerts"]).fetchall()
        announce(Parked(row["id"], row["agent"], row["root"], row["why"]) for row in rows)


def _merge(hit: Hit, lane: int, rule: Coalesce) -> Merge:
    message = hit.message
    occurred = (
        _EPOCH + dt.timedelta(milliseconds=message.origin.committed_ms)
        if isinstance(message, Change)
        else message.occurred_at
    )
    return Merge(
        rule.window.total_seconds(),
        rule.longest.total_seconds(),
        rule.latest,
        lane,
        payload.kind_of(message),
        payload.write(message),
        occurred,
    )
