"""Calls to the outside inside a step that is tried again: same step, same effect, and the ledger decides."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.agents.door import Agent, Context, Retry
from consumer.records import Event
from tests.agents.doing import DONE, Note
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view
from tests.receiver import Receiver, receive

__all__ = ["database", "view"]

QUICK = Retry(base_seconds=0.02, cap_seconds=0.05, attempts=3)
payer = Agent(name="payer", version=1, answer=Note, effects_before_answer=True, max_attempts=3)


@payer.run
async def pay(ctx: Context, event: Event) -> Note:
    """A step with a payment in it, tried three times."""
    data = event.data

    async def look() -> int:
        DONE.append(("look", ctx.run_id))
        return 7

    async def charge() -> int:
        if "read" in data:
            await ctx.http("read", "GET", data["read"])
        if data.get("look"):
            await ctx.step("look", look)
        for number in range(data.get("times", 1)):
            await ctx.http(
                f"pay {number}", "POST", data["url"], key=data["n"], json={"n": data["n"]}, **data["options"]
            )
        DONE.append(("charged", ctx.run_id))
        if sum(name == "charged" for name, _ in DONE) <= data.get("fail", 0):
            raise ConnectionError("after the payment")
        if data.get("twice"):
            await ctx.http("pay 0", "POST", data["url"], key=data["n"], json={"n": data["n"]})
        return ctx.attempt

    return Note(title="paid", score=await ctx.step("charge", charge, retry=QUICK, timeout_seconds=data.get("seconds")))


async def paid(database: str, view: Records, do: str, *, wait: str = "SUCCEEDED", **data: Any) -> tuple[Any, Receiver]:
    """A run against a receiver that answers as `do` says."""
    await view.know([payer])
    with receive() as receiver:
        given = {"n": 7, "url": f"{receiver.url}/act{do}", "options": {}} | data
        if given.pop("reads", False):
            given["read"] = f"{receiver.url}/"
        async with running(settings(database, http_allow=("127.0.0.0/8",)), agents=[payer]):
            job = await view.wait(await view.add("payer", given, attempts=1), wait)
        return job, receiver


@pytest.mark.parametrize("do", ["?do=once-429", "?do=once-503&after=0"], ids=["429", "503"])
async def test_a_call_inside_a_step_is_made_again_by_the_next_try_under_the_same_key(
    database: str, view: Records, do: str
) -> None:
    job, receiver = await paid(database, view, do, reads=True, look=True)
    assert job["attempt_count"] == 1
    assert list(receiver.received.values()) == [2], "one effect, asked twice"
    assert receiver.acts == {"7": 1} and DONE.count(("look", job["id"])) == 1
    calls = await view.all("SELECT step, attempt FROM rowcall.external_calls ORDER BY id")
    assert [(call["step"], call["attempt"]) for call in calls] == [("read", 1), ("pay 0", 1), ("pay 0", 2)]


async def test_what_a_failed_try_has_done_outside_is_not_done_again_by_the_next(database: str, view: Records) -> None:
    job, receiver = await paid(database, view, "", fail=2, times=2, look=True)
    assert (job["attempt_count"], receiver.acts["7"]) == (1, 2) and len(receiver.received) == 2
    assert DONE.count(("charged", job["id"])) == 3 and DONE.count(("look", job["id"])) == 1


async def test_an_effect_that_nobody_knows_ends_the_tries_and_goes_to_a_person(database: str, view: Records) -> None:
    job, receiver = await paid(database, view, "?do=reset", wait="WAITING_REVIEW")
    assert (job["error_code"], receiver.acts) == ("effect_unknown", {"7": 1})


async def test_an_idempotent_effect_that_a_timeout_of_the_step_cut_off_is_repeated(
    database: str, view: Records
) -> None:
    again = {"idempotent": True}
    job, receiver = await paid(database, view, "?do=once-hold&dedup=1", seconds=0.5, options=again)
    assert (job["attempt_count"], receiver.acts) == (1, {"7": 1}) and list(receiver.received.values()) == [2]


async def test_a_refusal_ends_the_tries(database: str, view: Records) -> None:
    job, receiver = await paid(database, view, "?do=422", wait="FAILED")
    assert job["error_code"] == "http_422" and list(receiver.received.values()) == [1]


async def test_a_step_name_used_twice_in_one_try_is_refused_all_the_same(database: str, view: Records) -> None:
    job, _ = await paid(database, view, "", wait="FAILED", twice=True)
    assert "'pay 0' was used before in this run" in job["last_error"]


async def test_a_server_that_wants_a_long_pause_is_asked_by_a_later_attempt(database: str, view: Records) -> None:
    job, receiver = await paid(database, view, "?do=429&after=3000", wait="FAILED")
    assert job["error_code"] == "http_429" and list(receiver.received.values()) == [1]
