"""Decisions of people under random histories: the machine of test_state_machine.py, with real reviews.

A run that a worker moves to WAITING_REVIEW gets its review as the stage `review` writes it. People approve, reject, ask
again and cancel through `operate`, with the digest they saw or another; what waits too long expires, and newer changes
of the row supersede. The rules of the other machine hold all the time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from consumer import db, operate
from consumer.errors import OperatorError
from consumer.records.approval import digest_of
from tests.agents.shared import database
from tests.fixtures.postgres import Clock
from tests.integration.acting import ACT
from tests.integration.test_state_machine import AGENTS, LIVE, Held, Machine, connections

__all__ = ["database"]

REVIEW = db.queries("review")
EXPIRES, ESCALATES = 300.0, 100.0
# What a decision makes of the run.
BECOMES = {"approve": "PENDING", "again": "PENDING", "reject": "REJECTED"}
DECISIONS = {"approve": operate.approve, "again": operate.again, "reject": operate.reject}
STATES = {"approve": "APPROVED", "again": "AGAIN", "reject": "REJECTED"}
NOT_ONE_OPEN_REVIEW = """
SELECT j.id, j.status, count(r.id) AS reviews FROM rowcall.agent_jobs j
LEFT JOIN rowcall.reviews r ON r.job_id = j.id AND r.state = 'OPEN'
GROUP BY j.id HAVING count(r.id) <> CASE WHEN j.status = 'WAITING_REVIEW' THEN 1 ELSE 0 END
"""
# Decided twice, or without anybody's name in the audit.
NOT_TOLD_ONCE = """
SELECT r.id, r.state FROM rowcall.reviews r WHERE r.state NOT IN ('OPEN', 'CLOSED', 'STALE') AND (
    SELECT count(*) FROM rowcall.audit a WHERE a.detail ->> 'review' = r.id::text
    AND a.action IN ('approve', 'again', 'reject', 'expire', 'supersede')) <> 1
"""
# An answer that stands approved on a run whose last review says otherwise.
UNAPPROVED = """
SELECT j.id FROM rowcall.agent_jobs j WHERE j.approved_answer IS NOT NULL AND 'APPROVED' IS DISTINCT FROM (
    SELECT r.state FROM rowcall.reviews r WHERE r.job_id = j.id ORDER BY r.id DESC LIMIT 1)
"""
WRONG_REJECTIONS = """
SELECT j.id FROM rowcall.agent_jobs j WHERE (j.status = 'REJECTED') <> EXISTS (
    SELECT FROM rowcall.reviews r WHERE r.job_id = j.id AND r.state = 'REJECTED')
