"""Effects that their agent does not wait for: the run never ends as if nothing were open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from consumer import db, operate
from consumer.agents.door import Agent, Context
from consumer.errors import Cancel, EffectUnknown, GiveUp, RetryLater
from consumer.records import Event
from tests.agents.doing import Note
from tests.agents.harness import ENDED, Records, records, running, settings
from tests.agents.shared import database, receiver
from tests.receiver import Receiver

__all__ = ["database", "receiver"]

impatient = Agent(name="impatient", version=1, answer=Note)
careless = Agent(name="careless", version=1, answer=Note)
resigned = Agent(name="resigned", version=1, answer=Note)
hopeful = Agent(name="hopeful", version=1, answer=Note, max_postponements=2)
AGENTS = [impatient, careless, resigned, hopeful]
_TASKS: set[asyncio.Task[object]] = set()
_PUT_OFF: set[int] = set()


@impatient.run
@careless.run
@resigned.run
@hopeful.run
async def think(ctx: Context, event: Event) -> Note:
    """A fixed answer."""
    return Note(title="sent", score=1)


@impatient.act
async def give_up(ctx: Context, event: Event, answer: Note) -> None:
    """Waits less long than the call takes, and goes on."""
    try:
        async with asyncio.timeout(1.5):
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
        await ctx.http("send", "POST", event.data["url"], json={"n": 1}, timeout=1.5)
    except EffectUnknown as error:
        raise GiveUp("too slow") from error


@hopeful.act
async def put_off(ctx: Context, event: Event, answer: Note) -> None:
    """Hopes to know more later; from then on it does as the payload says, without a look at its effect."""
    if ctx.run_id not in _PUT_OFF:
        _PUT_OFF.add(ctx.run_id)
        try:
            await ctx.http("send", "POST", event.data["url"], json={"n": 1})
        except EffectUnknown as error:
            raise RetryLater("later", delay_seconds=0.0) from error
    ends = {"give up": GiveUp("no"), "cancel": Cancel("withdrawn"), "fail": RuntimeError("oh")}
    raise ends.get(event.data["ends"], RetryLater("later still", delay_seconds=0.0))


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database, clear=True) as found:
        await found.know(AGENTS)
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


@pytest.mark.parametrize(
    ("ends", "said", "status"),
    [
        ("postpone", "postponed_too_often", "WAITING_REVIEW"),
        ("give up", "gave_up", "FAILED"),
        ("cancel", "cancelled_by_agent", "CANCELLED"),
        ("fail", "agent_exception", "FAILED"),
    ],
)
async def test_no_run_ends_while_an_effect_of_it_may_have_happened(
    view: Records, database: str, receiver: Receiver, ends: str, said: str, status: str
) -> None:
    async with running(settings(database, http_allow=("127.0.0.0/8",)), agents=AGENTS):
        job_id = await view.add("hopeful", {"url": f"{receiver.url}/act?do=reset", "ends": ends}, attempts=2)
        job = await view.wait(job_id, *ENDED, "WAITING_REVIEW")
        assert (job["status"], job["error_code"], job["finished_at"]) == ("WAITING_REVIEW", "effect_unknown", None)
        with db.connect(database, name="test") as session:
            (review,) = operate.list_reviews(session)
            assert review["code"] == "effect_unknown" and f"ended with {said}" in review["reasons"][0]
            (effect,) = operate.list_effects(session, job_id=job_id)
            operate.resolve_effect(session, effect["id"], operate.Act("ada", "looked"), happened=True)
        if status != "WAITING_REVIEW":
            assert (await view.wait(job_id, *ENDED))["error_code"] == said
            assert (await view.job(job_id))["status"] == status
    assert receiver.received.total() == 1


async def test_a_run_whose_workers_die_over_an_effect_goes_to_a_person_at_the_limit(
    view: Records, database: str
) -> None:
    job_id = await view.add("impatient", {})
    await view.execute(
        "UPDATE rowcall.agent_jobs SET status = 'RUNNING', lease_epoch = 1, attempt_count = 1, losses = 4, "
        "owner = gen_random_uuid(), deadline = now() + interval '1 hour', locked_until = now() - interval '1 s', "
        "lane_seq = 1 WHERE id = %s", job_id,
    )  # fmt: skip
    await view.execute("INSERT INTO rowcall.lanes (agent, key_hash, head) SELECT job_type, key_hash, id "
                       "FROM rowcall.agent_jobs")  # fmt: skip
    await view.execute(
        "INSERT INTO rowcall.effects (id, job_id, delivery, step, business_key, state, idempotent, method, url, "
        "request_sha256, lease_epoch, sent_at) VALUES (gen_random_uuid(), %s, 1, 'act:send', '', 'SENT', false, "
        "'POST', 'http://127.0.0.1/', sha256(''), 1, now())", job_id,
    )  # fmt: skip
    assert (await view.one("SELECT rowcall.reclaim(10) AS n"))["n"] == 1
    assert (await view.job(job_id))["status"] == "WAITING_REVIEW"
    review = await view.one("SELECT code, state, reasons FROM rowcall.reviews")
    assert (review["code"], review["state"]) == ("effect_unknown", "OPEN") and "loss 5 of 5" in review["reasons"][0]
