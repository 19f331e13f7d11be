"""Agents for the watchdog: `quiet` succeeds and leaves nothing behind, `hung` stops the worker's loop for a while."""

from __future__ import annotations

import threading
from typing import Any, Final

from pydantic import BaseModel

from consumer.agents.door import Agent, Context, Transaction
from consumer.agents.schedule import Schedule
from consumer.records import Event


class Done(BaseModel):
    """Nothing to say."""


def _agent(name: str) -> Agent:
    made = Agent(name=name, version=1, answer=Done)

    @made.run
    async def run(ctx: Context, event: Event) -> Done:
        # Not awaited: it holds up the loop, as a driver without asyncio would.
        threading.Event().wait(event.data.get("hang", 0))
        return Done()

    return made


quiet, hung = _agent("quiet"), _agent("hung")


@quiet.write
async def write(tx: Transaction, event: Event, answer: Any) -> None:
    """Touches no row and sends nothing."""


AGENTS: Final = [quiet, hung]
SCHEDULES: Final = [Schedule(name="every-second", cron="* * * * * *", agent="quiet")]
