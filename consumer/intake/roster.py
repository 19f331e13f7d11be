"""Which agents count here: those the database has activated and this process has the code of.

A topic of an active agent whose code is missing here is not read at all: it is left to a process that has it, and waits
where there is none, so no event passes an agent by. Since that holds up other agents of the topic as well, it is said
again and again until somebody acts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumer.activate import Roster
from consumer.agents.door import Agent

_log = logging.getLogger(__name__)

REMIND_SECONDS: Final = 60.0
"""How often missing code is complained of."""


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


class Reminder:
    """Complains of missing code, at once and then every REMIND_SECONDS."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()
        self._due = float("-inf")

    def tell(self, seen: View) -> None:
        """Log one line for each agent that lacks its code, if it is time to."""
        now = time.monotonic()
        if seen.lacking == self._told and now < self._due:
            return
        self._told, self._due = seen.lacking, now + REMIND_SECONDS
        for name in seen.lacking:
            _log.error(
                "agent %s is active, but its code is not in ROWCALL_AGENTS: its topics are read for no agent here. "
                "Add its module to ROWCALL_AGENTS or, if it is gone or renamed, run `rowcall agents retire %s`",
                name,
                name,
                extra={"action": "missing_agent", "agent": name, "topics": ", ".join(sorted(seen.left_alone))},
            )
