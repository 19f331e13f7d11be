"""An agent that kills its own process where ROWCALL_CRASH_AT says, so that crash tests hit each boundary exactly."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from consumer.agents.door import Agent, Context, Tier, Transaction
from consumer.records import Event
from tests.agents.doing import Note

agent = Agent(name="crasher", version=1, answer=Note)
killer = Agent(name="killer", version=1, answer=Note)


@killer.run
async def maybe_kill(ctx: Context, event: Event) -> Note:
    """Innocent, or the end of the process and of whatever else runs in it."""
    await asyncio.sleep(event.data.get("seconds", 0.3))
    if event.data.get("kill"):
        os._exit(137)
    return Note(title="innocent", score=ctx.attempt)


@agent.run
async def run(ctx: Context, event: Event) -> Note:
    """Claimed; asked; checkpointed."""
    crash("after_claim")
    answer: Note = await ctx.ask("ask", prompt="Say something.", input=event.data)
    crash("after_checkpoint")
    await asyncio.sleep(event.data.get("seconds", 0.0))
    return answer


@agent.rule
def rule(event: Event, answer: Note) -> None:
    """Called first between the model's answer and its checkpoint."""
    crash("before_checkpoint")


@agent.write
async def write(tx: Transaction, event: Event, answer: Note) -> None:
    """The effect, and time inside the transaction for what is to happen there."""
    await tx.execute("INSERT INTO public.effects (n, text) VALUES (%s, %s)", event.data["n"], str(os.getpid()))
    if os.environ.get("ROWCALL_CRASH_AT") == "in_outcome":
        # Dies while the server is busy with this transaction.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        await tx.rows("SELECT pg_sleep(1)")
    if os.environ.get("ROWCALL_CRASH_AT") == "freeze_in_outcome":
        os.kill(os.getpid(), signal.SIGSTOP)
    tx.emit("test.effects", key=event.data["n"], record={"n": event.data["n"]})


def crash(at: str) -> None:
    """End this process as a power cut would, if this is the place."""
    if os.environ.get("ROWCALL_CRASH_AT") == at:
        os.kill(os.getpid(), signal.SIGKILL)


held = Agent(name="crasher-held", version=1, answer=Note)
held.run(run)
held.write(write)


@held.tier
def tier(event: Event, answer: Note) -> Tier:
    """The same, but a person decides first."""
    return Tier.MEDIUM
