"""The agents the benchmarks run, loaded by our own processes with ROWCALL_AGENTS=benchmarks.agents.

`waking` and `woken_too` are subscribed to one topic and both want every change, having read every column; they run
nothing. `stepping` takes three checkpointed steps with trivial bodies; `storing` takes the same and writes a row;
`resting` answers at once. `asking` asks the model and writes the answer
into the row that woke it; `waiting` only asks.
"""

from __future__ import annotations

import os
from typing import Final

from pydantic import BaseModel, ConfigDict

from consumer.agents.door import Agent, Context, Transaction
from consumer.records import Change, Event

INTAKE_TOPIC: Final = "cdc.public.bench"
ORDERS_TOPIC: Final = "cdc.public.orders"


class Answer(BaseModel):
    """What every agent here answers."""

    model_config = ConfigDict(extra="forbid")

    title: str


ANSWER: Final = {"title": "as scripted"}


def every_column(change: Change) -> bool:
    """A trigger that reads the whole row, before and after."""
    return None not in (change.before or {}).values() and None not in (change.after or {}).values()


async def nothing(context: Context, message: Change) -> Answer:
    """Never runs: these jobs are only admitted."""
    return Answer(title="")


async def body(value: int) -> int:
    """A step's body that costs nothing."""
    return value


stepping = Agent(name="bench-stepping", version=1, answer=Answer)


@stepping.run
async def three_steps(context: Context, event: Event) -> Answer:
    """Three named, checkpointed steps."""
    first = await context.step("one", body, 1)
    second = await context.step("two", body, first + 1)
    third = await context.step("three", body, second + 1)
    return Answer(title=str(third))


storing = Agent(name="bench-storing", version=1, answer=Answer)
storing.run(three_steps)


@storing.write
async def store(transaction: Transaction, event: Event, answer: Answer) -> None:
    """A row of the agent's own, with the outcome."""
    await transaction.execute("INSERT INTO public.bench_stored (run) VALUES (%s)", int(event.id.removeprefix("job:")))


resting = Agent(name="bench-resting", version=1, answer=Answer)


@resting.run
async def rest(context: Context, event: Event) -> Answer:
    """No step, no call: a run that is claimed and completed."""
    return Answer(title="rested")


asking = Agent(name="bench-asking", version=1, answer=Answer, topics=[ORDERS_TOPIC])


@asking.when
def is_new(change: Change) -> bool:
    """A row that has no answer yet."""
    return change.row.get("triage") is None


@asking.run
async def ask(context: Context, change: Change) -> Answer:
    """One call of the model about the row."""
    answer: Answer = await context.ask("title", prompt="Title this order.", input={"id": change.row["id"]})
    return answer


@asking.write
async def put(transaction: Transaction, change: Change, answer: Answer) -> None:
    """The answer into the row."""
    await transaction.update(change, {"triage": answer.title})


def _waking(name: str) -> Agent:
    agent = Agent(name=name, version=1, answer=Answer, topics=[INTAKE_TOPIC])
    agent.when(every_column)
    agent.run(nothing)
    return agent


WAKING: Final = (_waking("bench-waking"), _waking("bench-woken-too"))
_SETS: Final[dict[str, list[Agent]]] = {
    "waking": list(WAKING),
    "stepping": [stepping],
    "storing": [storing],
    "resting": [resting],
    "asking": [asking],
}
# One process runs one set: a worker claims for every agent it has.
AGENTS: Final = _SETS[os.environ.get("BENCH_AGENTS", "asking")]
