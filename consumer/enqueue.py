"""Queueing a run by hand: what `rowcall enqueue` does and, in the database, a trigger through `rowcall.enqueue(…)`.

Before it a person, a schedule or a producer; after it the claim. Writes one PENDING job, or one coalesced event beside
the job that holds the dedupe_key. Promises: a taken key is no error and no second run.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from consumer import db
from consumer.errors import DataRefused, OperatorError
from consumer.records import encode

_SQL = db.queries("enqueue")


@dataclass(frozen=True, slots=True)
class Queued:
    """The run that will handle the payload; `coalesced` when it is an earlier one that holds the dedupe_key."""

    job_id: int
    coalesced: bool
    status: str
    run_after: dt.datetime


def enqueue(
    session: db.SyncSession,
    agent: str,
    payload: Any,
    *,
    dedupe_key: str | None = None,
    key: str | None = None,
    run_after: dt.datetime | None = None,
    max_attempts: int = 5,
    tenant: str = "default",
    priority: int = 0,
    hold_key: bool = False,
    known: Iterable[str] = (),
    force: bool = False,
) -> Queued:
    """Queue one run of `agent` with `payload`, any value of the codec.

    With `hold_key` a run that is due later holds up later runs of its key until then; without it they pass it by.
    `known` are agents in code beside those the database knows; `force` queues for any name that is not retired, as for
    an agent that is deployed later.

    Raises:
        OperatorError: the agent is unknown or retired, or the database refuses a value.
        Outage, ConfigurationError: as `db.connect`.
    """
    parameters = {
        "agent": agent,
        "payload": encode(payload),
        "dedupe_key": dedupe_key,
        "key": key,
        "run_after": run_after,
        "max_attempts": max_attempts,
        "tenant": tenant,
        "priority": priority,
        "hold_key": hold_key,
    }
    try:
        with db.transaction(session):
            if not force:
                _check_known(session, agent, known)
            queued = session.execute(_SQL["enqueue"], parameters).fetchone()
            assert queued is not None
            # Last, for an outcome too takes the run before the agent.
            _refuse_retired(session, agent)
            row = session.execute(_SQL["queued"], (queued["id"],)).fetchone()
            assert row is not None
    except DataRefused as error:
        raise OperatorError(f"the database refuses this run: {error}") from error
    return Queued(row["id"], row["coalesced"], row["status"], row["run_after"])


def parse_payload(text: str) -> Any:
    """The value of JSON text, integers of any size kept exact.

    Raises:
        OperatorError: saying where it is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise OperatorError(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Quote it for the shell, as in '{\"id\": 42}'"
        ) from error
    except ValueError as error:
        raise OperatorError("it holds an integer of more digits than are read") from error
    except RecursionError as error:
        raise OperatorError("it is nested too deeply") from error


def _no_constant(name: str) -> NoReturn:
    raise OperatorError(f"not JSON: {name} is no JSON number")


def _check_known(session: db.SyncSession, agent: str, known: Iterable[str]) -> None:
    stored = {row["name"]: row["retired"] for row in session.execute(_SQL["known_agents"])}
    names = {name for name in stored.keys() | set(known) if not stored.get(name)}
    if agent in names:
        return
    if agent in stored:
        raise _retired(agent)
    raise OperatorError(
        f"no agent {agent!r} is known; known are: {', '.join(sorted(names)) or 'none'}. "
        "Add its module to ROWCALL_AGENTS, or queue it all the same with --force",
        code="unknown_agent",
    )


def _refuse_retired(session: db.SyncSession, agent: str) -> None:
    row = session.execute(_SQL["hold_agent"], (agent,)).fetchone()
    if row is not None and row["retired"]:
        raise _retired(agent)


def _retired(agent: str) -> OperatorError:
    return OperatorError(f"agent {agent!r} is retired and runs no more", code="agent_retired")
