"""Stage: claim. Before it, intake or an operator inserted PENDING jobs; after it, the executor runs what was claimed.

Writes lane positions, leases and epochs. Promises: one owner an epoch, one run a key at a time, the order of promotion
inside a key, and that an expired lease is claimable again whichever agents the worker has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from consumer import db
from consumer.records.jobs import ClaimedJob

_SQL = db.queries("claim")
# Bound of one promotion: about 100 ms of work for the one session that holds the promotion lock.
PROMOTE_LIMIT = 2000
RECLAIM_LIMIT = 500
# From here on a run may be what kills its workers; functions/refresh_lanes.sql sets such lanes apart.
SUSPECT_LOSSES = 2


@dataclass(frozen=True, slots=True)
class Lease:
    """What a worker claims with. Durations in seconds; the database's clock counts them."""

    owner: uuid.UUID
    seconds: float
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Due:
    """Which parts of the upkeep have anything to do; `rated` tells whether any of the agents has a rate."""

    expired: bool
    paused: bool
    reviews: bool
    rated: bool
    limits: bool


async def due(session: db.Session, agents: Sequence[str]) -> Due:
    """What beside the claims is to be done for a worker with these agents."""
    with db.translated():
        row = await (await session.execute(_SQL["due"], {"agents": list(agents)})).fetchone()
    return Due(**(row or dict.fromkeys(Due.__slots__, False)))


async def any_work(session: db.Session, versions: Mapping[str, int]) -> bool:
    """Whether `promote` or `claim` may find anything; agent → version of the code here."""
    parameters = {"agents": list(versions), "versions": list(versions.values())}
    with db.translated():
        row = await (await session.execute(_SQL["any_work"], parameters)).fetchone()
    return row is None or bool(row["found"])


async def promote(session: db.Session) -> int:
    """Place due jobs into their lanes; how many, or -1 while another worker does it."""
    with db.translated():
        row = await (await session.execute(_SQL["promote"], (PROMOTE_LIMIT,))).fetchone()
    return int(row["placed"]) if row else 0


async def reclaim(session: db.Session) -> int:
    """Take runs from owners whose lease or deadline is over; how many."""
    with db.translated():
        row = await (await session.execute(_SQL["reclaim"], (RECLAIM_LIMIT,))).fetchone()
    return int(row["reclaimed"]) if row else 0


async def mend_lanes(session: db.Session) -> int:
    """Put right lanes that statements by hand have broken; how many."""
    with db.translated():
        row = await (await session.execute(_SQL["mend_lanes"], (RECLAIM_LIMIT,))).fetchone()
    return int(row["mended"]) if row else 0


async def claim(
    session: db.Session,
    lease: Lease,
    agents: Sequence[str],
    limit: int,
    *,
    versions: Mapping[str, int] = MappingProxyType({}),
    deadlines: Mapping[str, float] = MappingProxyType({}),
    suspects: int = 1,
) -> list[ClaimedJob]:
    """Claim up to `limit` runs of these agents, in the order of their readiness.

    `versions` of their code lets runs go on that are parked for just that version; `deadlines` are their own, in
    seconds; at most `suspects` of the runs have been lost with their worker SUSPECT_LOSSES times or more.
    """
    with db.translated():
        cursor = await session.execute(
            _SQL["claim"],
            {
                "agents": list(agents),
                "limit": limit,
                "owner": lease.owner,
                "lease": lease.seconds,
                "deadline": lease.deadline_seconds,
                "versions": [versions.get(agent) for agent in agents],
                "deadlines": [deadlines.get(agent) for agent in agents],
                "suspects": max(0, suspects),
            },
        )
        return [ClaimedJob.from_row(row) for row in await cursor.fetchall()]


def beat(session: db.SyncSession, held: Iterable[tuple[int, int]], lease_seconds: float) -> set[tuple[int, int]]:
    """Renew the leases of these (id, epoch) pairs; returns the pairs that are not ours any more."""
    pairs = list(held)
    parameters = {"ids": [pair[0] for pair in pairs], "epochs": [pair[1] for pair in pairs], "lease": lease_seconds}
    with db.translated():
        session.execute(_SQL["beat"], parameters)
        alive = {(row["id"], row["lease_epoch"]) for row in session.execute(_SQL["still_mine"], parameters)}
    return set(pairs) - alive


async def pause_agent(session: db.Session, agent: str, reason: str, seconds: float) -> None:
    """Stop claiming runs of an agent whose model calls are all refused."""
    with db.translated():
        await session.execute(_SQL["pause_agent"], {"agent": agent, "reason": reason, "seconds": seconds})


async def unpause_agents(session: db.Session, agents: Sequence[str]) -> None:
    """End the timed pauses of these agents that have run out."""
    with db.translated():
        await session.execute(_SQL["unpause_agents"], {"agents": list(agents)})
