"""Changes of one key that come close together: which job takes them in, and what that job then sees.

Inside the admission transaction. Promises: every event that is taken in is recorded beside its job, once; a job that a
worker claims at the same moment is left as it is, and the change gets a job of its own behind it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from consumer import db
from consumer.dedup.batch import Merge, NewJob, Special
from consumer.records.merging import merged

_SQL: Final = db.queries("dedup")


@dataclass(slots=True)
class Group:
    """What comes together in one job: one that is there, or the first of these.

    `payload` is what the job is to see; `taken` are the (event ID, payload) it takes in; `cause` is the deepest among
    them where that is deeper than the job's own.
    """

    first: NewJob
    rule: Merge
    job_id: int | None
    payload: str
    latest_at: dt.datetime | None
    depth: int
    taken: list[tuple[str, str]] = field(default_factory=list)
    cause: Special | None = None
    replaced: bool = False

    def take(self, job: NewJob, special: Special, change: Merge) -> None:
        """Take one more change in. One that happened before what is there already is recorded and changes nothing."""
        self.taken.append((job.event_id, change.payload))
        late = change.occurred_at is not None and self.latest_at is not None and change.occurred_at < self.latest_at
        if change.latest and not late:
            self.payload = merged(change.kind, self.payload, change.payload)
            self.replaced = True
        if change.occurred_at is not None and not late:
            self.latest_at = change.occurred_at
        if special.depth > self.depth:
            self.depth, self.cause = special.depth, special


def groups_of(session: db.SyncSession, waiting: Sequence[tuple[NewJob, Special]]) -> list[Group]:
    """Group the jobs of coalescing agents by agent and lane, with the job that is there for each, held."""
    if not waiting:
        return []
    found = _open_jobs(session, waiting)
    groups: dict[tuple[str, int], Group] = {}
    for job, special in waiting:
        change = special.merge
        assert change is not None
        key = (job.agent, change.lane)
        group = groups.get(key)
        if group is None:
            row = found.get(key)
            if row is None:
                groups[key] = Group(job, change, None, change.payload, change.occurred_at, special.depth)
                continue
            group = groups[key] = Group(job, change, row["id"], row["payload"], row["latest_at"], row["depth"])
        group.take(job, special, change)
    return list(groups.values())


def open_windows(session: db.SyncSession, groups: Sequence[Group]) -> None:
    """Let the new jobs wait for later changes, and fill their IDs in."""
    if not groups:
        return
    rows = session.execute(
        _SQL["open_windows"],
        {
            "agents": [group.first.agent for group in groups],
            "events": [group.first.event_id for group in groups],
            "windows": [group.rule.window for group in groups],
            "longest": [group.rule.longest for group in groups],
        },
    ).fetchall()
    ids = {(row["agent"], row["event_id"]): row["id"] for row in rows}
    for group in groups:
        group.job_id = ids[group.first.agent, group.first.event_id]


def merge(session: db.SyncSession, groups: Sequence[Group]) -> None:
    """Write what the jobs have taken in, and put what they are to see into them."""
    if not groups:
        return
    causes = [group.cause or Special() for group in groups]
    session.execute(
        _SQL["merge"],
        {
            "ids": [group.job_id for group in groups],
            "payloads": [group.payload if group.replaced else None for group in groups],
            "numbers": [len(group.taken) for group in groups],
            "latest": [group.latest_at for group in groups],
            "windows": [group.rule.window for group in groups],
            "roots": [cause.root for cause in causes],
            "parents": [cause.parent for cause in causes],
            "depths": [cause.depth for cause in causes],
            "chains": [orjson.dumps(cause.chain).decode() for cause in causes],
        },
    )
    taken = [(group.job_id, event_id, payload) for group in groups for event_id, payload in group.taken]
    if taken:
        ids, events, payloads = zip(*taken, strict=True)
        session.execute(_SQL["record_merged"], {"ids": list(ids), "events": list(events), "payloads": list(payloads)})


def _open_jobs(
    session: db.SyncSession, waiting: Sequence[tuple[NewJob, Special]]
) -> dict[tuple[str, int], dict[str, Any]]:
    keys = sorted({(job.agent, special.merge.lane) for job, special in waiting if special.merge is not None})
    rows = session.execute(
        _SQL["open_to_merge"], {"agents": [agent for agent, _ in keys], "lanes": [lane for _, lane in keys]}
    ).fetchall()
    return {(row["agent"], row["lane"]): row for row in rows}
