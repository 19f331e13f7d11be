"""People, newer changes and the clock at one review at the same moment: exactly one of them decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from consumer import db, operate
from consumer.errors import OperatorError, TransactionConflict
from consumer.operate import Act
from tests.agents.shared import database
from tests.integration.acting import claim, end, insert, job, open_review
from tests.integration.test_state_machine import BROKEN_LANES, TWO_HOLDERS

__all__ = ["database"]

ROW = {"key_hash": 7, "input_kind": "change", "payload": '{"op": "u"}'}
# What becomes of the run with each end of its review.
ENDS = {
    "APPROVED": "PENDING", "AGAIN": "PENDING", "REJECTED": "REJECTED", "SUPERSEDED": "CANCELLED",
    "EXPIRED": "CANCELLED", "CLOSED": "CANCELLED", "OPEN": "WAITING_REVIEW",
}  # fmt: skip
LATE = {"decided_already", "operator"}
Deed = Callable[[db.SyncSession, int, int], None]


def person(name: str) -> Act:
    return Act(name, "because")


def approve(session: db.SyncSession, review: int, job_id: int) -> None:
    operate.approve(session, review, person("approver"))


def approve_edited(session: db.SyncSession, review: int, job_id: int) -> None:
    operate.approve(session, review, person("editor"), edits={"title": "edited"})


def approve_in_a_group(session: db.SyncSession, review: int, job_id: int) -> None:
    done = operate.approve_alike(session, [(review, "d")], person("grouper"))
    if done.refused:
        raise OperatorError(done.refused[review], code="decided_already")


def reject(session: db.SyncSession, review: int, job_id: int) -> None:
    operate.reject(session, review, person("rejecter"))


def ask_again(session: db.SyncSession, review: int, job_id: int) -> None:
    operate.again(session, review, person("asker"))


def cancel(session: db.SyncSession, review: int, job_id: int) -> None:
    operate.cancel(session, job_id, person("canceller"))


def supersede(session: db.SyncSession, review: int, job_id: int) -> None:
    insert(session, **ROW)
    session.execute("SELECT rowcall.promote(100)")


def look(session: db.SyncSession, review: int, job_id: int) -> None:
    session.execute("SELECT rowcall.supersede_reviews(NULL)")


def expire(session: db.SyncSession, review: int, job_id: int) -> None:
    session.execute("SELECT rowcall.expire_reviews(100)")
    session.execute("SELECT rowcall.escalate_reviews(100)")


PEOPLE: list[Deed] = [approve, approve_edited, approve_in_a_group, reject, ask_again, cancel]
ACTS: list[Deed] = [*PEOPLE, supersede, look, expire]


@dataclass
class Scene:
    """One database, those who act on it at once, and one session that looks on."""

    look_on: db.SyncSession
    actors: list[db.SyncSession]
    pool: ThreadPoolExecutor

    def waiting(self, *, late: bool) -> tuple[int, int]:
        """A run that waits for a decision, and its review, which has run out where `late`."""
        self.look_on.execute("TRUNCATE rowcall.agent_jobs, rowcall.lanes, rowcall.reviews, rowcall.review_events")
        job_id = insert(self.look_on, **ROW)
        assert claim(self.look_on) == [job_id]
        end(self.look_on, job_id, "WAITING_REVIEW")
        review = open_review(self.look_on, job_id)
        self.look_on.execute(
            "UPDATE rowcall.reviews SET tier = 'medium', digest = 'd', escalates_at = rowcall.now(), expires_at = "
            "CASE WHEN %s THEN rowcall.now() ELSE rowcall.now() + interval '1 day' END",
            (late,),
        )
        return job_id, review

    def at_once(self, acts: Sequence[Deed], review: int, job_id: int) -> list[str]:
        """What each of the acts was told, all of them begun together."""
        start = threading.Barrier(len(acts))

        def one(pair: tuple[Deed, db.SyncSession]) -> str:
            start.wait(5)
            try:
                with db.translated():
                    pair[0](pair[1], review, job_id)
            except OperatorError as error:
                return error.code
            except TransactionConflict as error:
                return f"conflict: {error}"
            return "done"

        return list(self.pool.map(one, zip(acts, self.actors, strict=False)))


@pytest.fixture(scope="module")
def scene(database: str) -> Iterator[Scene]:
    sessions = [db.connect(database, name=f"actor {number}") for number in range(5)]
    sessions[0].execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
    with ThreadPoolExecutor(4) as pool:
        yield Scene(sessions[0], sessions[1:], pool)
    for session in sessions:
        session.close()


def check_one_decision(scene: Scene, job_id: int, state: str, done: list[Deed]) -> None:
    """The run is where its review says, one person at most was told that they decided, and the lanes are whole."""
    now = job(scene.look_on, job_id)
    # A decided run may be cancelled afterwards; its review stays as it was decided.
    assert now["status"] in (ENDS[state], "CANCELLED" if cancel in done else None), (state, now["status"])
    assert (now["approved_answer"] is not None) == (state == "APPROVED")
    people = [what for what in done if what in PEOPLE and (what is not cancel or state == "CLOSED")]
    by_person = state in ("APPROVED", "AGAIN", "REJECTED", "CLOSED")
    assert len(people) == (1 if by_person else 0), (people, state)
    assert scene.look_on.execute(BROKEN_LANES.encode()).fetchall() == []
    assert scene.look_on.execute(TWO_HOLDERS.encode()).fetchall() == []


def test_exactly_one_of_those_who_decide_at_once_wins(scene: Scene) -> None:
    ended: set[str] = set()

    @settings(
        max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate], print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(acts=st.lists(st.sampled_from(ACTS), min_size=2, max_size=4), late=st.booleans())
    def history(acts: list[Deed], late: bool) -> None:
        job_id, review = scene.waiting(late=late)
        told = scene.at_once(acts, review, job_id)
        assert not [one for one in told if one not in LATE | {"done"}], told
        row = scene.look_on.execute("SELECT state FROM rowcall.reviews").fetchone()
        assert row is not None
        ended.add(row["state"])
        done = [what for what, one in zip(acts, told, strict=True) if one == "done"]
        check_one_decision(scene, job_id, row["state"], done)

    history()
    assert {"APPROVED", "REJECTED", "AGAIN", "SUPERSEDED", "EXPIRED", "CLOSED"} <= ended