"""
# An approved run goes first; a lane that does not say so of its head would let it wait.
WRONG_PLACES = """
SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
WHERE l.priority <> rowcall.lane_priority(j.approved_answer IS NOT NULL, j.priority)
"""


class Reviews(Machine):
    """One history with people in it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows("TRUNCATE rowcall.reviews, rowcall.review_events")
        self.decided: dict[int, str] = {}

    @rule(agent=st.sampled_from("ab"), key=st.integers(1, 2), operation=st.sampled_from("uuud"))
    def change(self, agent: str, key: int, operation: str) -> None:
        self.rows(
            "INSERT INTO rowcall.agent_jobs (job_type, key_hash, input_kind, payload) "
            "VALUES (%s, %s, 'change', json_build_object('op', %s::text))",
            (agent, key, operation),
        )

    def move(self, asked: list[tuple[int, int | None, str]], *, reason: str = "reason", attempts: int = 0) -> set[int]:
        """With the reviews of what is moved to wait for one, in the same transaction."""
        with self.session.transaction():
            moved = super().move(asked, reason=reason, attempts=attempts)
            for job_id in moved & {one[0] for one in asked if one[2] == "WAITING_REVIEW"}:
                if self.job(job_id)["status"] == "WAITING_REVIEW":
                    self.ask(job_id)
            return moved

    def ask(self, job_id: int) -> None:
        job = self.job(job_id)
        if job["approved_answer"] is not None:
            last = self.rows("SELECT max(id) AS id FROM rowcall.reviews WHERE job_id = %s", (job_id,))[0]["id"]
            self.rows(REVIEW["withdraw_approval"], {"id": job_id, "review": last, "stale": None})
            self.rows(REVIEW["refresh_lane"], (job_id,))
            self.happened["approval withdrawn"] += 1
        answer = '{"title": "hello"}'
        nothing = dict.fromkeys(("raw", "shape", "seen", "seen_digest", "changes", "stale"))
        self.rows(REVIEW["open_review"], nothing | {
            "id": job_id, "code": "tier_high", "reasons": ["of the high tier"], "proposed": answer, "tier": "high",
            "version": job["agent_version"], "expires": EXPIRES, "escalates": ESCALATES,
            "digest": digest_of(job["job_type"], job["agent_version"], answer, job["event_id"], job["key_text"]),
        })  # fmt: skip

    def reviews(self, states: str) -> list[Any]:
        return self.rows(f"SELECT * FROM rowcall.reviews WHERE state {states} ORDER BY id")

    @rule(data=st.data(), how=st.sampled_from(sorted(DECISIONS)), aware=st.sampled_from([True, True, False]))
    def person_decides(self, data: st.DataObject, how: str, aware: bool) -> None:
        """Some have seen another request than the one that stands there now."""
        if found := self.reviews("= 'OPEN'"):
            self.decide(data.draw(st.sampled_from(found)), how, aware=aware)

    def decide(self, review: Any, how: str, *, aware: bool = True) -> None:
        before = self.job(review["job_id"])
        if not aware:
            with pytest.raises(OperatorError, match="another request"):
                DECISIONS[how](self.session, review["id"], ACT, digest="another")
            assert self.job(review["job_id"]) == before
            return
        DECISIONS[how](self.session, review["id"], ACT, digest=review["digest"])
        job = self.job(review["job_id"])
        assert (job["status"], job["approved_answer"] is not None) == (BECOMES[how], how == "approve")
        assert job["attempt_count"] == max(0, before["attempt_count"] - (how != "reject"))
        assert job["asked_again"] == before["asked_again"] + (how == "again")
        assert self.rows("SELECT state FROM rowcall.reviews WHERE id = %s", (review["id"],))[0]["state"] == STATES[how]
        self.happened[how] += 1

    @rule(data=st.data(), how=st.sampled_from(sorted(DECISIONS)))
    def person_comes_too_late(self, data: st.DataObject, how: str) -> None:
        if found := self.reviews("<> 'OPEN'"):
            self.decide_late(data.draw(st.sampled_from(found)), how)

    def decide_late(self, review: Any, how: str) -> None:
        before = self.job(review["job_id"])
        with pytest.raises(OperatorError, match="the first decision stands"):
            DECISIONS[how](self.session, review["id"], ACT)
        assert self.job(review["job_id"]) == before

    @rule(seconds=st.sampled_from([0, 0, 150, 310]))
    def time_passes_over_reviews(self, seconds: int) -> None:
        """The workers' look at the clock: afterwards nothing is open that is late, or that a newer change replaces."""
        self.clock.advance(seconds)
        self.rows(REVIEW["supersede_all"])
        self.rows(REVIEW["expire"], (100,))
        self.rows(REVIEW["escalate"], (100,))
        late = "= 'OPEN' AND (expires_at <= rowcall.now() OR (escalates_at <= rowcall.now() AND escalated_at IS NULL))"
        assert self.reviews(late) == []
        ended = self.reviews("IN ('EXPIRED', 'SUPERSEDED')")
        for review in ended:
            self.happened[review["state"]] += review["id"] not in self.decided
        assert self.rows(REVIEW["supersede_all"])[0]["superseded"] == 0

    @rule(data=st.data(), from_start=st.booleans())
    def person_retries(self, data: st.DataObject, from_start: bool) -> None:
        if found := self.rows("SELECT id, status FROM rowcall.agent_jobs ORDER BY id"):
            job = data.draw(st.sampled_from(found))
            if job["status"] in ("FAILED", "CANCELLED", "PARKED", "WAITING_RETRY"):
                operate.retry(self.session, job["id"], ACT, from_start=from_start)
                assert self.job(job["id"])["status"] == "PENDING"
            else:
                with pytest.raises(OperatorError):
                    operate.retry(self.session, job["id"], ACT, from_start=from_start)

    @rule(data=st.data(), status=st.just("CANCELLED"))
    def person_moves(self, data: st.DataObject, status: str) -> None:
        """Cancels, as people can; a review that was open is closed with it."""
        if found := self.rows(f"SELECT id FROM rowcall.agent_jobs WHERE status IN {LIVE} ORDER BY id"):
            self.cancel(data.draw(st.sampled_from(found))["id"])

    def cancel(self, job_id: int) -> None:
        operate.cancel(self.session, job_id, ACT)
        assert self.job(job_id)["status"] == "CANCELLED"

    @invariant()
    def reviews_hold(self) -> None:
        assert self.rows(NOT_ONE_OPEN_REVIEW) == []
        assert self.rows(NOT_TOLD_ONCE) == []
        assert self.rows(UNAPPROVED) == []
        assert self.rows(WRONG_REJECTIONS) == []
        assert self.rows(WRONG_PLACES) == []
        now = {row["id"]: row["state"] for row in self.reviews("<> 'OPEN'")}
        for review_id, state in self.decided.items():
            assert now[review_id] in (state, "STALE" if state == "APPROVED" else state), "a decision was undone"
        self.decided = now

    def teardown(self) -> None:
        """People decide what is open, then all goes to its end."""
        for number, review in enumerate(self.reviews("= 'OPEN'")):
            self.decide(review, sorted(DECISIONS)[number % len(DECISIONS)])
        super().teardown()
        self.reviews_hold()


