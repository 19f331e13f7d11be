"""One agent in several versions, for deploys: each says in its steps which version ran them."""

from __future__ import annotations

import asyncio
from typing import Any

from consumer.agents.door import Agent, Context, Tier
from consumer.errors import RetryLater
from consumer.records import Event
from tests.agents.doing import Note

# Runs that have asked for later once, in this process.
POSTPONED: set[int] = set()


def version(number: int) -> Agent:
    """The agent `versioned` as its version `number` has it."""
    agent = Agent(name="versioned", version=number, answer=Note)

    async def stamp() -> int:
        return number

    @agent.run
    async def run(ctx: Context, event: Event) -> Any:
        """Two steps. Between them an old version waits for the test to stop its worker, or asks for later."""
        if event.data.get("steps", True):
            first = await ctx.step("first", stamp)
            if number == event.data.get("waits"):
                await asyncio.sleep(60)
            if event.data.get("postpones") and ctx.run_id not in POSTPONED:
                POSTPONED.add(ctx.run_id)
                await asyncio.sleep(0.05)
                raise RetryLater("not yet", delay_seconds=0.1)
        else:
            first = 0
            if number == event.data.get("waits"):
                await asyncio.sleep(60)
        second = await ctx.step("second", stamp)
        return Note(title=f"{first}/{second}", score=number)

    @agent.tier
    def tier(event: Event, answer: Any) -> Tier:
        return Tier.MEDIUM if event.data.get("held") else Tier.LOW

    return agent
