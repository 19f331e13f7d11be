"""The lease beat as a part that may fail by itself: the worker that holds it ends, and a slow disk costs no lease."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from consumer.errors import BeatLost
from consumer.executor.loop import run_executor
from tests.agents import AGENTS
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, view

__all__ = ["database", "view"]

REFUSE = """
CREATE OR REPLACE FUNCTION public.refuse_beats() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'rowcall beat' THEN
        RAISE EXCEPTION 'no beats here';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse_beats BEFORE UPDATE ON rowcall.agent_jobs FOR EACH STATEMENT
    EXECUTE FUNCTION public.refuse_beats();
"""


@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle"])
async def test_a_worker_whose_beats_cannot_be_sent_while_the_database_answers_ends(
    database: str, view: Records, idle: bool
) -> None:
    await view.execute(REFUSE)
    configuration = settings(database, lease_seconds=0.6, beat_seconds=0.2, drain_seconds=0.2)
    try:
        await view.add("doer", {"do": "hang"})

        async def end() -> None:
            # When its lease is over nobody claims it again: there is nothing left to renew.
            await view.wait_for("SELECT 1 FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
            await view.execute("UPDATE rowcall.agents SET state = 'PAUSED'")

        ending = asyncio.create_task(end() if idle else asyncio.sleep(0))
        with pytest.raises(BeatLost, match="a new one takes over"):
            async with asyncio.timeout(30):
                await run_executor(configuration, AGENTS, asyncio.Event())
        await ending
    finally:
        await view.execute("DROP TRIGGER refuse_beats ON rowcall.agent_jobs")


async def test_a_worker_outlives_beats_that_fail_for_a_while(database: str, view: Records) -> None:
    async with running(settings(database, lease_seconds=1.5, beat_seconds=0.3, drain_seconds=0.2)):
        await view.add("doer", {"do": "hang"})
        await view.wait_for("SELECT 1 FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
        await view.execute(REFUSE)
        await asyncio.sleep(2.0)
        await view.execute("DROP TRIGGER refuse_beats ON rowcall.agent_jobs")
        await asyncio.sleep(3.5)
        await view.wait(await view.add("doer", {"do": "succeed"}), "SUCCEEDED")


async def test_a_disk_that_stands_still_for_three_leases_costs_no_run_its_lease(database: str, view: Records) -> None:
    async with running(settings(database, lease_seconds=1.0, beat_seconds=0.3)):
        with psycopg.connect(database) as stall:
            # What a stalled disk does to checkpoints and to no beat: the statement waits for as long as it lasts.
            stall.execute("LOCK TABLE rowcall.job_steps IN EXCLUSIVE MODE")
            ids = [await view.add("doer", {"do": "gather"}) for _ in range(3)]
            await view.wait_for("SELECT 1 FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
            await asyncio.sleep(3.2)
            rows = await view.all("SELECT status, lease_epoch, losses FROM rowcall.agent_jobs WHERE id = ANY (%s)", ids)
            assert {(row["status"], row["lease_epoch"], row["losses"]) for row in rows} == {("RUNNING", 1, 0)}
        await view.wait_all(ids)
