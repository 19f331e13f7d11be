"""Limits with whole executors: spent budgets, rates and pauses of the endpoint, slots over several workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import pytest

from consumer import db, operate
from consumer.errors import OperatorError
from consumer.operate import limits as operated
from consumer.telemetry import HEALTH
from tests.agents.doing import DONE
from tests.agents.harness import Records, records, running, settings
from tests.agents.shared import database
from tests.scripted_model import Reply, serve

__all__ = ["database"]

GOOD = {"title": "a note", "score": 3}
CLEAR = """
TRUNCATE rowcall.limits, rowcall.buckets, rowcall.budgets, rowcall.budget_usage, rowcall.spend, rowcall.holds,
    rowcall.lanes, rowcall.storm_counts
"""
OPERATOR = operate.Act("somebody")


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    DONE.clear()
    async with records(database, clear=True) as found:
        await found.execute(CLEAR)
        yield found


@pytest.fixture
def operator(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="operator") as session:
        yield session


def allow(session: db.SyncSession, tokens: int) -> int:
    """A daily budget of the asking agent."""
    return operated.set_budget(session, operated.BudgetWanted("asker", None, "day", tokens, None), OPERATOR)


async def test_a_spent_budget_parks_runs_alerts_once_and_they_finish_when_it_is_raised(
    database: str, view: Records, operator: db.SyncSession, caplog: pytest.LogCaptureFixture
) -> None:
    budget = allow(operator, 6000)
    with serve(Reply(GOOD, usage={"prompt_tokens": 900, "completion_tokens": 100}, delay_seconds=0.05)) as model:
        ids = [await view.add("asker", {"n": n}) for n in range(20)]
        async with running(settings(database, model.url, runs_in_flight=4), count=2):
            await view.wait_for("SELECT id FROM rowcall.agent_jobs WHERE status = 'PARKED'", seconds=15)
            await asyncio.sleep(1.5)
            parked = await view.all("SELECT * FROM rowcall.agent_jobs WHERE status = 'PARKED'")
            left = await view.one("SELECT count(*) AS n FROM rowcall.agent_jobs WHERE status = 'PENDING'")
            used = await view.one("SELECT tokens, tokens_reserved AS held FROM rowcall.budget_usage")
            assert 3000 <= used["tokens"] <= 6000 and used["held"] == 0
            assert len(model.calls) == used["tokens"] // 1000
            # Those that were under way have found it out; the others are not claimed to find it out too.
            assert 1 <= len(parked) <= 8 and left["n"] > 0
            assert {(job["reason"], job["error_code"], job["attempt_count"]) for job in parked} == {
                ("budget", "budget_spent", 0)
            }
            (row,) = operated.list_budgets(operator)
            assert (row["spent"], row["parked"]) == (True, len(parked))
            assert allow(operator, 1_000_000) == budget
            await view.wait_all(ids)
    alerts = [record for record in caplog.records if record.levelno == logging.ERROR and "budget" in record.message]
    assert len(alerts) == 1 and "rowcall budgets list" in alerts[0].message
    assert (await view.one("SELECT tokens, tokens_reserved AS held FROM rowcall.budget_usage")) == {
        "tokens": 20_000,
        "held": 0,
    }
    assert (await view.one("SELECT max(attempt_count) AS most FROM rowcall.agent_jobs"))["most"] == 1


async def test_a_call_beyond_a_whole_budget_fails_its_run_with_what_to_do(
    database: str, view: Records, operator: db.SyncSession
) -> None:
    allow(operator, 500)
    with serve(Reply(GOOD)) as model:
        job_id = await view.add("asker", {"n": 1})
        async with running(settings(database, model.url)):
            job = await view.wait(job_id)
    assert (job["status"], job["error_code"], model.calls) == ("FAILED", "budget_call", [])
    assert "allows 500 tokens" in job["last_error"]


async def test_a_cap_of_the_run_fails_it_and_a_cap_of_the_root_parks_it(database: str, view: Records) -> None:
    with serve(Reply(GOOD)) as model:
        for option, status, reason in (("run_tokens", "FAILED", None), ("root_tokens", "PARKED", "budget_root")):
            await view.execute(
                "UPDATE rowcall.agents SET options = jsonb_build_object(%s::text, 100) WHERE name = 'asker'", option
            )
            job_id = await view.add("asker", {"n": 1})
            await view.execute("UPDATE rowcall.agent_jobs SET root_event = 'r' WHERE id = %s", job_id)
            async with running(settings(database, model.url)):
                job = await view.wait(job_id, status)
            assert (job["reason"], job["attempt_count"]) == (reason, 1 if status == "FAILED" else 0)
    assert model.calls == []


async def test_workers_share_the_endpoints_rate(database: str, view: Records) -> None:
    with serve(Reply(GOOD)) as model:
        ids = [await view.add("asker", {"n": n}) for n in range(14)]
        configuration = settings(database, model.url, model_rate="240/min", lease_seconds=3.0)
        loop = asyncio.get_running_loop()
        await view.execute(
            "INSERT INTO rowcall.buckets (name, permits) VALUES (%s, 0), (%s, 0)",
            f"calls:{configuration.model_base_url} {configuration.model_name}",
            f"tokens:{configuration.model_base_url} {configuration.model_name}",
        )
        began = loop.time()
        async with running(configuration, count=2):
            await view.wait_all(ids)
        # 4 a second: the bucket was empty, so 14 calls take 3.5 s, whatever the number of workers.
        assert loop.time() - began > 3.0
    assert len(model.calls) == 14
    assert (await view.one("SELECT max(attempt_count) AS most FROM rowcall.agent_jobs"))["most"] == 1


async def test_a_wait_longer_than_allowed_gives_the_run_back_without_burning_an_attempt(
    database: str, view: Records
) -> None:
    with serve(Reply(GOOD)) as model:
        ids = [await view.add("asker", {"n": n}) for n in range(2)]
        configuration = settings(database, model.url, model_rate="3/min", rate_wait_seconds=0.5)
        async with running(configuration):
            await view.wait_for("SELECT id FROM rowcall.agent_jobs WHERE status = 'SUCCEEDED'")
            late = await view.wait_for("SELECT * FROM rowcall.agent_jobs WHERE status = 'WAITING_RETRY'")
    assert (late["id"] in ids, late["error_code"], late["attempt_count"]) == (True, "rate_limited", 0)
    assert len(model.calls) == 1


async def test_a_429_pauses_the_calls_of_all_workers(database: str, view: Records) -> None:
    busy = Reply(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "2"})
    with serve(busy, Reply(GOOD)) as model:
        first = await view.add("asker", {"n": 0})
        configuration = settings(database, model.url, model_retries=0, retry_base_seconds=0.01, retry_cap_seconds=0.02)
        async with running(configuration, count=2):
            await view.wait_for("SELECT name FROM rowcall.buckets WHERE paused_until > now()")
            ids = [await view.add("asker", {"n": n}) for n in range(1, 6)]
            await asyncio.sleep(0.7)
            assert len(model.calls) == 1, "other runs called an endpoint that had asked for a pause"
            await view.wait_all([first, *ids])


async def test_the_slots_of_an_agent_are_shared_by_workers_and_set_by_an_operator(
    database: str, view: Records, operator: db.SyncSession
) -> None:
    operated.set_limits(operator, "doer", operated.LimitsWanted(concurrency=2), OPERATOR)
    ids = [await view.add("doer", {"do": "succeed", "seconds": 0.1}) for _ in range(12)]
    most = 0
    async with running(settings(database), count=3):
        while await view.all("SELECT 1 FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED'"):
            now = await view.one("SELECT count(*) AS n FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
            most = max(most, now["n"])
    await view.wait_all(ids)
    assert most == 2


async def test_a_rate_of_an_agent_is_used_to_the_full_between_two_looks(
    database: str, view: Records, operator: db.SyncSession
) -> None:
    # One run in half a second, while an idle worker looks every ten seconds.
    operated.set_limits(operator, "doer", operated.LimitsWanted(rate_runs=2, rate_seconds=1.0), OPERATOR)
    ids = [await view.add("doer", {"do": "succeed"}) for _ in range(6)]
    async with running(settings(database, poll_seconds=10.0)):
        await view.wait_all(ids, seconds=8)
    rows = await view.all(
        "SELECT extract(epoch FROM started_at)::float8 AS at FROM rowcall.agent_jobs ORDER BY started_at"
    )
    gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(rows)]
    assert sum(gaps) > 2.0, "more started than the rate allows"


@pytest.mark.parametrize("held_by", ["a pause", "slots"])
async def test_a_worker_whose_agent_is_held_back_by_more_than_its_rate_does_not_look_without_end(
    database: str, view: Records, operator: db.SyncSession, held_by: str
) -> None:
    most = 1 if held_by == "slots" else None
    wanted = operated.LimitsWanted(rate_runs=1000, rate_seconds=60.0, concurrency=most)
    operated.set_limits(operator, "doer", wanted, OPERATOR)
    async with running(settings(database, poll_seconds=10.0, drain_seconds=0.1)):
        await view.wait(await view.add("doer", {"do": "succeed", "seconds": 30 if most else 0}), "RUNNING", "SUCCEEDED")
        if not most:
            await view.execute("UPDATE rowcall.agents SET state = 'PAUSED' WHERE name = 'doer'")
        await view.add("doer", {"do": "succeed"})
        await asyncio.sleep(1.0)
        before = HEALTH.turns()["executor"]
        await asyncio.sleep(2.0)
        assert HEALTH.turns()["executor"] - before <= 3


@pytest.mark.parametrize("count", [2**63 - 1, 2**62])
async def test_an_endpoint_that_reports_what_no_call_can_use_does_not_break_the_budget(
    database: str, view: Records, operator: db.SyncSession, count: int
) -> None:
    allow(operator, 1_000_000)
    with serve(Reply(GOOD, usage={"prompt_tokens": count, "completion_tokens": count})) as model:
        ids = [await view.add("asker", {"n": n}) for n in range(3)]
        async with running(settings(database, model.url)):
            await view.wait_all(ids)
    (used,) = await view.all("SELECT tokens, tokens_reserved AS held FROM rowcall.budget_usage")
    assert 0 < used["tokens"] < 100_000 and used["held"] == 0


async def test_what_operators_do_to_limits_stands_in_the_audit_and_wrong_names_are_told(
    view: Records, operator: db.SyncSession
) -> None:
    operated.set_limits(operator, "asker", operated.LimitsWanted(storm=5, priority=3), OPERATOR)
    operated.set_limits(operator, "asker", operated.LimitsWanted(concurrency=4), OPERATOR)
    (row,) = operated.list_limits(operator, "asker")
    assert (row["storm"], row["priority"], row["concurrency"]) == (5, 3, 4)
    operated.clear_limits(operator, "asker", OPERATOR)
    (row,) = operated.list_limits(operator, "asker")
    assert (row["storm"], row["priority"], row["concurrency"]) == (None, 0, None)
    budget = allow(operator, 7)
    operated.remove_budget(operator, budget, OPERATOR)
    for wrong in (
        lambda: operated.set_limits(operator, "nobody", operated.LimitsWanted(storm=1), OPERATOR),
        lambda: operated.clear_limits(operator, "asker", OPERATOR),
        lambda: operated.end_storm(operator, "asker", None, OPERATOR),
        lambda: operated.remove_budget(operator, budget, OPERATOR),
        lambda: operated.set_budget(operator, operated.BudgetWanted(None, None, "day", None, None), OPERATOR),
    ):
        with pytest.raises(OperatorError):
            wrong()
    actions = await view.all("SELECT action FROM rowcall.audit WHERE actor = 'somebody' ORDER BY id DESC LIMIT 5")
    assert [row["action"] for row in reversed(actions)] == [
        "set limits", "set limits", "clear limits", "set budget", "remove budget",
    ]  # fmt: skip
