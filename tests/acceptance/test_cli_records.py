"""Reviews, dead letters and agents by command, as processes on a real Postgres."""

from __future__ import annotations

import json

import pytest

from consumer import db
from tests.acceptance.test_cli import environment, executing, job, one_line, run
from tests.integration.acting import end, open_review

__all__ = ["environment", "executing"]


def held(executing: dict[str, str], proposed: str | None = '{"n": 5}') -> tuple[int, int]:
    """A run of agent `slow` that waits for review; IDs of run and review."""
    with db.connect(executing["DATABASE_URL"], name="test") as session:
        row = session.execute("INSERT INTO rowcall.agent_jobs (job_type) VALUES ('slow') RETURNING id").fetchone()
        assert row is not None
        session.execute("SELECT rowcall.promote(10)")
        session.execute("SELECT FROM rowcall.claim(ARRAY['slow'], 10, gen_random_uuid(), 30, 900)")
        end(session, row["id"], "WAITING_REVIEW")
        return row["id"], open_review(session, row["id"], proposed)


def test_a_held_answer_is_listed_shown_approved_and_the_second_decision_is_refused(executing: dict[str, str]) -> None:
    job_id, review = held(executing)
    assert str(review) in run(executing, "reviews", "list", "--agent", "slow").stdout
    shown = json.loads(run(executing, "reviews", "show", str(review), "--json").stdout)
    assert (shown["proposed_answer"], shown["reasons"], shown["raw_answer"]) == ({"n": 5}, ["too short"], "raw")
    approved = run(executing, "reviews", "approve", str(review), "--by", "bob", "--reason", "it is right")
    assert f"review {review} approved: job {job_id} goes on" in approved.stdout, approved.stderr
    late = run(executing, "reviews", "reject", str(review), "--reason", "too late")
    assert late.returncode == 1
    assert "APPROVED by bob" in one_line(late)
    row = job(executing, job_id)
    assert (row["status"], row["approved_answer"], row["approved_by"]) == ("PENDING", {"n": 5}, "bob")


def test_an_edited_answer_is_checked_by_the_agents_schema(executing: dict[str, str]) -> None:
    job_id, review = held(executing, None)
    without = run(executing, "reviews", "approve", str(review))
    assert "--answer" in one_line(without)
    wrong = run(executing, "reviews", "approve", str(review), "--answer", '{"n": "five"}')
    assert wrong.returncode == 1
    assert "n: Input should be a valid integer" in one_line(wrong)
    right = run(executing, "reviews", "approve", str(review), "--answer", '{"n": 6}')
    assert "as edited" in right.stdout
    assert job(executing, job_id)["approved_answer"] == {"n": 6}


def test_where_the_agents_code_is_not_installed_the_worker_is_left_to_check(executing: dict[str, str]) -> None:
    _, review = held(executing)
    done = run(executing, "reviews", "approve", str(review), ROWCALL_AGENTS="not_here")
    assert done.returncode == 0
    assert "the worker alone will check" in done.stderr


def test_a_rejected_answer_ends_its_run(executing: dict[str, str]) -> None:
    job_id, review = held(executing)
    assert run(executing, "reviews", "reject", str(review), "--reason", "wrong customer").returncode == 0
    row = job(executing, job_id)
    assert (row["status"], row["last_error"]) == ("REJECTED", "rejected by ada: wrong customer")
    assert "no reviews" in run(executing, "reviews", "list").stdout
    assert "REJECTED" in run(executing, "reviews", "list", "--state", "all").stdout


@pytest.fixture
def letter(executing: dict[str, str]) -> int:
    with db.connect(executing["DATABASE_URL"], name="test") as session:
        row = session.execute(
            'INSERT INTO rowcall.dead_letters (cluster_id, topic, partition, "offset", message_value, headers, '
            "error_code, error, app_version) VALUES ('c', 'cdc.public.orders', 0, 7, '\\x001b5b324aff', "
            "'[[\"h\", \"v\"]]', 'undecodable', 'bad \x1b[2J byte', '1') RETURNING id"
        ).fetchone()
    assert row is not None
    return int(row["id"])


def test_a_dead_letter_is_listed_shown_without_moving_the_terminal_and_discarded(
    executing: dict[str, str], letter: int
) -> None:
    listed = run(executing, "dead-letters", "list").stdout
    assert "cdc.public.orders" in listed and "\x1b" not in listed
    shown = run(executing, "dead-letters", "show", str(letter)).stdout
    assert "\\x1b" in shown and "\x1b" not in shown
    machine = json.loads(run(executing, "dead-letters", "show", str(letter), "--json").stdout)
    assert (machine["message_value"], machine["headers"]) == ("001b5b324aff", [["h", "v"]])
    redriven = run(executing, "dead-letters", "redrive", str(letter))
    assert redriven.returncode == 1
    assert str(letter) in one_line(redriven) or "cdc.public.orders" in one_line(redriven)
    assert run(executing, "dead-letters", "discard", str(letter), "--reason", "test").returncode == 0
    assert run(executing, "dead-letters", "discard", str(letter), "--reason", "test").returncode == 1
    assert "no dead letters" in run(executing, "dead-letters", "list").stdout


def test_an_agent_is_paused_resumed_and_retired_by_name(executing: dict[str, str]) -> None:
    assert run(executing, "agents", "pause", "slow", "--reason", "price list").returncode == 0
    state = {row["agent"]: row for row in json.loads(run(executing, "agents", "list", "--json").stdout)}
    assert (state["slow"]["state"], state["slow"]["reason"], state["stuck"]["state"]) == (
        "PAUSED",
        "price list",
        "ACTIVE",
    )
    assert run(executing, "agents", "resume", "slow").returncode == 0
    run(executing, "enqueue", "slow", "--payload", "{}")
    assert "1 runs cancelled" in run(executing, "agents", "retire", "slow", "--yes").stdout
    unknown = run(executing, "agents", "retire", "nosuch")
    assert unknown.returncode == 1 and "it knows: slow, stuck" in one_line(unknown)
    refused = run(executing, "agents", "resume", "slow")
    assert "RETIRED" in one_line(refused)
    assert "is retired" in one_line(run(executing, "enqueue", "slow", "--payload", "{}"))
