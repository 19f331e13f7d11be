"""The outcome transaction: agent's SQL, result, outbox row and state together, or nothing of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from consumer.errors import AgentError
from consumer.outcome.transaction import refuse_control
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view
from tests.scripted_model import Reply, serve

__all__ = ["database", "view"]

INSERT = "INSERT INTO public.effects (n) VALUES (99)"
ESCAPES = {
    "commit": "commit",
    "comment": " /* x */ COMMIT",
    "nested_comment": "/* /* */ x */ COMMIT",
    "line_comment": "-- x\nCommit",
    "carriage_return": "-- x\rCOMMIT /*\nSELECT 1 */",
    "semicolon_first": " ; COMMIT",
    "two": f"{INSERT}; COMMIT",
    "two_writes": f"{INSERT}; {INSERT}",
    "rollback": "rollback",
    "end": "END",
    "abort": "abort",
    "begin": "BEGIN",
    "prepare": "PREPARE TRANSACTION 'x'",
    "savepoint": "SAVEPOINT x",
    "set": "SET search_path = public",
    "role": "SET ROLE postgres",
    "do": "DO $$ BEGIN COMMIT; END $$",
    "call": "CALL public.committing()",
    "empty": "  ",
}


async def test_the_result_names_the_transaction_that_wrote_the_agents_rows(database: str, view: Records) -> None:
    job_id = await view.add("writer", {"n": 1})
    async with running(settings(database)):
        job = await view.wait(job_id)
    effect = await view.one("SELECT xmin::text::bigint AS txid FROM public.effects")
    outbox = await view.one("SELECT xmin::text::bigint AS txid, topic, key, payload FROM rowcall.outbox")
    step = await view.one("SELECT xmin::text::bigint AS txid, kind FROM rowcall.job_steps")
    system = await view.one("SELECT system_identifier FROM pg_control_system()")
    assert job["status"] == "SUCCEEDED" and json.loads(job["result_text"])["title"] == "written"
    assert job["result_txid"] & 0xFFFFFFFF == effect["txid"] == outbox["txid"] == step["txid"]
    assert job["result_system"] == system["system_identifier"]
    assert (outbox["topic"], outbox["key"], json.loads(outbox["payload"])) == ("test.effects", "1", {"n": 1})


@pytest.mark.parametrize("statement", ESCAPES.values(), ids=ESCAPES.keys())
async def test_an_agents_sql_cannot_leave_its_transaction(database: str, view: Records, statement: str) -> None:
    job_id = await view.add("writer", {"n": 1, "statements": [statement]})
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=3)
        await view.wait(await view.add("writer", {"n": 2}), "SUCCEEDED", seconds=3)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", "agent_error", 1)
    assert (await view.effects(), job["result_text"], job["result_txid"]) == ([2], None, None)
    assert len(await view.all("SELECT FROM rowcall.outbox")) == 1


@pytest.mark.parametrize(
    "statement",
    [
        INSERT,
        "(SELECT 1) UNION SELECT 2",
        f"/* x /* y */ */ -- z\n{INSERT}",
        f"{INSERT};",
        "WITH a AS (SELECT 1) SELECT",
    ],
)
def test_sql_that_stays_in_its_transaction_is_not_refused(statement: str) -> None:
    refuse_control(statement)


@pytest.mark.parametrize("statement", ["", "/* open", "-- only", ";;"])
def test_sql_without_a_word_is_refused(statement: str) -> None:
    with pytest.raises(AgentError):
        refuse_control(statement)


async def test_a_refusal_that_the_agent_swallows_commits_nothing(database: str, view: Records) -> None:
    statements = ["INSERT INTO public.items (id) VALUES (NULL)", INSERT]
    job_id = await view.add("writer", {"n": 1, "statements": statements, "swallow": True}, attempts=1)
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=3)
    assert (job["status"], await view.effects()) == ("FAILED", [])
    assert await view.all("SELECT FROM rowcall.outbox") == []


@pytest.mark.parametrize(
    ("data", "code", "attempts"),
    [
        ({"raise": "not today"}, "agent_exception", 2),
        ({"raise": "nul \x00 and \ud800"}, "agent_exception", 2),
        ({"statements": ["INSERT INTO public.items VALUES (1, 'refused')"]}, "db_P0001", 2),
        ({"statements": ["INSERT INTO public.items VALUES (NULL)"]}, "db_23502", 1),
        ({"statements": ["INSERT INTO public.nowhere VALUES (1)"]}, "configuration", 2),
    ],
    ids=["exception", "nasty_exception", "trigger", "constraint", "no_table"],
)
async def test_a_write_that_fails_ends_with_its_own_reason_and_soon(
    database: str, view: Records, data: dict[str, Any], code: str, attempts: int
) -> None:
    job_id = await view.add("writer", {"n": 1, **data}, attempts=2)
    async with running(settings(database)):
        job = await view.wait(job_id, seconds=2.5)
    assert (job["status"], job["error_code"], job["attempt_count"]) == ("FAILED", code, attempts)
    assert await view.effects() == [] and await view.all("SELECT FROM rowcall.outbox") == []


async def test_an_outcome_after_the_lease_was_lost_is_rolled_back_with_the_agents_sql(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    # The agent's own statement takes the run away, as another worker's claim would while it is not looking.
    steal = "UPDATE rowcall.agent_jobs SET lease_epoch = lease_epoch + 1 WHERE job_type = 'writer'"
    job_id = await view.add("writer", {"n": 1, "statements": [steal]})
    async with running(settings(database, beat_seconds=20.0, lease_seconds=60.0)):
        await view.wait(job_id, "RUNNING")
        await asyncio.sleep(0.4)
    assert await view.effects() == [] and await view.all("SELECT FROM rowcall.outbox") == []
    assert await view.all("SELECT FROM rowcall.job_steps") == []
    assert (await view.job(job_id))["result_txid"] is None
    assert any(message.startswith("LeaseLost") for message in caplog.messages)


async def test_an_outcome_of_a_stale_epoch_does_not_begin(
    database: str, view: Records, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consumer")
    with serve(Reply({"title": "x", "score": 1}, delay_seconds=0.5)) as model:
        job_id = await view.add("writer", {"n": 1, "ask": True})
        async with running(settings(database, model.url, beat_seconds=20.0, lease_seconds=60.0)):
            await view.wait_for("SELECT FROM rowcall.external_calls WHERE state = 'sent'")
            # After the checkpoint, before the outcome: only the outcome's own fence is left.
            await view.execute(
                "CREATE FUNCTION public.steal() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE rowcall.agent_jobs "
                "SET lease_epoch = lease_epoch + 1 WHERE id = NEW.job_id; RETURN NEW; END'"
            )
            await view.execute(
                "CREATE TRIGGER steal AFTER INSERT ON rowcall.job_steps FOR EACH ROW EXECUTE FUNCTION public.steal()"
            )
            await asyncio.sleep(1)
    assert (await view.job(job_id))["status"] == "RUNNING"
    assert await view.effects() == []
    assert any(message.startswith("LeaseLost") for message in caplog.messages)


async def test_outcomes_that_wait_for_a_connection_keep_their_leases(database: str, view: Records) -> None:
    # 60 outcomes of 0.5 s on 12 connections: the last begin more than a lease after they were ready. A second worker
    # looks for expired leases all the time.
    async with running(settings(database, lease_seconds=0.9, beat_seconds=0.3, runs_in_flight=60)):
        ids = [await view.add("writer", {"n": n, "statements": ["SELECT pg_sleep(0.5)"]}) for n in range(60)]
        async with running(settings(database, lease_seconds=0.9, beat_seconds=0.3, runs_in_flight=60)):
            await view.wait_all(ids)
    assert await view.effects() == list(range(60))
    jobs = await view.one("SELECT max(lease_epoch) AS epoch FROM rowcall.agent_jobs")
    assert jobs["epoch"] == 1
