"""What people do to runs and reviews, on a real Postgres: each legal and illegal move and its company."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from consumer import db, operate
from consumer.errors import OperatorError
from consumer.operate import Act
from consumer.records import decode

ACT = Act("ada", "because")
CLAIM = db.queries("claim")["claim"]
DAY_PARTITION = """
CREATE TABLE rowcall.processed_events_test PARTITION OF rowcall.processed_events
FOR VALUES FROM ('2026-01-05') TO ('2026-01-06')"""
LIVE = ("PENDING", "RUNNING", "WAITING_RETRY", "WAITING_REVIEW", "WAITING_EVENT", "PARKED")
ENDED = ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED")


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
        yield opened


def insert(session: db.SyncSession, **columns: Any) -> int:
    values = {"job_type": "a"} | columns
    names = ", ".join(values)
    marks = ", ".join("%s" for _ in values)
    row = session.execute(
        f"INSERT INTO rowcall.agent_jobs ({names}) VALUES ({marks}) RETURNING id".encode(), list(values.values())
    ).fetchone()
    assert row is not None
    return int(row["id"])


def claim(session: db.SyncSession) -> list[int]:
    session.execute("SELECT rowcall.promote(1000)")
    lease = {"agents": ["a"], "limit": 100, "owner": uuid.uuid4(), "deadline": 900.0, "lease": 30.0}
    return [row["id"] for row in session.execute(CLAIM, lease)]


def job(session: db.SyncSession, job_id: int) -> dict[str, Any]:
    row = session.execute("SELECT * FROM rowcall.agent_jobs WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row


def end(session: db.SyncSession, job_id: int, status: str) -> None:
    """Move a run as a worker would, under its epoch."""
    row = session.execute(
        "SELECT rowcall.settle(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], ARRAY[%s], ARRAY[NULL], ARRAY['code'], "
        "ARRAY['error'], ARRAY['reason'], ARRAY[3600]::float[], ARRAY[0])",
        (job_id, job(session, job_id)["lease_epoch"], status),
    ).fetchone()
    assert row is not None


def open_review(session: db.SyncSession, job_id: int, proposed: str | None = '{"title": "hello"}') -> int:
    row = session.execute(
        "INSERT INTO rowcall.reviews (job_id, code, reasons, raw_answer, proposed_answer) "
        "VALUES (%s, 'model_rules', '{too short}', 'raw', %s) RETURNING id",
        (job_id, proposed),
    ).fetchone()
    assert row is not None
    return int(row["id"])


def job_in(session: db.SyncSession, status: str, **columns: Any) -> int:
    """A run that came to `status` by legal moves alone."""
    if status == "PARKED":
        return insert(session, status="PARKED", reason="older_than_horizon", **columns)
    job_id = insert(session, **columns)
    if status == "PENDING":
        return job_id
    assert claim(session) == [job_id]
    if status == "RUNNING":
        return job_id
    if status == "REJECTED":
        end(session, job_id, "WAITING_REVIEW")
        operate.reject(session, open_review(session, job_id), ACT)
        return job_id
    end(session, job_id, status)
    return job_id


def audits(session: db.SyncSession) -> list[tuple[str, str, str, Any]]:
    rows = session.execute("SELECT actor, action, subject, detail::text AS detail FROM rowcall.audit ORDER BY id")
    return [(row["actor"], row["action"], row["subject"], decode(row["detail"])) for row in rows]


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


@pytest.mark.parametrize("decide", [operate.approve, operate.reject])
@pytest.mark.parametrize("status", [status for status in LIVE + ENDED if status != "WAITING_REVIEW"])
def test_only_a_run_that_waits_for_review_is_decided(
    session: db.SyncSession, status: str, decide: Callable[..., object]
) -> None:
    job_id = job_in(session, status)
    review = open_review(session, job_id)
    before = job(session, job_id)
    with pytest.raises(OperatorError, match=status):
        decide(session, review, ACT)
    assert job(session, job_id) == before


def test_approving_lets_the_run_go_on_without_costing_an_attempt(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    review = open_review(session, job_id)
    decided = operate.approve(session, review, ACT, schema=Answer)
    after = job(session, job_id)
    assert decided == operate.Decided(review, job_id, "APPROVED")
    assert (after["status"], after["approved_answer"], after["approved_by"]) == ("PENDING", {"title": "hello"}, "ada")
    assert claim(session) == [job_id]
    assert job(session, job_id)["attempt_count"] == 1
    assert operate.show_review(session, review).review["decided_by"] == "ada"


def test_approving_an_edited_answer_writes_that_one(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    decided = operate.approve(session, open_review(session, job_id, None), ACT, answer={"title": "mine"}, schema=Answer)
    assert decided.edited
    assert job(session, job_id)["approved_answer"] == {"title": "mine"}


def test_an_answer_that_breaks_the_schema_is_not_approved(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    review = open_review(session, job_id)
    with pytest.raises(OperatorError, match="title"):
        operate.approve(session, review, ACT, answer={"title": 5}, schema=Answer)
    with pytest.raises(OperatorError, match="extra"):
        operate.approve(session, review, ACT, answer={"title": "x", "extra": 1}, schema=Answer)
    assert job(session, job_id)["status"] == "WAITING_REVIEW"
    assert operate.show_review(session, review).review["state"] == "OPEN"


def test_without_a_proposed_answer_approving_needs_one(session: db.SyncSession) -> None:
    review = open_review(session, job_in(session, "WAITING_REVIEW"), None)
    with pytest.raises(OperatorError, match="--answer"):
        operate.approve(session, review, ACT)


def test_rejecting_ends_the_run(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    review = open_review(session, job_id)
    assert operate.reject(session, review, ACT) == operate.Decided(review, job_id, "REJECTED")
    assert job(session, job_id)["status"] == "REJECTED"
    with pytest.raises(OperatorError, match="REJECTED by ada"):
        operate.approve(session, review, Act("bob"))


def test_the_first_decision_wins(session: db.SyncSession, database: str) -> None:
    """Two people decide at the same moment, many times: each time exactly one of them is told that it was too late."""
    for _ in range(20):
        job_id = job_in(session, "WAITING_REVIEW")
        review = open_review(session, job_id)
        start = threading.Barrier(2)
        outcome: dict[str, str] = {}

        def decide(
            name: str,
            act: Callable[..., operate.Decided],
            review: int = review,
            start: threading.Barrier = start,
            outcome: dict[str, str] = outcome,
        ) -> None:
            with db.connect(database, name=name) as own:
                start.wait()
                try:
                    outcome[name] = act(own, review, Act(name)).state
                except OperatorError as error:
                    outcome[name] = error.code

        people = [
            threading.Thread(target=decide, args=("ada", operate.approve)),
            threading.Thread(target=decide, args=("bob", operate.reject)),
        ]
        for person in people:
            person.start()
        for person in people:
            person.join()
        winner = next(name for name, what in outcome.items() if what != "decided_already")
        assert sorted(outcome.values())[1] == "decided_already" or sorted(outcome.values())[0] == "decided_already"
        shown = operate.show_review(session, review).review
        assert (shown["state"], shown["decided_by"]) == (outcome[winner], winner)
        assert job(session, job_id)["status"] == {"APPROVED": "PENDING", "REJECTED": "REJECTED"}[outcome[winner]]
        if outcome[winner] == "APPROVED":
            operate.cancel(session, job_id, ACT)


def test_cancelling_a_held_run_closes_its_review(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    review = open_review(session, job_id)
    operate.cancel(session, job_id, ACT)
    assert operate.show_review(session, review).review["state"] == "CLOSED"


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


def test_a_paused_agent_is_not_claimed_until_it_is_resumed(session: db.SyncSession) -> None:
    job_id = insert(session)
    operate.pause(session, "a", ACT)
    assert claim(session) == []
    operate.resume(session, "a", ACT)
    assert claim(session) == [job_id]
    with pytest.raises(OperatorError, match="ACTIVE"):
        operate.resume(session, "a", ACT)
    with pytest.raises(OperatorError, match="knows no agent 'z'; it knows: a"):
        operate.pause(session, "z", ACT)


def test_retiring_an_agent_cancels_its_runs_and_frees_their_keys(session: db.SyncSession) -> None:
    session.execute(
        "INSERT INTO rowcall.agent_jobs (job_type, key_hash) SELECT 'a', n % 7 FROM generate_series(1, 2300) n"
    )
    held = insert(session, dedupe_key="k")
    under_review = job_in_lane(session)
    review = open_review(session, under_review)
    done = operate.retire(session, "a", ACT)
    assert done == operate.Retired("a", 2302)
    states = session.execute("SELECT status, count(*) AS n FROM rowcall.agent_jobs GROUP BY 1").fetchall()
    assert states == [{"status": "CANCELLED", "n": 2302}]
    assert session.execute("SELECT count(*) AS n FROM rowcall.lanes").fetchone() == {"n": 0}
    assert operate.show_review(session, review).review["state"] == "CLOSED"
    assert insert(session, dedupe_key="k") > held
    assert operate.list_agents(session)[0]["state"] == "RETIRED"


def job_in_lane(session: db.SyncSession) -> int:
    """A run that waits for review while thousands of others stand in their lanes."""
    job_id = insert(session, key_hash=99)
    session.execute("SELECT rowcall.promote(5000)")
    claim(session)
    if job(session, job_id)["status"] != "RUNNING":
        claim(session)
    end(session, job_id, "WAITING_REVIEW")
    return job_id
