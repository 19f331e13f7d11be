"""The agents behind drift, on a real executor: a report waits for a person, a remediation does what its tier allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from consumer import db, operate
from consumer.agents import drift_investigate, drift_remediate
from consumer.executor.loop import run_executor
from consumer.records import Event, payload
from tests.agents.harness import settings
from tests.scripted_model import Reply, serve

DRIFT: dict[str, Any] = {
    "monitor": "order-amounts", "detector": "mean", "source": "cdc.public.orders", "column": "amount",
    "segment": "EUR", "turn": "raised", "episode": "e1", "previous_state": "ok", "statistic": 5.1, "threshold": 3.0,
    "baseline": 100.0, "observed": 210.0, "samples": 40, "began_at": "2026-11-30T12:00:00+00:00",
    "detected_at": "2026-11-30T12:05:00+00:00", "message": "the mean went from 100 to 210", "evidence": "{}",
}  # fmt: skip
REPORT = {
    "title": "Amounts have doubled", "what_changed": "The mean went from 100 to 210.",
    "likely_causes": ["A price list"], "checks": ["Compare prices"], "confidence": "low",
}  # fmt: skip
AGENTS = [drift_investigate.agent, drift_remediate.agent]


class Stage:
    """A database with the example tables, and an executor with a scripted model while a run is waited for."""

    def __init__(self, url: str, session: psycopg.AsyncConnection[DictRow]) -> None:
        self.url, self.session = url, session
        self.calls = 0
        self.least_tiers = ""

    async def rows(self, query: str) -> list[DictRow]:
        return await (await self.session.execute(query.encode())).fetchall()

    async def drift(self, agent: str, number: int = 1, **fields: Any) -> int:
        event = Event(f"ob1:drift:{number}", "t", "order-amounts/EUR", DRIFT | {"episode": f"e{number}"} | fields)
        cursor = await self.session.execute(
            "INSERT INTO rowcall.agent_jobs (job_type, payload, input_kind, event_id, key_text, key_hash)"
            " VALUES (%s, %s, 'event', %s, 'order-amounts/EUR', 7) RETURNING id",
            (agent, payload.write(event), event.id),
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row["id"])

    async def until(self, job: int, status: str, *answers: dict[str, Any]) -> None:
        """Run executors until the job has this status; the model gives these answers."""
        stop = asyncio.Event()
        with serve(*(Reply(answer=answer) for answer in answers or ({},))) as model:
            given = settings(self.url, model.url, least_tiers=self.least_tiers)
            task = asyncio.create_task(run_executor(given, AGENTS, stop))
            try:
                for _ in range(400):
                    (row,) = await self.rows(f"SELECT status, last_error FROM rowcall.agent_jobs WHERE id = {job}")
                    if row["status"] == status:
                        break
                    await asyncio.sleep(0.05)
                assert row["status"] == status, row
            finally:
                stop.set()
                await task
            self.calls += len(model.calls)

    def approve(self, job: int) -> None:
        with db.connect(self.url, name="test") as session:
            row = session.execute(
                "SELECT id FROM rowcall.reviews WHERE job_id = %s AND state = 'OPEN'", (job,)
            ).fetchone()
            assert row is not None
            operate.approve(session, row["id"], operate.Act("ann"))

    async def actions(self) -> list[str]:
        return [row["action"] for row in await self.rows("SELECT action FROM public.drift_actions ORDER BY taken_at")]


@pytest.fixture
async def stage(database: str) -> AsyncIterator[Stage]:
    session = await psycopg.AsyncConnection[DictRow].connect(database, autocommit=True, row_factory=dict_row)
    await session.execute(db.queries("example_tables")["create"])
    await session.execute(
        "INSERT INTO rowcall.agents (name, version) VALUES ('drift-investigate', 1), ('drift-remediate', 1),"
        " ('order-triage', 1)"
    )
    yield Stage(database, session)
    await session.close()


def plan(action: str, target: str = "", reason: str = "The mean went from 100 to 480.") -> dict[str, Any]:
    return {"action": action, "target": target, "reason": reason}


async def test_report_on_a_warning_waits_for_a_person_and_then_stands(stage: Stage) -> None:
    job = await stage.drift("drift-investigate")
    await stage.until(job, "WAITING_REVIEW", REPORT)
    assert await stage.rows("SELECT * FROM public.drift_reports") == []
    stage.approve(job)
    await stage.until(job, "SUCCEEDED")
    (report,) = await stage.rows("SELECT episode, monitor, segment, title FROM public.drift_reports")
    assert report == {"episode": "e1", "monitor": "order-amounts", "segment": "EUR", "title": "Amounts have doubled"}


def test_recovery_wakes_no_investigation() -> None:
    agent = drift_investigate.agent
    assert agent.wants(Event("ob1:x", "t", "k", DRIFT))
    assert not agent.wants(Event("ob1:x", "t", "k", DRIFT | {"turn": "recovered"}))


async def test_notice_runs_by_itself(stage: Stage) -> None:
    job = await stage.drift("drift-remediate")
    await stage.until(job, "SUCCEEDED", plan("notify_owner"))
    assert await stage.actions() == ["notify_owner"]


async def test_notice_waits_where_an_operator_holds_the_agent_at_a_tier(stage: Stage) -> None:
    stage.least_tiers = "drift-remediate=high"
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", plan("notify_owner"))
    (review,) = await stage.rows("SELECT code FROM rowcall.reviews WHERE state = 'OPEN'")
    assert (review["code"], await stage.actions()) == ("tier_high", [])
    stage.approve(job)
    await stage.until(job, "SUCCEEDED")
    assert await stage.actions() == ["notify_owner"]


async def test_quarantine_waits_for_a_review_and_ends_with_the_recovery(stage: Stage) -> None:
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", plan("quarantine_segment", "EUR"))
    assert (await stage.actions(), await stage.rows("SELECT * FROM public.quarantined_segments")) == ([], [])
    stage.approve(job)
    await stage.until(job, "SUCCEEDED")
    assert [row["segment"] for row in await stage.rows("SELECT segment FROM public.quarantined_segments")] == ["EUR"]
    calls = stage.calls
    recovery = await stage.drift("drift-remediate", 2, turn="recovered")
    await stage.until(recovery, "SUCCEEDED")
    assert await stage.rows("SELECT * FROM public.quarantined_segments") == []
    assert (await stage.actions(), stage.calls) == (["quarantine_segment", "recovered"], calls)


NOTICES = "SELECT topic, key, convert_from(payload, 'UTF8') AS payload, event_type, job_id FROM rowcall.outbox"


async def test_whatever_is_done_is_told_on_a_topic_with_its_commit(stage: Stage) -> None:
    job = await stage.drift("drift-remediate")
    await stage.until(job, "SUCCEEDED", plan("notify_owner"))
    (notice,) = await stage.rows(NOTICES)
    assert (notice["topic"], notice["event_type"], notice["job_id"]) == ("drift.notices", "notify_owner", job)
    assert notice["key"] == "order-amounts:EUR"
    assert orjson.loads(notice["payload"]) == {
        "action": "notify_owner", "target": "", "reason": "The mean went from 100 to 480.", "monitor": "order-amounts",
        "segment": "EUR", "source": "cdc.public.orders", "episode": "e1", "message": "the mean went from 100 to 210",
    }  # fmt: skip


async def test_giving_up_is_told_on_a_topic(stage: Stage) -> None:
    await taken(stage, "notify_owner", "notify_owner", "notify_owner")
    job = await stage.drift("drift-remediate", 2)
    await stage.until(job, "SUCCEEDED")
    (notice,) = await stage.rows(NOTICES)
    assert (notice["topic"], notice["event_type"]) == ("drift.notices", "gave_up")


async def wrote_lately(stage: Stage, agent: str) -> None:
    """A run of the agent that has written rows just now."""
    await stage.session.execute(b"SET session_replication_role = replica")
    await stage.session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, status, finished_at, result_txid)"
        " VALUES (%s, 'SUCCEEDED', now(), 7)",
        (agent,),
    )
    await stage.session.execute(b"RESET session_replication_role")


@pytest.mark.parametrize("target", ["order-triage", "nobody"])
async def test_agent_that_has_written_nothing_lately_is_not_proposed_for_a_pause(stage: Stage, target: str) -> None:
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", plan("pause_agent", target))
    (review,) = await stage.rows("SELECT code FROM rowcall.reviews WHERE state = 'OPEN'")
    assert review["code"] == "answer_rules"


async def test_approved_pause_of_an_agent_that_is_not_active_any_more_is_not_recorded_as_taken(stage: Stage) -> None:
    await wrote_lately(stage, "order-triage")
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", plan("pause_agent", "order-triage"))
    await stage.session.execute(b"UPDATE rowcall.agents SET state = 'RETIRED' WHERE name = 'order-triage'")
    stage.approve(job)
    await stage.until(job, "FAILED")
    (row,) = await stage.rows(f"SELECT last_error FROM rowcall.agent_jobs WHERE id = {job}")
    assert "order-triage is not active any more; nothing was paused" in row["last_error"]
    assert (await stage.actions(), await stage.rows(NOTICES)) == ([], [])


async def test_agent_is_paused_only_after_approval(stage: Stage) -> None:
    await wrote_lately(stage, "order-triage")
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", plan("pause_agent", "order-triage"))
    query = "SELECT state FROM rowcall.agents WHERE name = 'order-triage'"
    assert await stage.rows(query) == [{"state": "ACTIVE"}]
    (review,) = await stage.rows("SELECT code FROM rowcall.reviews WHERE state = 'OPEN'")
    assert review["code"] == "tier_high"
    stage.approve(job)
    await stage.until(job, "SUCCEEDED")
    assert await stage.rows(query) == [{"state": "PAUSED"}]


@pytest.mark.parametrize(
    "wrong", [plan("quarantine_segment", "USD"), plan("pause_agent"), plan("pause_agent", "drift-remediate")]
)
async def test_plan_with_a_wrong_target_goes_to_a_person(stage: Stage, wrong: dict[str, Any]) -> None:
    job = await stage.drift("drift-remediate")
    await stage.until(job, "WAITING_REVIEW", wrong)
    (review,) = await stage.rows("SELECT code FROM rowcall.reviews WHERE state = 'OPEN'")
    assert review["code"] == "answer_rules"


async def test_second_attempt_waits_and_the_fourth_gives_up_in_the_open(stage: Stage) -> None:
    taken = (
        "INSERT INTO public.drift_actions (event_id, episode, monitor, segment, action, target, reason, taken_at)"
        " VALUES ({0}, 'e', 'order-amounts', 'EUR', 'notify_owner', '', 'because', now() - interval '{1} minutes')"
    )
    await stage.session.execute(taken.format("'a'", 1).encode())
    waiting = await stage.drift("drift-remediate", 2)
    await stage.until(waiting, "WAITING_RETRY")
    (row,) = await stage.rows(
        "SELECT attempt_count, extract(epoch FROM run_after - now())::int AS wait FROM rowcall.agent_jobs"
    )
    assert row["attempt_count"] == 0 and 200 < row["wait"] <= 240
    await stage.session.execute(b"UPDATE public.drift_actions SET taken_at = taken_at - interval '1 hour'")
    await stage.session.execute(taken.format("'b'", 50).encode())
    await stage.session.execute(taken.format("'c'", 40).encode())
    await stage.session.execute(b"UPDATE rowcall.agent_jobs SET run_after = now()")
    await stage.session.execute(b"SELECT rowcall.mend_lanes(10)")
    await stage.until(waiting, "SUCCEEDED")
    assert (await stage.actions())[-1] == "gave_up"
    assert stage.calls == 0


async def test_one_segment_is_never_remediated_twice_at_once(stage: Stage) -> None:
    first = await stage.drift("drift-remediate")
    second = await stage.drift("drift-remediate", 2)
    await stage.until(first, "WAITING_REVIEW", plan("quarantine_segment", "EUR"))
    (row,) = await stage.rows(f"SELECT status FROM rowcall.agent_jobs WHERE id = {second}")
    assert row["status"] == "PENDING"


async def taken(stage: Stage, *actions: str) -> None:
    """Actions of the past, an hour apart."""
    for number, action in enumerate(actions):
        await stage.session.execute(
            "INSERT INTO public.drift_actions (event_id, episode, monitor, segment, action, target, reason, taken_at)"
            " VALUES (%s, 'e', 'order-amounts', 'EUR', %s, '', 'because', now() - make_interval(hours => %s))",
            (f"past-{number}", action, len(actions) - number),
        )


async def test_recovery_ends_the_count_of_attempts(stage: Stage) -> None:
    await taken(stage, "notify_owner", "notify_owner", "notify_owner", "gave_up", "recovered")
    job = await stage.drift("drift-remediate", 2)
    await stage.until(job, "SUCCEEDED", plan("notify_owner"))
    assert (await stage.actions())[-1] == "notify_owner"
    assert stage.calls == 1


async def test_further_attempt_is_made_when_the_drift_is_told_again(stage: Stage) -> None:
    await taken(stage, "notify_owner", "quarantine_segment")
    job = await stage.drift("drift-remediate", 2, previous_state="critical")
    await stage.until(job, "SUCCEEDED", plan("notify_owner"))
    assert (await stage.actions())[-1] == "notify_owner"


async def test_giving_up_is_said_once(stage: Stage) -> None:
    await taken(stage, "notify_owner", "notify_owner", "notify_owner", "gave_up")
    job = await stage.drift("drift-remediate", 2)
    await stage.until(job, "CANCELLED")
    (row,) = await stage.rows(f"SELECT last_error FROM rowcall.agent_jobs WHERE id = {job}")
    assert "given up on this segment already" in row["last_error"]
    assert ((await stage.actions()).count("gave_up"), stage.calls) == (1, 0)


async def test_attempts_of_one_segment_do_not_count_for_another(stage: Stage) -> None:
    await taken(stage, "notify_owner", "notify_owner", "notify_owner")
    job = await stage.drift("drift-remediate", 2, segment="USD")
    await stage.until(job, "SUCCEEDED", plan("notify_owner"))
    assert (await stage.actions())[-1] == "notify_owner"
