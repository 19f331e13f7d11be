"""Activation: from an agent's code to its row, and the fixed point of each topic from which its events count.

`rowcall agents activate` and a starting worker write; intake reads the roster. Promises: an agent starts at now, fixed
once; a topic or partition that appears later is read from its beginning; a lower version never overwrites a higher
one; no event falls between an intake that does not know the agent yet and one that does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from consumer import db
from consumer.agents.door import Agent
from consumer.kafka import Place, Topic
from consumer.positions import PartitionId

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("activate")

# The stamp of an empty roster, as admission computes it.
_NO_AGENTS: Final = "0:0"


class Cluster(Protocol):
    """What activation asks of the brokers; `consumer.kafka.Brokers` answers it."""

    def cluster_id(self) -> str:
        """The cluster's ID."""

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The next offset to be written in each partition."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What activation did with one agent: `activated`, `upgraded`, `unchanged`, `newer_kept` or `retired`."""

    agent: str
    outcome: str
    version: int


@dataclass(frozen=True, slots=True)
class RosterRow:
    """An agent as the database has it."""

    name: str
    version: int
    topics: tuple[str, ...]
    options: Mapping[str, Any]
    state: str

    def stands_for(self, agent: Agent) -> bool:
        """Whether activating the agent would change nothing here."""
        same = set(self.topics) == set(agent.topics) and self.options == agent.options
        return self.version > agent.version or (self.version == agent.version and same)


@dataclass(frozen=True, slots=True)
class Roster:
    """Every agent the database knows. `stamp` differs between any two rosters."""

    rows: tuple[RosterRow, ...]
    stamp: str


def activate(
    session: db.SyncSession, brokers: Cluster, agents: Sequence[Agent], *, revived_by: str | None = None
) -> list[Activation]:
    """Write the agents' rows and starts, in one transaction; safe to repeat and to run from many processes.

    A retired agent stays so, unless a person brings it back (`revived_by`): then it starts at now, as a new one.

    Raises:
        Outage, ConfigurationError: of the database or the brokers; nothing is written then.
    """
    cluster = brokers.cluster_id()
    topics = brokers.topics({topic for agent in agents for topic in agent.topics})
    # Before the lock, for the brokers may be slow and admissions wait for it; put_start makes up for the time between.
    ends = brokers.ends([Place(name, number) for name, topic in topics.items() for number in topic.partitions])
    with db.transaction(session):
        session.execute(_SQL["lock_against_admission"])
        done = [
            _activate_one(session, cluster, agent, topics, ends, revived_by)
            for agent in sorted(agents, key=lambda item: item.name)
        ]
    for item in done:
        level = logging.WARNING if item.outcome == "newer_kept" else logging.INFO
        _log.log(
            level,
            "agent %s: %s",
            item.agent,
            item.outcome,
            extra={"action": "activate", "agent": item.agent, "version": item.version},
        )
    return done


def _activate_one(
    session: db.SyncSession,
    cluster: str,
    agent: Agent,
    topics: dict[str, Topic],
    ends: dict[Place, int],
    revived_by: str | None,
) -> Activation:
    row = session.execute(
        _SQL["put_agent"],
        {
            "name": agent.name,
            "version": agent.version,
            "topics": list(agent.topics),
            "options": json.dumps(agent.options),
        },
    ).fetchone()
    old_version = None if row is None else row["old_version"]
    if row is None or old_version is None:
        _put_starts(session, cluster, agent.name, agent.topics, topics, ends)
        return Activation(agent.name, "activated", agent.version)
    if row["old_state"] == "RETIRED":
        version = max(old_version, agent.version)
        if revived_by is None:
            return Activation(agent.name, "retired", version)
        session.execute(_SQL["revive"], {"name": agent.name, "actor": revived_by})
        _put_starts(session, cluster, agent.name, agent.topics, topics, ends)
        return Activation(agent.name, "activated", version)
    if old_version > agent.version:
        return Activation(agent.name, "newer_kept", old_version)
    if row["written"] is None:
        return Activation(agent.name, "unchanged", agent.version)
    # Topics the agent did not have before start at now too; the starts of the others stand.
    _put_starts(session, cluster, agent.name, set(agent.topics) - set(row["old_topics"]), topics, ends)
    return Activation(agent.name, "upgraded", agent.version)


def _put_starts(
    session: db.SyncSession,
    cluster: str,
    agent: str,
    names: Iterable[str],
    topics: dict[str, Topic],
    ends: dict[Place, int],
) -> None:
    for name in sorted(names):
        topic = topics.get(name)
        for partition in () if topic is None else topic.partitions:
            start = ends.get(Place(name, partition))
            if topic is not None and start is not None:
                session.execute(
                    _SQL["put_start"],
                    {
                        "agent": agent,
                        "cluster": cluster,
                        "topic_id": topic.id,
                        "partition": partition,
                        "topic": name,
                        "start": start,
                    },
                )


def roster(session: db.SyncSession) -> Roster:
    """The agents in the database, with the stamp that admission compares."""
    with db.translated():
        rows = session.execute(_SQL["roster"]).fetchall()
    return Roster(
        tuple(
            RosterRow(row["name"], row["version"], tuple(row["topics"]), row["options"], row["state"]) for row in rows
        ),
        rows[0]["stamp"] if rows else _NO_AGENTS,
    )


def starts(session: db.SyncSession, cluster: str, topic_ids: Iterable[str]) -> dict[PartitionId, dict[str, int]]:
    """Partition → agent → start, for the partitions that existed when the agents were activated."""
    with db.translated():
        rows = session.execute(_SQL["starts"], {"cluster": cluster, "topic_ids": sorted(topic_ids)}).fetchall()
    found: dict[PartitionId, dict[str, int]] = {}
    for row in rows:
        found.setdefault(PartitionId(row["topic_id"], row["partition"]), {})[row["agent"]] = row["start_offset"]
    return found
