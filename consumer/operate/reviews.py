"""Reviews as people see them: what waits, and one request whole, with its evidence and what has changed since.

Reads only. `deciding` has the decisions, `bypasses` the times in which the medium tier is let through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.errors import OperatorError, Outage, RowcallError
from consumer.operate.act import Row, every, one
from consumer.records import Change, decode, payload
from consumer.records.staleness import same

STATES: Final = ("OPEN", "APPROVED", "REJECTED", "CLOSED", "AGAIN", "STALE", "SUPERSEDED", "EXPIRED")
TIERS: Final = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class ReviewReport:
    """One review: the request as it was made, its evidence, and the row since then.

    `proposed_answer` is None where no answer could be read. `changes` has a mapping for each column that the write
    would set, as it stood (`now`) and as it would stand (`then`); None where the agent cannot tell. `row_changed` names
    the columns the run looked at that have another value by now, ("the row is gone",) for a row that is gone, and is
    None where there is no row to look at.
    """

    review: Row
    reasons: Sequence[str]
    raw_answer: str | None
    proposed_answer: Any
    changes: Sequence[Mapping[str, Any]] | None
    steps: Sequence[Row]
    calls: Sequence[Row]
    row_changed: Sequence[str] | None

    @property
    def digest(self) -> str | None:
        """What a decision about this very request is bound to."""
        found: str | None = self.review["digest"]
        return found


def list_reviews(
    session: db.SyncSession,
    *,
    state: str | None = "OPEN",
    agent: str | None = None,
    tier: str | None = None,
    key: str | None = None,
    escalated: bool = False,
    limit: int = 50,
) -> list[Row]:
    """Reviews, the longest waiting first; with `state` None decided ones follow. `key` is the run's, as it is shown.

    Raises:
        OperatorError: for a state or a tier there is not.
    """
    if state is not None and state.upper() not in STATES:
        raise OperatorError(f"there is no review state {state}; the states are {', '.join(STATES)}")
    if tier is not None and tier not in TIERS:
        raise OperatorError(f"there is no tier {tier}; the tiers are {', '.join(TIERS)}")
    wanted = {
        "state": state and state.upper(), "agent": agent, "tier": tier, "key": key, "escalated": escalated,
        "limit": limit,
    }  # fmt: skip
    return every(session, "list_reviews", wanted)


def show_review(session: db.SyncSession, review_id: int) -> ReviewReport:
    """One review, whole.

    Raises:
        OperatorError: when there is none of this ID.
    """
    row = one(session, "review", (review_id,))
    if row is None:
        raise OperatorError(f"there is no review {review_id}")
    proposed, changes = row["proposed_answer"], row["changes"]
    return ReviewReport(
        row,
        tuple(row["reasons"]),
        row["raw_answer"],
        None if proposed is None else json.loads(proposed),
        None if changes is None else json.loads(changes),
        every(session, "evidence_steps", (review_id,)),
        every(session, "evidence_calls", (review_id,)),
        _row_changed(session, row),
    )


def _row_changed(session: db.SyncSession, review: Row) -> Sequence[str] | None:
    if review["seen"] is None or review["input_kind"] != "change" or review["state"] != "OPEN":
        return None
    seen: Mapping[str, Any] = decode(review["seen"])
    change = payload.read("change", review["payload"], event_id=str(review["event_id"]))
    if not isinstance(change, Change) or not change.key:
        return None
    try:
        now = db.row_now(session, change.origin.schema, change.origin.table, change.key)
    except Outage:
        raise
    except RowcallError:
        # The table is of another database, or gone: what is under review is shown all the same.
        return None
    if now is None:
        return ("the row is gone",)
    return tuple(name for name, value in seen.items() if name in now and not same(value, now[name]))
