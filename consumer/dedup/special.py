"""Jobs that are not admitted like all others: caused by a run, or of an agent that coalesces.

Inside the admission transaction, after the event IDs are recorded. What breaks a rule of causation is parked, never
dropped and never run on; what comes close after an earlier change of its key is taken in by that one's job, whole and
recorded. A batch without either never comes here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumer import db
from consumer.dedup.batch import NewJob, Special, Specials
from consumer.dedup.coalescing import Group, groups_of, merge, open_windows
from consumer.dedup.staging import stage
from consumer.positions import PartitionId

_SQL: Final = db.queries("dedup")

CAUSATION_LOOP: Final = "causation_loop"
"""Reason of jobs that are parked because of what caused them."""


class Parked(NamedTuple):
    """A job that was parked as a causation loop, and why."""

    job_id: int
    agent: str
    root: str
    why: str


@dataclass(slots=True)
class Admitted:
    """What one admission did, by agent; `fenced` are partitions that another intake has read further."""

    jobs: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    coalesced: Counter[str] = field(default_factory=Counter)
    loops: list[Parked] = field(default_factory=list)
    fenced: set[PartitionId] = field(default_factory=set)


def sift(session: db.SyncSession, jobs: Sequence[NewJob], specials: Specials, done: Admitted) -> list[NewJob]:
    """Park, coalesce and count; the jobs that go on like all others."""
    plain: list[NewJob] = []
    faults: dict[tuple[str, str], str] = {}
    parked: list[NewJob] = []
    waiting: list[tuple[NewJob, Special]] = []
    for job in jobs:
        special = specials.get((job.agent, job.event_id))
        if special is None:
            plain.append(job)
        elif special.fault is not None:
            faults[job.agent, job.event_id] = special.fault
            parked.append(job)
        elif special.merge is not None:
            waiting.append((job, special))
        else:
            plain.append(job)
    groups = groups_of(session, waiting)
    new = [group for group in groups if group.job_id is None]
    over = _over_limit(session, [*plain, *(group.first for group in new)], specials)
    faults |= over
    parked += [job for job in plain if (job.agent, job.event_id) in over]
    parked += [group.first for group in new if (group.first.agent, group.first.event_id) in over]
    _open(session, new, over, done)
    if parked:
        _park(session, parked, faults, specials, done)
    open_windows(session, new)
    merge(session, groups)
    for group in groups:
        if group.taken:
            done.coalesced[group.first.agent] += len(group.taken)
    return [job for job in plain if (job.agent, job.event_id) not in over] if over else plain


def keep_limits(session: db.SyncSession, *, max_depth: int, root_runs: int) -> None:
    """Write the limits down for what the database decides by itself."""
    with db.translated():
        session.execute(_SQL["keep_limits"], {"max_depth": max_depth, "root_runs": root_runs})


def _open(session: db.SyncSession, new: Sequence[Group], over: dict[tuple[str, str], str], done: Admitted) -> None:
    born = [group.first for group in new if (group.first.agent, group.first.event_id) not in over]
    if born:
        done.jobs.update(stage(session, born, "PENDING", None, 1))


def _park(
    session: db.SyncSession,
    jobs: Sequence[NewJob],
    faults: dict[tuple[str, str], str],
    specials: Specials,
    done: Admitted,
) -> None:
    done.parked.update(stage(session, jobs, "PARKED", CAUSATION_LOOP, 1))
    rows = session.execute(
        _SQL["explain_parked"],
        {
            "agents": [job.agent for job in jobs],
            "events": [job.event_id for job in jobs],
            "whys": [faults[job.agent, job.event_id] for job in jobs],
        },
    ).fetchall()
    for row in rows:
        event = (row["agent"], row["event_id"])
        done.loops.append(Parked(row["id"], row["agent"], specials[event].root or row["event_id"], faults[event]))


def _over_limit(session: db.SyncSession, jobs: Sequence[NewJob], specials: Specials) -> dict[tuple[str, str], str]:
    """Those of the jobs that their root may not have in this minute any more, with the reason.

    Counted in the database, so over all intakes. Roots far from their limit take no lock: with more than four intakes
    at the same root in the same moment, the limit may be overrun by what those four had in hand.
    """
    by_root: dict[str, list[NewJob]] = {}
    for job in jobs:
        special = specials.get((job.agent, job.event_id))
        if special is not None and special.root is not None:
            by_root.setdefault(special.root, []).append(job)
    if not by_root:
        return {}
    left = _runs_left(session, list(by_root))
    near = [root for root, own in by_root.items() if len(own) > left[root][0] - left[root][1] * 3 // 4]
    if near:
        session.execute(_SQL["lock_roots"], {"roots": near})
        left |= _runs_left(session, near)
    over: dict[tuple[str, str], str] = {}
    for root in near:
        runs_left, limit = left[root]
        why = f"more than {limit} runs of one root within a minute (ROWCALL_ROOT_RUNS_PER_MINUTE)"
        over |= {(job.agent, job.event_id): why for job in by_root[root][max(0, runs_left) :]}
    return over


def _runs_left(session: db.SyncSession, roots: Sequence[str]) -> dict[str, tuple[int, int]]:
    rows = session.execute(_SQL["runs_left"], {"roots": list(roots)}).fetchall()
    return {row["root"]: (row["runs_left"], row["root_runs"]) for row in rows}
