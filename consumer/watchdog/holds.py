"""What holds work up or waits for a person: spent budgets, storms, parked runs, old reviews, dead letters.

Before it, workers and intake have written it; after it, `decide`. Writes nothing. Promises: each message names the
command to run; each subject is one finding however many runs stand behind it, and its end is told.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from consumer import db
from consumer.watchdog.observation import BAD, Fault, Known, Observation, moment

_SQL: Final = db.queries("watchdog")
Row = Mapping[str, Any]

# Kind of subject → what is said when it is over.
_OVER: Final = {
    "budget": "no budget holds its runs any more",
    "storm": "its runs flow again",
    "parked": "no run is parked for it any more",
    "review": "no review of it waits for a decision any more",
    "dead_letters": "nobody needs to deal with its dead letters any more",
}
_PARKED: Final = {
    "causation_loop": ("causation", "set each other off in a loop, too deep or too many"),
    "budget_root": ("budget_root", "stand under a root event that has spent its budget"),
    "older_than_horizon": ("older_than_horizon", "have events older than the dedup horizon"),
}


def look(session: db.SyncSession, known: Mapping[str, Known]) -> list[Observation]:
    """Every hold there is, and those that are over."""
    held = session.execute(_SQL["holds"]).fetchall()
    found = [
        *(_budget(row) for row in held if row["reason"] == "budget"),
        *_storms(row for row in held if row["reason"] == "storm"),
        *(_parked(row) for row in session.execute(_SQL["parked"]).fetchall()),
        *(_review(row) for row in session.execute(_SQL["open_reviews"]).fetchall()),
        *(_dead_letters(row) for row in session.execute(_SQL["dead_letter_topics"]).fetchall()),
    ]
    return [*found, *_over(known, {item.subject for item in found})]


def _budget(row: Row) -> Observation:
    budget = row["budget_id"]
    until = "for ever" if row["until"] is None else f"until {moment(row['until'])}"
    message = (
        f"budget {budget} is spent and its runs wait {until} ({row['detail']}); see `rowcall budgets show {budget}`, "
        "raise it with `rowcall budgets set` or end it with `rowcall budgets remove`"
    )
    return _held(f"budget:{budget}", row["since"], message)


def _storms(rows: Iterable[Row]) -> Iterable[Observation]:
    for topic, group in groupby(sorted(rows, key=lambda row: (row["topic"], row["agent"])), lambda row: row["topic"]):
        held = list(group)
        agents = ", ".join(row["agent"] for row in held)
        message = (
            f"{topic} storms and its runs of {agents} are held ({held[0]['detail']}); see `rowcall limits storms`, or "
            f'let them go with `rowcall limits resume {held[0]["agent"]} --reason "…"`'
        )
        yield _held(f"storm:{topic}", min(row["since"] for row in held), message)


def _parked(row: Row) -> Observation:
    name, why = _PARKED[row["reason"]]
    run = row["run_id"]
    message = (
        f"runs are parked that {why}, run {run} of agent {row['agent']} first; see `rowcall jobs show {run}` and "
        "`rowcall jobs list --status PARKED`, then `rowcall jobs retry` or `rowcall jobs cancel`"
    )
    return _held(f"parked:{name}", row["since"], message, run)


def _review(row: Row) -> Observation:
    agent, faults = row["agent"], []
    if row["escalated_at"] is not None:
        message = f"reviews of agent {agent} wait for too long; see `rowcall reviews list --escalated`"
        faults.append(Fault("late", row["escalated_at"], message))
    if row["expiring_at"] is not None:
        message = (
            f"review {row['review_id']} of agent {agent} is denied at {moment(row['expires_at'])} unless somebody "
            f"decides it; see `rowcall reviews show {row['review_id']}`"
        )
        faults.append(Fault("failed", row["expiring_at"], message))
    return Observation(f"review:{agent}", faults=tuple(faults), note="no review of it is old")


def _dead_letters(row: Row) -> Observation:
    message = (
        f"messages of {row['topic']} could not be handled ({row['error_code']}); see `rowcall dead-letters show "
        f"{row['id']}` and `rowcall dead-letters list`, then redrive or discard them"
    )
    return _held(f"dead_letters:{row['topic']}", row["since"], message)


def _held(subject: str, since: dt.datetime, message: str, run: int | None = None) -> Observation:
    return Observation(subject, None, faults=(Fault("failed", since, message, run),))


def _over(known: Mapping[str, Known], seen: set[str]) -> Iterable[Observation]:
    for item in known.values():
        kind = item.subject.partition(":")[0]
        if kind in _OVER and item.subject not in seen and item.state in BAD:
            yield Observation(item.subject, note=_OVER[kind])
