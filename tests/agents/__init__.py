"""Agents for tests; a worker gets them by ROWCALL_AGENTS=tests.agents.

`doing` does what its payload says, `writing` has outcomes with SQL, `outside` has effects in other systems, `reviewed`
is held for people, `crashing` kills its own process where the environment says so. `harness` runs executors and looks
at what they wrote.
"""

from __future__ import annotations

from typing import Final

from consumer.agents.door import Agent
from tests.agents import crashing, doing, outside, reviewed, writing

AGENTS: Final[list[Agent]] = [
    doing.asker,
    doing.doer,
    *writing.ALL,
    *reviewed.ALL,
    crashing.agent,
    crashing.held,
    crashing.killer,
    *outside.ALL,
]
