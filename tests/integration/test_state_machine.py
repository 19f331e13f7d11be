"""Claims, lanes and moves under random histories, on real Postgres with the clock in the test's hand.

Several owners insert, promote, claim, beat, checkpoint and settle, let leases run out, and people cancel, retry and
decide. After each act the database must agree with the rules; at the end every run must have ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from psycopg.rows import DictRow, dict_row

from consumer import db
from tests.fixtures.postgres import Clock, create, drop

CLAIM, MOVES, STEPS = db.queries("claim"), db.queries("moves"), db.queries("steps")
LEASE_SECONDS, DEADLINE_SECONDS = 30.0, 100.0
LIVE = "('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')"
WORKERS_MOVES = (
    "SUCCEEDED", "WAITING_RETRY", "WAITING_REVIEW", "WAITING_EVENT", "PARKED", "FAILED", "CANCELLED", "PENDING"
)  # fmt: skip
# What the table of the design allows, written down a second time on purpose.
LEGAL = {
    "PENDING": {"CANCELLED", "PARKED"},
    "RUNNING": set(WORKERS_MOVES),
    "WAITING_RETRY": {"PENDING", "CANCELLED", "FAILED"},
    "WAITING_EVENT": {"PENDING", "CANCELLED", "FAILED"},
    "PARKED": {"PENDING", "CANCELLED", "FAILED"},
    "WAITING_REVIEW": {"PENDING", "REJECTED", "CANCELLED"},
    "FAILED": {"PENDING"},
    "CANCELLED": {"PENDING"},
    "SUCCEEDED": set(),
    "REJECTED": set(),
}
# A lane's head and readiness as its jobs have them, beside what the lane says.
BROKEN_LANES = f"""
WITH heads AS (
    SELECT DISTINCT ON (job_type, key_hash) job_type, key_hash, id, status, run_after
    FROM rowcall.agent_jobs WHERE lane_seq IS NOT NULL AND status IN {LIVE}
    ORDER BY job_type, key_hash, lane_seq, id
)
SELECT h.*, l.* FROM heads h FULL JOIN rowcall.lanes l ON l.agent = h.job_type AND l.key_hash = h.key_hash
WHERE l.head IS DISTINCT FROM h.id
OR l.ready_at IS DISTINCT FROM CASE WHEN h.status IN ('PENDING', 'WAITING_RETRY') THEN h.run_after END
"""
OVERTAKEN = f"""
SELECT e.id AS earlier, j.id FROM rowcall.agent_jobs j JOIN rowcall.agent_jobs e
    ON e.job_type = j.job_type AND e.key_hash = j.key_hash AND (e.lane_seq, e.id) < (j.lane_seq, j.id)
