"""Effects that their agent does not wait for: the run never ends as if nothing were open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from consumer.agents.door import Agent, Context
from consumer.errors import EffectUnknown, GiveUp
from consumer.records import Event
from tests.agents.doing import Note
from tests.agents.harness import ENDED, Records, records, running, settings
from tests.fixtures.postgres import create, drop
from tests.receiver import Receiver, receive

impatient = Agent(name="impatient", version=1, answer=Note)
careless = Agent(name="careless", version=1, answer=Note)
resigned = Agent(name="resigned", version=1, answer=Note)
AGENTS = [impatient, careless, resigned]
_TASKS: set[asyncio.Task[object]] = set()


@impatient.run
@careless.run
@resigned.run
async def think(ctx: Context, event: Event) -> Note:
    """A fixed answer."""
    return Note(title="sent", score=1)


@impatient.act
async def give_up(ctx: Context, event: Event, answer: Note) -> None:
    """Waits less long than the call takes, and goes on."""
    try:
        async with asyncio.timeout(0.4):
            await ctx.http("send", "POST", event.data["url"], json={"n": 1})
    except TimeoutError:
        return


@careless.act
async def forget(ctx: Context, event: Event, answer: Note) -> None:
    """Starts the call beside itself and never looks at it again."""
    task = asyncio.create_task(ctx.http("send", "POST", event.data["url"], json={"n": 1}, timeout=1.0))
    _TASKS.add(task)
    await asyncio.sleep(event.data["pause"])


@resigned.act
async def resign(ctx: Context, event: Event, answer: Note) -> None:
    """Ends its run because of what it does not know."""
    try:
        await ctx.http("send", "POST", event.data["url"], json={"n": 1}, timeout=0.4)
    except EffectUnknown as error:
        raise GiveUp("too slow") from error


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database, clear=True) as found:
        await found.know(AGENTS)
        yield found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receive() as found:
        yield found


@pytest.mark.parametrize(("agent", "pause"), [("impatient", 0), ("careless", 0.4), ("careless", 0), ("resigned", 0)])
async def test_an_effect_that_its_agent_stops_waiting_for_holds_the_run_for_a_person(
    view: Records, database: str, receiver: Receiver, agent: str, pause: float
) -> None:
    async with running(settings(database, http_allow=("127.0.0.0/8",)), agents=AGENTS):
        job_id = await view.add(agent, {"url": f"{receiver.url}/act?do=hold", "pause": pause})
        job = await view.wait(job_id, *ENDED, "WAITING_REVIEW")
    effect = await view.one("SELECT state, attempts FROM rowcall.effects")
    assert (job["status"], job["error_code"], effect["state"]) == ("WAITING_REVIEW", "effect_unknown", "UNKNOWN")
    assert effect["attempts"] == 1 and receiver.received.total() == 1


async def test_an_effect_that_nobody_awaits_is_done_before_its_run_ends(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(settings(database, http_allow=("127.0.0.0/8",)), agents=AGENTS):
        job_id = await view.add("careless", {"url": f"{receiver.url}/act?do=slow&seconds=0.3", "pause": 0})
        await view.wait(job_id, "SUCCEEDED")
    assert (await view.one("SELECT state FROM rowcall.effects"))["state"] == "CONFIRMED"
