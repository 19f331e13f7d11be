"""What people do to runs, on a real Postgres: each legal and illegal move and its company."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from consumer import db, operate
from consumer.errors import OperatorError
from consumer.operate import Act
from tests.integration.acting import ACT, ENDED, LIVE, audits, claim, end, insert, job, job_in, open_review

DAY_PARTITION = """
CREATE TABLE rowcall.processed_events_test PARTITION OF rowcall.processed_events
FOR VALUES FROM ('2026-01-05') TO ('2026-01-06')"""


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
        yield opened


@pytest.mark.parametrize("status", LIVE + ENDED)
def test_retry_goes_where_the_state_table_allows_and_nowhere_else(session: db.SyncSession, status: str) -> None:
    job_id = job_in(session, status)
    before = job(session, job_id)
    count = len(audits(session))
    if status in ("FAILED", "CANCELLED", "WAITING_RETRY", "PARKED"):
        moved = operate.retry(session, job_id, ACT)
        after = job(session, job_id)
        fresh = status in ("FAILED", "CANCELLED")
        assert moved == operate.Moved(job_id, status, "PENDING", 2 if fresh else 1)
        assert (after["status"], after["delivery"], after["finished_at"]) == ("PENDING", 2 if fresh else 1, None)
        assert after["attempt_count"] == (0 if fresh else before["attempt_count"])
        assert claim(session) == [job_id]
        assert [entry[:3] for entry in audits(session)[count:]] == [("ada", "retry", f"job {job_id}")]
    else:
        with pytest.raises(OperatorError, match=f"job {job_id}"):
            operate.retry(session, job_id, ACT)
        assert job(session, job_id) == before
        assert len(audits(session)) == count


@pytest.mark.parametrize("status", LIVE + ENDED)
def test_cancel_ends_what_has_not_ended(session: db.SyncSession, status: str) -> None:
    job_id = job_in(session, status)
    before = job(session, job_id)
    if status in LIVE:
        assert operate.cancel(session, job_id, ACT) == operate.Moved(job_id, status, "CANCELLED", 1)
        after = job(session, job_id)
        assert (after["status"], after["owner"], after["error_code"]) == ("CANCELLED", None, "cancelled")
        assert "ada" in after["last_error"]
        assert audits(session)[-1] == ("ada", "cancel", f"job {job_id}", {"before": status, "reason": "because"})
    else:
        with pytest.raises(OperatorError, match="ended already"):
            operate.cancel(session, job_id, ACT)
        assert job(session, job_id) == before


def test_a_retry_with_a_taken_dedupe_key_says_who_holds_it(session: db.SyncSession) -> None:
    first = job_in(session, "FAILED", dedupe_key="day 1")
    second = insert(session, dedupe_key="day 1")
    before = job(session, first)
    with pytest.raises(OperatorError, match=f"'day 1' is held by job {second} \\(PENDING\\)") as raised:
        operate.retry(session, first, ACT)
    assert raised.value.code == "dedupe_key_taken"
    assert job(session, first) == before
    operate.cancel(session, second, ACT)
    assert operate.retry(session, first, ACT).after == "PENDING"


def test_a_retry_queues_behind_what_its_key_has_now(session: db.SyncSession) -> None:
    failed = job_in(session, "FAILED", key_hash=7)
    later = insert(session, key_hash=7)
    session.execute("SELECT rowcall.promote(10)")
    operate.retry(session, failed, ACT)
    assert claim(session) == [later]
    end(session, later, "SUCCEEDED")
    assert claim(session) == [failed]


def test_cancelling_the_head_of_a_key_lets_the_next_one_run(session: db.SyncSession) -> None:
    head = job_in(session, "RUNNING", key_hash=7)
    later = insert(session, key_hash=7)
    assert claim(session) == []
    operate.cancel(session, head, ACT)
    assert claim(session) == [later]


def test_a_retry_writes_the_dedup_row_of_its_delivery_on_the_day_of_the_event(session: db.SyncSession) -> None:
    session.execute(DAY_PARTITION.encode())
    session.execute(
        "INSERT INTO rowcall.processed_events (day, agent, event_id) VALUES ('2026-01-05', 'a', 'rc1:1'), "
        "('2026-01-05', 'b', 'rc1:1')"
    )
    job_id = job_in(session, "FAILED", event_id="rc1:1", occurred_at="2026-01-05T23:59:59Z")
    assert operate.retry(session, job_id, ACT).delivery == 2
    rows = session.execute("SELECT agent, delivery FROM rowcall.processed_events ORDER BY 1, 2").fetchall()
    assert [(row["agent"], row["delivery"]) for row in rows] == [("a", 1), ("a", 2), ("b", 1)]
    assert session.execute("SELECT count(*) AS n FROM rowcall.processed_events_undated").fetchone() == {"n": 0}


def test_a_retry_of_an_event_without_a_day_writes_its_dedup_row_undated(session: db.SyncSession) -> None:
    session.execute("INSERT INTO rowcall.processed_events_undated (agent, event_id) VALUES ('a', 'x1')")
    job_id = job_in(session, "FAILED", event_id="x1")
    operate.retry(session, job_id, ACT)
    operate.cancel(session, job_id, ACT)
    assert operate.retry(session, job_id, ACT).delivery == 3
    rows = session.execute("SELECT delivery FROM rowcall.processed_events_undated ORDER BY 1").fetchall()
    assert [row["delivery"] for row in rows] == [1, 2, 3]


def test_a_retry_never_takes_the_delivery_of_another_run_of_its_event(session: db.SyncSession) -> None:
    first = job_in(session, "FAILED", event_id="x1")
    insert(session, event_id="x1", delivery=2)
    assert operate.retry(session, first, ACT).delivery == 3


def keep_steps(session: db.SyncSession, job_id: int, *names: str) -> None:
    for number, name in enumerate(names, 1):
        session.execute(
            "INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch) "
            "VALUES (%s, %s, 'AGENT_STEP', %s, '1', 1, 1)",
            (job_id, name, number),
        )
    session.execute("UPDATE rowcall.agent_jobs SET steps_done = %s, agent_version = 1", (len(names),))


def test_a_retry_keeps_its_checkpoints_and_from_start_keeps_them_as_evidence_only(session: db.SyncSession) -> None:
    job_id = job_in(session, "RUNNING")
    keep_steps(session, job_id, "one", "two")
    end(session, job_id, "FAILED")
    operate.retry(session, job_id, ACT)
    assert job(session, job_id)["steps_done"] == 2
    operate.cancel(session, job_id, ACT)
    operate.retry(session, job_id, ACT, from_start=True)
    after = job(session, job_id)
    assert (after["steps_done"], after["agent_version"], after["approved_answer"]) == (0, None, None)
    steps = operate.show(session, job_id).steps
    assert [(step["name"], step["superseded"]) for step in steps] == [("one", 1), ("two", 1)]
    keep_steps(session, job_id, "one")
    operate.cancel(session, job_id, ACT)
    operate.retry(session, job_id, ACT, from_start=True)
    again = {(step["name"], step["superseded"]) for step in operate.show(session, job_id).steps}
    assert again == {("one", 1), ("two", 1), ("one", 2)}


def test_a_worker_whose_run_was_cancelled_changes_nothing(session: db.SyncSession) -> None:
    job_id = job_in(session, "RUNNING")
    epoch = job(session, job_id)["lease_epoch"]
    operate.cancel(session, job_id, ACT)
    operate.retry(session, job_id, ACT)
    claim(session)
    late = session.execute(
        "SELECT rowcall.settle(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], ARRAY['SUCCEEDED'], ARRAY['{}'], ARRAY[NULL], "
        "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL]::float[], ARRAY[0])",
        (job_id, epoch),
    ).fetchall()
    assert late == []
    assert job(session, job_id)["status"] == "RUNNING"


def test_show_gathers_what_hangs_on_a_run(session: db.SyncSession) -> None:
    job_id = job_in(session, "RUNNING", event_id="x1", payload='{"n": 1}')
    keep_steps(session, job_id, "one")
    session.execute(
        "INSERT INTO rowcall.external_calls (job_id, lease_epoch, step, attempt, kind, endpoint, idempotency_key, "
        "input_sha256) VALUES (%s, 1, 'ask', 1, 'model', 'http://m', 'k', sha256('x'))",
        (job_id,),
    )
    open_review(session, job_id)
    session.execute("INSERT INTO rowcall.coalesced_events (job_id, payload) VALUES (%s, '2')", (job_id,))
    session.execute(
        "INSERT INTO rowcall.outbox (id, topic, payload, content_type, occurred_at, job_id) "
        "VALUES (gen_random_uuid(), 't', 'abc', 'avro', 'now', %s)",
        (job_id,),
    )
    for agent in ("a", "other", None):
        session.execute(
            'INSERT INTO rowcall.dead_letters (agent, event_id, cluster_id, topic, partition, "offset", error_code, '
            "error, app_version) VALUES (%s, 'x1', 'c', 't', 0, 0, 'undecodable', 'bad', '1')",
            (agent,),
        )
    operate.cancel(session, job_id, ACT)
    report = operate.show(session, job_id)
    assert report.job["payload"] == '{"n": 1}'
    sizes = [len(part) for part in (report.steps, report.calls, report.reviews, report.coalesced, report.outbox)]
    assert sizes == [1, 1, 1, 1, 1]
    assert (report.outbox[0]["bytes"], len(report.dead_letters)) == (3, 2)
    assert [entry["action"] for entry in report.audit] == ["cancel"]


def test_list_filters_and_shows_the_newest_first(session: db.SyncSession) -> None:
    failed = job_in(session, "FAILED", event_id="x1")
    waiting = [insert(session), insert(session, job_type="b")]
    assert [row["id"] for row in operate.list_jobs(session)] == [waiting[1], waiting[0], failed]
    assert [row["id"] for row in operate.list_jobs(session, status="failed")] == [failed]
    assert [row["id"] for row in operate.list_jobs(session, agent="b")] == [waiting[1]]
    assert [row["id"] for row in operate.list_jobs(session, event="x1")] == [failed]
    assert [row["id"] for row in operate.list_jobs(session, limit=1)] == [waiting[1]]
    with pytest.raises(OperatorError, match="no state"):
        operate.list_jobs(session, status="DONE")


@pytest.mark.parametrize(
    "act",
    [operate.retry, operate.cancel, operate.approve, operate.reject],
    ids=["retry", "cancel", "approve", "reject"],
)
def test_what_is_not_there_is_said_so(session: db.SyncSession, act: Callable[..., object]) -> None:
    with pytest.raises(OperatorError, match="there is no"):
        act(session, 999, ACT)


def test_names_and_reasons_that_postgres_refuses_are_stored_all_the_same(session: db.SyncSession) -> None:
    job_id = insert(session)
    operate.cancel(session, job_id, Act("a\x00b", "bad \ud800 text"))
    assert job(session, job_id)["status"] == "CANCELLED"
    with pytest.raises(OperatorError, match="--by"):
        Act("  ")


@pytest.mark.parametrize("status", ["FAILED", "PARKED", "WAITING_RETRY"])
def test_a_run_of_a_retired_agent_is_not_queued_again(session: db.SyncSession, status: str) -> None:
    job_id = job_in(session, status)
    session.execute("UPDATE rowcall.agents SET state = 'RETIRED'")
    before = job(session, job_id)
    with pytest.raises(OperatorError, match="'a' is retired") as raised:
        operate.retry(session, job_id, ACT)
    assert raised.value.code == "agent_retired"
    assert job(session, job_id) == before


@pytest.mark.parametrize("act", [operate.retry, operate.cancel], ids=["retry", "cancel"])
def test_a_run_whose_outcome_is_being_written_is_not_waited_for_without_end(
    session: db.SyncSession, database: str, act: Callable[..., object]
) -> None:
    job_id = job_in(session, "RUNNING")
    started = time.monotonic()
    with db.connect(database, name="outcome") as writing, writing.transaction():
        writing.execute("SELECT FROM rowcall.agent_jobs WHERE id = %s FOR UPDATE", (job_id,))
        with pytest.raises(OperatorError, match=f"job {job_id}'s outcome is being written right now; try again"):
            act(session, job_id, ACT)
    assert 4.5 < time.monotonic() - started < 9
    assert session.execute("SHOW lock_timeout").fetchone() == {"lock_timeout": "0"}
    assert operate.cancel(session, job_id, ACT).after == "CANCELLED"
