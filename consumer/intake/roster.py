"""Which agents count here: those the database has activated and this process has the code of.

A topic of an active agent whose code is missing here is not read at all: it is left to a process that has it, and waits
where there is none, so no event passes an agent by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumer.activate import Roster
from consumer.agents.door import Agent


@dataclass(frozen=True, slots=True)
class View:
    """The roster as one process sees it. `lacking` are active agents without code here."""

    stamp: str
    by_topic: Mapping[str, tuple[Agent, ...]]
    lacking: tuple[str, ...]
    left_alone: frozenset[str]
    outdated: tuple[str, ...]

    @property
    def topics(self) -> frozenset[str]:
        """The topics to subscribe to."""
        return frozenset(self.by_topic)


def view(roster: Roster, agents: Sequence[Agent]) -> View:
    """Match the database's agents with the code. PAUSED agents still get their jobs; RETIRED ones get none."""
    code = {agent.name: agent for agent in agents}
    live = [row for row in roster.rows if row.state in ("ACTIVE", "PAUSED") and row.name in code]
    lacking = [row for row in roster.rows if row.state == "ACTIVE" and row.name not in code]
    left_alone = frozenset(topic for row in lacking for topic in row.topics)
    by_topic: dict[str, list[Agent]] = {}
    for row in live:
        for topic in code[row.name].topics:
            if topic not in left_alone:
                by_topic.setdefault(topic, []).append(code[row.name])
    return View(
        roster.stamp,
        {topic: tuple(subscribed) for topic, subscribed in by_topic.items()},
        tuple(row.name for row in lacking),
        left_alone,
        tuple(row.name for row in live if row.version > code[row.name].version),
    )
