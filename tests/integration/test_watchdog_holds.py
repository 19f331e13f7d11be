"""What holds work up and what waits for a person is told, with the command to run, and so is its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer import db
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, rounds


@pytest.fixture
def watching(database: str, clock: Clock) -> Iterator[Rounds]:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as opened:
        yield opened


def told(watching: Rounds, subject: str) -> tuple[str, str]:
    """State and message of its last flip that somebody was told of."""
    watching.look()
    rows = watching.session.execute("SELECT told FROM rowcall.watch_states WHERE subject = %s", (subject,)).fetchall()
    assert rows == [{"told": True}], (subject, watching.states())
    flip = watching.flips(subject)[-1]
    return flip["new_state"], flip["message"]


def over(watching: Rounds, subject: str) -> str:
    watching.look()
    flip = watching.flips(subject)[-1]
    assert flip["new_state"] == "up"
    return str(flip["message"])


@pytest.mark.parametrize("until", ["rowcall.now() + interval '1 hour'", "'infinity'"])
def test_a_spent_budget_is_told_until_its_hold_is_over(watching: Rounds, clock: Clock, until: str) -> None:
    watching.session.execute(
        "INSERT INTO rowcall.budgets (agent, period, tokens, updated_by) VALUES ('a', 'day', 10, 'ann')"
    )
    watching.look()
    watching.session.execute(
        b"INSERT INTO rowcall.holds (reason, agent, budget_id, until, detail)"
        b" SELECT 'budget', 'a', id, " + until.encode() + b", '10 of 10 tokens used' FROM rowcall.budgets"
    )
    state, message = told(watching, "budget:1")
    assert state == "failed" and "10 of 10 tokens used" in message and "`rowcall budgets show 1`" in message
    watching.session.execute("DELETE FROM rowcall.holds")
    assert "no budget" in over(watching, "budget:1")


def test_a_storm_is_told_once_a_table_with_all_the_agents_it_holds(watching: Rounds, clock: Clock) -> None:
    watching.session.execute(
        "INSERT INTO rowcall.holds (reason, agent, topic, until, lanes_per_second, detail)"
        " SELECT 'storm', a, 'cdc.public.orders', rowcall.now() + interval '1 minute', 1, '9 runs in a minute'"
        " FROM unnest('{a,b}'::text[]) AS a"
    )
    state, message = told(watching, "storm:cdc.public.orders")
    assert state == "failed" and "a, b" in message and "`rowcall limits storms`" in message
    watching.session.execute("DELETE FROM rowcall.holds")
    over(watching, "storm:cdc.public.orders")


@pytest.mark.parametrize(
    ("reason", "subject"),
    [("causation_loop", "causation"), ("budget_root", "budget_root"), ("older_than_horizon", "older_than_horizon")],
)
def test_runs_that_are_parked_for_a_person_are_told_until_they_are_let_go(
    watching: Rounds, clock: Clock, reason: str, subject: str
) -> None:
    watching.agent()
    job = watching.run_of()
    watching.look()
    assert f"parked:{subject}" not in watching.states()
    watching.session.execute("UPDATE rowcall.agent_jobs SET status = 'PARKED', reason = %s", (reason,))
    state, message = told(watching, f"parked:{subject}")
    assert state == "failed" and f"rowcall jobs show {job}" in message
    assert watching.flips(f"parked:{subject}")[-1]["run_id"] == job
    watching.session.execute("UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = rowcall.now()")
    over(watching, f"parked:{subject}")


def review(watching: Rounds, hours: float, code: str = "tier") -> None:
    job = watching.run_of("a", "WAITING_REVIEW")
    watching.session.execute(
        "INSERT INTO rowcall.reviews (job_id, code, reasons, opened_at, expires_at) VALUES (%s, %s, '{}',"
        " rowcall.now(), rowcall.now() + make_interval(secs => %s * 3600))", (job, code, hours)
    )  # fmt: skip


def test_a_review_that_escalated_is_late_and_one_about_to_expire_has_failed(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    review(watching, 24)
    watching.look()
    assert watching.states()["review:a"] == "up"
    clock.advance(3600)
    watching.session.execute("UPDATE rowcall.reviews SET escalated_at = rowcall.now()")
    state, message = told(watching, "review:a")
    assert state == "late" and "rowcall reviews list --escalated" in message
    clock.advance(22 * 3600 - 1)
    watching.look()
    assert watching.states()["review:a"] == "late"
    clock.advance(2)
    state, message = told(watching, "review:a")
    assert state == "failed" and "`rowcall reviews show 1`" in message and "denied" in message
    watching.session.execute("UPDATE rowcall.reviews SET state = 'APPROVED', decided_at = now(), decided_by = 'ann'")
    over(watching, "review:a")


def test_a_review_of_short_life_is_not_about_to_expire_when_it_opens(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    review(watching, 0.5)
    watching.look()
    assert watching.states()["review:a"] == "up"
    clock.advance(1621)
    assert told(watching, "review:a")[0] == "failed"


def test_a_review_of_an_unknown_effect_never_expires(watching: Rounds, clock: Clock) -> None:
    watching.agent()
    review(watching, 1, "effect_unknown")
    clock.advance(100_000)
    watching.look()
    assert watching.states()["review:a"] == "up"


def letter(watching: Rounds, topic: str) -> None:
    watching.session.execute(
        'INSERT INTO rowcall.dead_letters (cluster_id, topic, partition, "offset", error_code, error, app_version)'
        " VALUES ('c', %s, 0, 1, 'undecodable', 'x', '1')", (topic,)
    )  # fmt: skip


def test_dead_letters_are_told_a_topic_until_somebody_has_dealt_with_all(watching: Rounds, clock: Clock) -> None:
    for topic in ("a", "a", "b", "c"):
        letter(watching, topic)
    watching.session.execute("UPDATE rowcall.dead_letters SET state = 'DISCARDED' WHERE topic = 'c'")
    state, message = told(watching, "dead_letters:a")
    assert state == "failed" and "undecodable" in message and "`rowcall dead-letters show 1`" in message
    assert told(watching, "dead_letters:b")[0] == "failed"
    assert "dead_letters:c" not in watching.states()
    watching.session.execute("UPDATE rowcall.dead_letters SET state = 'REDRIVEN' WHERE id = 1")
    assert told(watching, "dead_letters:a")[0] == "failed"
    watching.session.execute("UPDATE rowcall.dead_letters SET state = 'REDRIVEN' WHERE id = 2")
    over(watching, "dead_letters:a")


@pytest.mark.parametrize("name", ["parked", "dead_letter_topics"])
def test_what_holds_work_is_found_by_an_index(watching: Rounds, name: str) -> None:
    watching.session.execute("SET enable_seqscan = off")
    plan = watching.session.execute(b"EXPLAIN " + db.queries("watchdog")[name]).fetchall()
    text = "\n".join(str(row["QUERY PLAN"]) for row in plan)
    assert "Seq Scan" not in text and ("jobs_parked" in text or "dead_letters_topic" in text), text
