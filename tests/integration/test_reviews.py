"""What people decide about answers and agents, on a real Postgres."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel, ConfigDict, Field

from consumer import db, operate
from consumer.agents.door import Agent, answer_text, read_answer_text
from consumer.errors import OperatorError
from consumer.operate import Act
from tests.integration.acting import ACT, ENDED, LIVE, claim, end, insert, job, job_in, open_review


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")

    full_title: str = Field(alias="fullTitle")
    size: int = 0


AGENT = Agent(name="a", version=1, answer=Answer)
ALIASED = Agent(name="a", version=1, answer=Aliased)


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
        yield opened


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
    decided = operate.approve(session, review, ACT, agent=AGENT)
    after = job(session, job_id)
    assert decided == operate.Decided(review, job_id, "APPROVED")
    assert (after["status"], after["approved_answer"], after["approved_by"]) == ("PENDING", {"title": "hello"}, "ada")
    assert claim(session) == [job_id]
    assert job(session, job_id)["attempt_count"] == 1
    assert operate.show_review(session, review).review["decided_by"] == "ada"


def test_approving_an_edited_answer_writes_that_one(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    decided = operate.approve(session, open_review(session, job_id, None), ACT, answer={"title": "mine"}, agent=AGENT)
    assert decided.edited
    assert job(session, job_id)["approved_answer"] == {"title": "mine"}


def test_a_proposed_answer_with_aliases_can_be_approved(session: db.SyncSession) -> None:
    proposed = answer_text(Aliased(fullTitle="x"))
    review = open_review(session, job_in(session, "WAITING_REVIEW"), proposed)
    assert operate.show_review(session, review).proposed_answer == {"full_title": "x", "size": 0}
    assert operate.approve(session, review, ACT, agent=ALIASED).state == "APPROVED"


def test_a_worker_reads_the_very_answer_that_a_person_gave(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    given = {"fullTitle": "nul \x00", "size": 2**80}
    operate.approve(session, open_review(session, job_id, None), ACT, answer=given, agent=ALIASED)
    row = session.execute(
        "SELECT approved_answer::text AS text FROM rowcall.agent_jobs WHERE id = %s", (job_id,)
    ).fetchone()
    assert row is not None
    assert read_answer_text(Aliased, row["text"]) == Aliased(fullTitle="nul \x00", size=2**80)


def test_an_answer_that_json_has_not_is_refused(session: db.SyncSession) -> None:
    review = open_review(session, job_in(session, "WAITING_REVIEW"))
    with pytest.raises(OperatorError, match="JSON"):
        operate.approve(session, review, ACT, answer=float("inf"))
    assert operate.show_review(session, review).review["state"] == "OPEN"


def test_an_answer_that_breaks_the_schema_is_not_approved(session: db.SyncSession) -> None:
    job_id = job_in(session, "WAITING_REVIEW")
    review = open_review(session, job_id)
    with pytest.raises(OperatorError, match="title"):
        operate.approve(session, review, ACT, answer={"title": 5}, agent=AGENT)
    with pytest.raises(OperatorError, match="extra"):
        operate.approve(session, review, ACT, answer={"title": "x", "extra": 1}, agent=AGENT)
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
                    outcome[name] = act(own, review, Act(name, "because")).state
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


def test_retiring_goes_on_when_a_whole_batch_ended_meanwhile(session: db.SyncSession, database: str) -> None:
    session.execute("INSERT INTO rowcall.agent_jobs (job_type) SELECT 'a' FROM generate_series(1, 1001)")
    done: list[operate.Retired] = []

    def retire() -> None:
        with db.connect(database, name="retiring") as own:
            done.append(operate.retire(own, "a", ACT))

    person = threading.Thread(target=retire)
    with session.transaction():
        session.execute(
            "SELECT rowcall.settle(ARRAY[id], ARRAY[NULL]::bigint[], ARRAY['CANCELLED'], ARRAY[NULL], "
            "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL]::float[], ARRAY[0]) "
            "FROM (SELECT id FROM rowcall.agent_jobs ORDER BY id LIMIT 1000) AS batch"
        )
        person.start()
        wait_until_blocked(database, "retiring")
    person.join()
    assert done == [operate.Retired("a", 1)]
    left = session.execute("SELECT count(*) AS n FROM rowcall.agent_jobs WHERE status <> 'CANCELLED'").fetchone()
    assert left == {"n": 0}


def job_in_lane(session: db.SyncSession) -> int:
    """A run that waits for review while thousands of others stand in their lanes."""
    job_id = insert(session, key_hash=99)
    session.execute("SELECT rowcall.promote(5000)")
    claim(session)
    if job(session, job_id)["status"] != "RUNNING":
        claim(session)
    end(session, job_id, "WAITING_REVIEW")
    return job_id


def wait_until_blocked(database: str, name: str) -> None:
    """Return when the session of this name waits for a lock."""
    waiting = "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    give_up = time.monotonic() + 4.0
    with db.connect(database, name="looking") as own:
        while not own.execute(waiting, (f"rowcall {name}",)).fetchall():
            assert time.monotonic() < give_up
            time.sleep(0.02)
