"""Settings given by their names in the environment, and what a run does differently for them."""

from __future__ import annotations

from typing import Any

import pytest

from consumer import db
from consumer.operate import Act
from consumer.operate import limits as operated
from consumer.settings import Settings
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, receiver, view
from tests.receiver import Receiver
from tests.scripted_model import Reply, serve

__all__ = ["database", "receiver", "view"]

GOOD = {"title": "a note", "score": 3}


def named(database: str, model: str = "http://127.0.0.1:9/v1", **given: str) -> Settings:
    """The harness's settings and those of `given`, as the environment has them."""
    changed: dict[str, Any] = dict(given)
    return settings(database, model, **changed)


@pytest.mark.parametrize(
    ("usual", "by_host", "cut", "answered"),
    [
        ("0.5", "localhost=20", "127.0.0.1", "localhost"),
        ("20", "other.example=1,localhost=0.5", "localhost", "127.0.0.1"),
    ],
)
async def test_a_slow_host_is_cut_at_its_own_limit_while_another_has_longer(
    view: Records, database: str, receiver: Receiver, usual: str, by_host: str, cut: str, answered: str
) -> None:
    configuration = named(
        database,
        ROWCALL_HTTP_TIMEOUT_SECONDS=usual,
        ROWCALL_HTTP_HOST_TIMEOUTS=by_host,
        ROWCALL_HTTP_ALLOW="127.0.0.0/8,localhost",
    )

    async def call(host: str, number: int) -> int:
        url = f"http://{host}:{receiver.port}/act?do=slow&seconds=2"
        return await view.add("sender", {"n": number, "url": url})

    async with running(configuration):
        lost, done = await call(cut, 1), await call(answered, 2)
        job = await view.wait(lost, "WAITING_REVIEW")
        await view.wait(done, "SUCCEEDED")
    assert (job["error_code"], receiver.acts["2"]) == ("effect_unknown", 1)
    calls = await view.all("SELECT error_code FROM rowcall.external_calls WHERE job_id = %s", lost)
    assert {row["error_code"] for row in calls} == {"http_timeout"}


async def test_the_money_of_a_call_reaches_the_budget(view: Records, database: str) -> None:
    with db.connect(database, name="operator") as session:
        operated.set_budget(session, operated.BudgetWanted("asker", None, "day", None, 10_000_000), Act("somebody"))
    with serve(Reply(GOOD, usage={"prompt_tokens": 1000, "completion_tokens": 500})) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(named(database, model.url, MODEL_PRICE_INPUT="2", MODEL_PRICE_OUTPUT="8.50")):
            await view.wait(job_id, "SUCCEEDED")
    # Millionths: 1000 tokens at 2 and 500 at 8.50, each a million.
    assert (await view.one("SELECT money FROM rowcall.budget_usage"))["money"] == 2000 + 4250


async def test_a_longer_retry_after_than_the_setting_pauses_the_agent(view: Records, database: str) -> None:
    with serve(Reply(status=429, body="{}", headers={"retry-after": "5"})) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(named(database, model.url, MODEL_MAX_RETRY_AFTER_SECONDS="2")):
            agent = await view.wait_for("SELECT * FROM rowcall.agents WHERE name = 'asker' AND state = 'PAUSED'")
            job = await view.wait(job_id, "PENDING")
    assert agent["state_reason"].startswith("model_quota") and job["attempt_count"] == 0


async def test_a_review_expires_and_is_escalated_when_the_settings_say(view: Records, database: str) -> None:
    hours = {"ROWCALL_REVIEW_EXPIRE_HOURS": "3", "ROWCALL_REVIEW_ESCALATE_HOURS": "0.5"}
    with serve(Reply({"title": "x", "score": 7})) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(named(database, model.url, **hours)):
            await view.wait(job_id, "WAITING_REVIEW")
    waits = await view.one(
        "SELECT extract(epoch FROM expires_at - opened_at) / 3600 AS expires,"
        " extract(epoch FROM escalates_at - opened_at) / 3600 AS escalates FROM rowcall.reviews"
    )
    assert (waits["expires"], waits["escalates"]) == (pytest.approx(3, abs=0.01), pytest.approx(0.5, abs=0.01))