WHERE j.id = ANY (%s) AND e.status IN {LIVE}
"""
TWO_HOLDERS = """
SELECT job_type, key_hash FROM rowcall.agent_jobs WHERE status IN ('RUNNING', 'WAITING_REVIEW')
GROUP BY 1, 2 HAVING count(*) > 1
"""


@dataclass(frozen=True)
class Held:
    """A lease that an owner was once given."""

    id: int
    epoch: int


class Machine(RuleBasedStateMachine):
    """One history. Connections are shared by all of them."""

    session: ClassVar[psycopg.Connection[DictRow]]
    inserter: ClassVar[psycopg.Connection[DictRow]]
    clock: ClassVar[Clock]

    def __init__(self) -> None:
        super().__init__()
        self.inserter.rollback()
        self.rows("TRUNCATE rowcall.agent_jobs, rowcall.lanes, rowcall.job_steps")
        self.leases: list[Held] = []
        self.ended: dict[int, str] = {}

    def rows(self, query: str | bytes, parameters: Any = None) -> list[DictRow]:
        cursor = self.session.execute(query if isinstance(query, bytes) else query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def job(self, job_id: int) -> DictRow:
        return self.rows("SELECT * FROM rowcall.agent_jobs WHERE id = %s", (job_id,))[0]

    def owns(self, held: Held) -> bool:
        job = self.job(held.id)
        return bool(job["status"] == "RUNNING" and job["lease_epoch"] == held.epoch)

    @rule(key=st.integers(1, 3), delay=st.sampled_from([0, 0, 0, 40]), attempts=st.integers(1, 4))
    def insert(self, key: int, delay: int, attempts: int) -> None:
        self.rows(
            "INSERT INTO rowcall.agent_jobs (job_type, key_hash, max_attempts, run_after) "
            "VALUES ('a', %s, %s, rowcall.now() + make_interval(secs => %s))",
            (key, attempts, delay),
        )

    @rule(key=st.integers(1, 3))
    def insert_without_commit(self, key: int) -> None:
        self.inserter.execute("INSERT INTO rowcall.agent_jobs (job_type, key_hash) VALUES ('a', %s)", (key,))

    @rule()
    def commit_inserts(self) -> None:
        self.inserter.commit()

    @rule(limit=st.sampled_from([1, 2, 100]))
    def promote(self, limit: int) -> None:
        assert self.rows(CLAIM["promote"], (limit,))[0]["placed"] >= 0

    @rule(limit=st.sampled_from([1, 2, 100]))
    def claim(self, limit: int) -> None:
        taken = self.rows(
            CLAIM["claim"],
            {
                "agents": ["a"], "limit": limit, "owner": uuid.uuid4(), "lease": LEASE_SECONDS,
                "deadline": DEADLINE_SECONDS,
            },
        )  # fmt: skip
        overtaken = self.rows(OVERTAKEN, ([row["id"] for row in taken],))
        assert overtaken == [], "a run began before an earlier one of its key had ended"
        for row in taken:
            held = Held(row["id"], row["lease_epoch"])
            assert all(held.epoch > old.epoch for old in self.leases if old.id == held.id), "an epoch was given twice"
            self.leases.append(held)

    @rule(seconds=st.sampled_from([1, 20, 31, 120]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(limit=st.sampled_from([1, 100]))
    def reclaim(self, limit: int) -> None:
        self.rows(CLAIM["reclaim"], (limit,))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        held = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, max_size=4, unique=True))
        parameters = {
            "ids": [one.id for one in held],
            "epochs": [one.epoch for one in held],
            "lease": LEASE_SECONDS,
        }
        self.rows(CLAIM["beat"], parameters)
        alive = {row["id"] for row in self.rows(CLAIM["still_mine"], parameters)}
        assert alive == {one.id for one in held if self.owns(one)}
        for one in held:
            job = self.job(one.id)
            assert job["status"] != "RUNNING" or job["locked_until"] <= job["deadline"]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        held = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, max_size=4, unique=True))
        names = [uuid.uuid4().hex for _ in held]
        count = len(held)
        kept = self.rows(
            STEPS["checkpoint"],
            {
                "ids": [one.id for one in held], "epochs": [one.epoch for one in held], "names": names,
                "kinds": ["AGENT_STEP"] * count, "numbers": [1] * count, "outputs": ["1"] * count,
                "versions": [1] * count, "started": [None] * count, "lease": LEASE_SECONDS,
            },
        )  # fmt: skip
        owned = {(one.id, one.epoch) for one in held if self.owns(one)}
        assert {(row["id"], row["epoch"]) for row in kept} == owned
        written = self.rows("SELECT job_id, lease_epoch FROM rowcall.job_steps WHERE name = ANY (%s)", (names,))
        assert {(row["job_id"], row["lease_epoch"]) for row in written} == owned

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """A group of moves of owners, present and stale ones mixed, several epochs of one run among them."""
        held = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, max_size=5, unique=True))
        statuses = [data.draw(st.sampled_from(WORKERS_MOVES)) for _ in held]
        expected = {one.id: status for one, status in zip(held, statuses, strict=True) if self.owns(one)}
        moved = self.move([(one.id, one.epoch, status) for one, status in zip(held, statuses, strict=True)])
        assert moved == set(expected), "a stale owner moved a run, or an owner could not"
        assert {job_id: self.job(job_id)["status"] for job_id in expected} == expected

    @rule(data=st.data(), status=st.sampled_from(["PENDING", "CANCELLED", "REJECTED", "FAILED", "SUCCEEDED"]))
    def person_moves(self, data: st.DataObject, status: str) -> None:
        jobs = self.rows("SELECT id, status FROM rowcall.agent_jobs ORDER BY id")
        if not jobs:
            return
        job = data.draw(st.sampled_from(jobs))
        if job["status"] == "RUNNING" and status != "CANCELLED":
            return
        moved = self.move([(job["id"], None, status)])
        assert (moved == {job["id"]}) == (status in LEGAL[job["status"]])

    def move(self, asked: list[tuple[int, int | None, str]]) -> set[int]:
        count = len(asked)
        waits = [5.0 if status in ("WAITING_RETRY", "PENDING") else None for _, _, status in asked]
        moved = self.rows(
            MOVES["settle"],
            {
                "ids": [one[0] for one in asked], "epochs": [one[1] for one in asked],
                "statuses": [one[2] for one in asked], "results": [None] * count, "codes": ["code"] * count,
                "errors": ["error"] * count, "reasons": ["reason"] * count, "delays": waits, "attempts": [0] * count,
            },
        )  # fmt: skip
        return {row["id"] for row in moved}

    @invariant()
    def holds(self) -> None:
        assert self.rows(TWO_HOLDERS) == []
        assert self.rows(BROKEN_LANES) == []
        now = {row["id"]: row["status"] for row in self.rows("SELECT id, status FROM rowcall.agent_jobs")}
        for job_id, status in self.ended.items():
            assert now[job_id] == status, "an end was undone"
        self.ended |= {job_id: status for job_id, status in now.items() if status in ("SUCCEEDED", "REJECTED")}

    def teardown(self) -> None:
        """All owners are gone, people decide what waits for them, and one worker goes on until nothing is left."""
        self.inserter.commit()
        unended = f"SELECT id, status FROM rowcall.agent_jobs WHERE status IN {LIVE}"
        for _ in range(200):
            waiting = self.rows(unended)
            if not waiting:
                break
            self.clock.advance(60)
            self.reclaim(100)
            decided = {"WAITING_REVIEW": "REJECTED", "WAITING_EVENT": "PENDING", "PARKED": "PENDING"}
            self.move([(job["id"], None, decided[job["status"]]) for job in waiting if job["status"] in decided])
            self.promote(100)
            self.claim(100)
            running = self.rows("SELECT id, lease_epoch FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
            self.move([(job["id"], job["lease_epoch"], "SUCCEEDED") for job in running])
            self.holds()
        assert self.rows(unended) == [], "runs were forgotten"
        assert self.rows("SELECT * FROM rowcall.lanes") == []


@contextmanager
def connections(url: str) -> Iterator[tuple[psycopg.Connection[DictRow], psycopg.Connection[DictRow]]]:
    with (
        psycopg.connect(url, autocommit=True, row_factory=dict_row) as session,
        psycopg.connect(url, row_factory=dict_row) as inserter,
    ):
        session.execute("SET lock_timeout = '5s'")
        yield session, inserter
        inserter.rollback()


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[str]:
    url = create(server)
    yield url
    drop(url)


def test_no_history_breaks_an_epoch_an_order_or_an_end_and_none_forgets_a_run(database: str) -> None:
    with connections(database) as (session, inserter):
        session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1) ON CONFLICT DO NOTHING")
        Machine.session, Machine.inserter, Machine.clock = session, inserter, Clock(database)
        run_state_machine_as_test(
            Machine,
            settings=settings(
                # Without shrinking, which takes minutes on a real database; a history of 40 acts can be read as it is.
                max_examples=40, stateful_step_count=40, deadline=None, print_blob=True,
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
