"""The door for agents' authors and the registry of the agents that ship as examples.

`ROWCALL_AGENTS` names modules like this one; what counts in each is its list `AGENTS`, and `SCHEDULES` where it has
one. A new agent is one file and one line in a list.
"""

from __future__ import annotations

from typing import Final

from consumer.agents import drift_investigate, drift_remediate, issue_digest, order_triage, triage_notice
from consumer.agents.door import Agent
from consumer.agents.schedule import Schedule

AGENTS: Final[list[Agent]] = [
    order_triage.agent,
    triage_notice.agent,
    issue_digest.agent,
    drift_investigate.agent,
    drift_remediate.agent,
]
SCHEDULES: Final[list[Schedule]] = [issue_digest.schedule]