def test_no_history_decides_twice_forgets_a_review_or_runs_what_nobody_approved(database: str) -> None:
    with connections(database) as (session, inserter):
        session.execute(AGENTS)
        Reviews.session, Reviews.inserter, Reviews.clock = session, inserter, Clock(database)
        Reviews.happened = Counter()
        run_state_machine_as_test(
            Reviews,
            settings=settings(
                max_examples=20, stateful_step_count=30, deadline=None, print_blob=True,
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip


def test_a_history_with_every_decision_in_it_keeps_the_same_rules(database: str) -> None:
    """What chance seldom brings together: every end of a review, and an approval that could not be carried out."""
    with connections(database) as (session, inserter):
        session.execute(AGENTS)
        Reviews.session, Reviews.inserter, Reviews.clock = session, inserter, Clock(database)
        Reviews.happened = Counter()
        machine = Reviews()

        def held() -> list[Held]:
            machine.promote(100)
            machine.claim(100, 1, 1, ["a", "b"])
            return [one for one in machine.leases if machine.owns(one)]

        def ask() -> Any:
            machine.move([(one.id, one.epoch, "WAITING_REVIEW") for one in held()])
            machine.reviews_hold()
            return machine.reviews("= 'OPEN'")

        machine.change("a", 1, "u")
        for how in ("again", "approve", "approve", "reject"):
            (review,) = ask()
            machine.decide(review, how, aware=False)
            machine.decide(review, how)
            machine.reviews_hold()
            for late in DECISIONS:
                machine.decide_late(review, late)
        machine.change("a", 1, "u")
        ask()
        machine.change("a", 1, "u")
        machine.promote(100)
        machine.time_passes_over_reviews(0)
        ask()
        machine.time_passes_over_reviews(310)
        machine.reviews_hold()
        machine.change("b", 1, "u")
        (review,) = ask()
        machine.cancel(review["job_id"])
        machine.reviews_hold()
        machine.teardown()
    happened = {what for what, count in Reviews.happened.items() if count}
    assert happened >= {"again", "approve", "reject", "approval withdrawn", "SUPERSEDED", "EXPIRED"}
