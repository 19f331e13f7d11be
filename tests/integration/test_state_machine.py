"""Claims, lanes and moves under random histories, on real Postgres with the clock in the test's hand.

Owners of two versions insert, promote, claim, beat, checkpoint and settle, let leases and deadlines run out, and people
cancel, retry (from the start too) and decide. Agent `a` goes on after a failure, agent `b` holds its key. After each
act the database must agree with the rules; at the end every run must have ended.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from psycopg.rows import DictRow, dict_row

from consumer import db
from tests.agents.shared import database
from tests.fixtures.postgres import Clock
from tests.integration.acting import claiming

__all__ = ["database"]

CLAIM, MOVES, STEPS, OPERATE = (db.queries(stage) for stage in ("claim", "moves", "steps", "operate"))
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
    SELECT DISTINCT ON (job_type, key_hash) job_type, key_hash, id, run_after,
        status IN ('PENDING', 'WAITING_RETRY') AS waits, losses >= 2 AS suspect,
        CASE WHEN status = 'PARKED' AND reason = 'version' THEN agent_version END AS parked
    FROM rowcall.agent_jobs WHERE lane_seq IS NOT NULL AND status IN {LIVE}
    ORDER BY job_type, key_hash, lane_seq, id
)
SELECT h.*, l.* FROM heads h FULL JOIN rowcall.lanes l ON l.agent = h.job_type AND l.key_hash = h.key_hash
WHERE l.head IS DISTINCT FROM h.id
OR l.ready_at IS DISTINCT FROM CASE WHEN waits AND NOT suspect THEN h.run_after END
OR l.suspect_at IS DISTINCT FROM CASE WHEN waits AND suspect THEN h.run_after END
OR l.parked_version IS DISTINCT FROM h.parked
"""
AGENTS = """
INSERT INTO rowcall.agents (name, version, options) VALUES ('a', 1, '{}'), ('b', 1, '{"on_failure": "park"}')
ON CONFLICT DO NOTHING
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
    """A lease that an owner was once given, and the version of the owner's code."""

    id: int
    epoch: int
    version: int


class Machine(RuleBasedStateMachine):
    """One history. Connections are shared by all of them."""

    session: ClassVar[psycopg.Connection[DictRow]]
    inserter: ClassVar[psycopg.Connection[DictRow]]
    clock: ClassVar[Clock]
    # What has happened in all histories together: one in which nothing happens proves nothing.
    happened: ClassVar[Counter[str]]

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

    @rule(
        agent=st.sampled_from("ab"), key=st.integers(1, 2), delay=st.sampled_from([0, 0, 0, 40]),
        attempts=st.integers(1, 4), hold=st.booleans(),
    )  # fmt: skip
    def insert(self, agent: str, key: int, delay: int, attempts: int, hold: bool) -> None:
        self.rows(
            "INSERT INTO rowcall.agent_jobs (job_type, key_hash, max_attempts, holds_key, run_after) "
            "VALUES (%s, %s, %s, %s, rowcall.now() + make_interval(secs => %s))",
            (agent, key, attempts, hold, delay),
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

    @rule(
        limit=st.sampled_from([1, 2, 100]), version=st.integers(1, 2), suspects=st.integers(0, 1),
        agents=st.sampled_from([["a"], ["b"], ["a", "b"]]),
    )  # fmt: skip
    def claim(self, limit: int, version: int, suspects: int, agents: list[str]) -> None:
        parked = self.rows("SELECT id, reason, agent_version FROM rowcall.agent_jobs WHERE status = 'PARKED'")
        taken = self.rows(
            CLAIM["claim"],
            claiming(
                limit, lease=LEASE_SECONDS, deadline=DEADLINE_SECONDS, suspects=suspects, agents=agents,
                versions=[version] * len(agents), deadlines=[None] * len(agents),
            ),
        )  # fmt: skip
        ids = [row["id"] for row in taken]
        assert len(taken) <= limit
        assert self.rows(OVERTAKEN, (ids,)) == [], "a run began before an earlier one of its key had ended"
        assert all((row["reason"], row["agent_version"]) == ("version", version) for row in parked if row["id"] in ids)
        assert sum(row["losses"] >= 2 for row in taken) <= suspects
        self.happened["suspect claimed"] += sum(row["losses"] >= 2 for row in taken)
        self.happened["claimed out of parked"] += sum(row["id"] in ids for row in parked)
        for row in taken:
            held = Held(row["id"], row["lease_epoch"], version)
            assert all(held.epoch > old.epoch for old in self.leases if old.id == held.id), "an epoch was given twice"
            self.leases.append(held)
        strangers = [row for row in taken if row["agent_version"] not in (None, version)]
        self.happened["parked for its version"] += len(strangers)
        # What a worker does with a run that another version has begun.
        moves = [(row["id"], row["lease_epoch"], "PARKED") for row in strangers]
        assert self.move(moves, reason="version", attempts=-1) == {row["id"] for row in strangers}

    @rule(seconds=st.sampled_from([1, 20, 31, 120]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(limit=st.sampled_from([1, 100]))
    def reclaim(self, limit: int) -> None:
        self.rows(CLAIM["reclaim"], (limit,))

    @rule(version=st.integers(1, 2), times=st.sampled_from([1, 3, 6]))
    def workers_die_one_after_the_other(self, version: int, times: int) -> None:
        """Each takes what there is and dies with it, as where one run kills them all."""
        for _ in range(times):
            self.promote(100)
            self.claim(100, version, 1, ["a", "b"])
            self.all_workers_die()
            self.clock.advance(5)

    @rule()
    def all_workers_die(self) -> None:
        self.clock.advance(LEASE_SECONDS + 1)
        before = {row["id"]: row for row in self.rows("SELECT * FROM rowcall.agent_jobs WHERE status = 'RUNNING'")}
        self.reclaim(100)
        for job_id, old in before.items():
            job = self.job(job_id)
            lost = old["locked_until"] < old["deadline"]
            assert (job["losses"], job["attempt_count"]) == (
                (old["losses"] + 1, old["attempt_count"] - 1) if lost else (old["losses"], old["attempt_count"])
            )
            self.happened["loss limit"] += job["error_code"] == "lease_expired" and job["losses"] == 5
            self.happened["failure that holds its key"] += job["reason"] == "failed"

    @rule(pin=st.booleans())
    def all_workers_drain(self, pin: bool) -> None:
        """They stop in the middle, after a step or before the first, and give back what they hold."""
        held = [one for one in self.leases if self.owns(one)]
        if pin:
            self.keep(held)
        moved = self.move([(one.id, one.epoch, "PENDING") for one in held], attempts=-1)
        assert moved == {one.id for one in held}

    @rule(old=st.integers(1, 2), new=st.integers(1, 2), pin=st.booleans())
    def deploy(self, old: int, new: int, pin: bool) -> None:
        """Workers of one version begin what there is and stop; workers of another, or the same, take over."""
        self.promote(100)
        self.claim(100, old, 1, ["a", "b"])
        self.all_workers_drain(pin)
        self.clock.advance(6)
        self.claim(100, new, 1, ["a", "b"])

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
        self.keep(data.draw(st.lists(st.sampled_from(self.leases), min_size=1, max_size=4, unique=True)))

    def keep(self, held: list[Held]) -> None:
        names = [uuid.uuid4().hex for _ in held]
        count = len(held)
        kept = self.rows(
            STEPS["checkpoint"],
            {
                "ids": [one.id for one in held], "epochs": [one.epoch for one in held], "names": names,
                "kinds": ["AGENT_STEP"] * count, "numbers": [1] * count, "outputs": ["1"] * count,
                "versions": [one.version for one in held], "started": [None] * count, "lease": LEASE_SECONDS,
            },
        )  # fmt: skip
        owned = {(one.id, one.epoch) for one in held if self.owns(one)}
        assert {(row["id"], row["epoch"]) for row in kept} == owned
        written = self.rows("SELECT job_id, lease_epoch FROM rowcall.job_steps WHERE name = ANY (%s)", (names,))
        assert {(row["job_id"], row["lease_epoch"]) for row in written} == owned
        for one in held:
            if self.owns(one):
                job = self.job(one.id)
                assert (job["agent_version"], job["losses"]) == (one.version, 0), "a run has steps of two versions"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """A group of moves of owners, present and stale ones mixed, several epochs of one run among them."""
        owned = [one for one in self.leases if self.owns(one)]
        held = data.draw(st.lists(st.sampled_from(owned * 4 + self.leases), min_size=1, max_size=5, unique=True))
        statuses = [data.draw(st.sampled_from(WORKERS_MOVES)) for _ in held]
        expected = {one.id: status for one, status in zip(held, statuses, strict=True) if self.owns(one)}
        moved = self.move([(one.id, one.epoch, status) for one, status in zip(held, statuses, strict=True)])
        assert moved == set(expected), "a stale owner moved a run, or an owner could not"
        for job_id, status in expected.items():
            job = self.job(job_id)
            kept = status == "FAILED" and job["job_type"] == "b"
            assert (job["status"], job["reason"]) == (("PARKED", "failed") if kept else (status, "reason"))

    @rule(data=st.data(), from_start=st.booleans())
    def person_retries(self, data: st.DataObject, from_start: bool) -> None:
        jobs = self.rows(
            "SELECT id, attempt_count FROM rowcall.agent_jobs "
            "WHERE status IN ('FAILED', 'CANCELLED', 'PARKED', 'WAITING_RETRY') ORDER BY id"
        )
        if not jobs:
            return
        job = data.draw(st.sampled_from(jobs))
        assert self.move([(job["id"], None, "PENDING")], attempts=-job["attempt_count"]) == {job["id"]}
        if from_start:
            self.rows(OPERATE["supersede_steps"], {"id": job["id"]})
        after = self.job(job["id"])
        assert (after["status"], after["attempt_count"], after["losses"], after["postponed"]) == ("PENDING", 0, 0, 0)

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

    def move(self, asked: list[tuple[int, int | None, str]], *, reason: str = "reason", attempts: int = 0) -> set[int]:
        count = len(asked)
        waits = [5.0 if status in ("WAITING_RETRY", "PENDING") else None for _, _, status in asked]
        moved = self.rows(
            MOVES["settle"],
            {
                "ids": [one[0] for one in asked], "epochs": [one[1] for one in asked],
                "statuses": [one[2] for one in asked], "results": [None] * count, "codes": ["code"] * count,
                "errors": ["error"] * count, "reasons": [reason] * count, "delays": waits,
                "attempts": [attempts] * count,
            },
        )  # fmt: skip
        return {row["id"] for row in moved}

    @invariant()
    def holds(self) -> None:
        assert self.rows(TWO_HOLDERS) == []
        assert self.rows(BROKEN_LANES) == []
        jobs = self.rows("SELECT id, status, losses FROM rowcall.agent_jobs")
        assert all(row["losses"] < 5 or row["status"] in ("FAILED", "PARKED") for row in jobs)
        now = {row["id"]: row["status"] for row in jobs}
        for job_id, status in self.ended.items():
            assert now[job_id] == status, "an end was undone"
        self.ended |= {job_id: status for job_id, status in now.items() if status in ("SUCCEEDED", "REJECTED")}

    def teardown(self) -> None:
        """All owners are gone, people decide what waits for them, and a worker of each version goes on till the end."""
        self.inserter.commit()
        unended = f"SELECT id, status, reason FROM rowcall.agent_jobs WHERE status IN {LIVE}"
        for _ in range(200):
            waiting = self.rows(unended)
            if not waiting:
                break
            self.clock.advance(60)
            self.reclaim(100)
            decided = {"WAITING_REVIEW": "REJECTED", "WAITING_EVENT": "PENDING", "PARKED": "PENDING"}
            # What is parked for its version needs no person: a worker has it.
            asked = [job for job in waiting if job["status"] in decided and job["reason"] != "version"]
            self.move([(job["id"], None, decided[job["status"]]) for job in asked])
            self.promote(100)
            for version in (1, 2):
                self.claim(100, version, 1, ["a", "b"])
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


def test_no_history_breaks_an_epoch_an_order_or_an_end_and_none_forgets_a_run(database: str) -> None:
    with connections(database) as (session, inserter):
        session.execute(AGENTS)
        Machine.session, Machine.inserter, Machine.clock = session, inserter, Clock(database)
        Machine.happened = Counter()
        run_state_machine_as_test(
            Machine,
            settings=settings(
                # Without shrinking, which takes minutes on a real database; a history of 30 acts can be read as it is.
                max_examples=30, stateful_step_count=30, deadline=None, print_blob=True,
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip


def test_a_history_with_everything_in_it_keeps_the_same_rules(database: str) -> None:
    """What chance seldom brings together: parked for a version, claimed out of it, suspects, the loss limit."""
    with connections(database) as (session, inserter):
        session.execute(AGENTS)
        Machine.session, Machine.inserter, Machine.clock = session, inserter, Clock(database)
        Machine.happened = Counter()
        machine = Machine()
        for agent, key in (("a", 1), ("a", 1), ("a", 2), ("b", 1), ("b", 1)):
            machine.insert(agent, key, 0, 4, False)
        machine.deploy(1, 2, True)
        machine.claim(100, 2, 1, ["a", "b"])
        machine.claim(100, 1, 1, ["a", "b"])
        machine.workers_die_one_after_the_other(2, 2)
        machine.workers_die_one_after_the_other(1, 12)
        machine.holds()
        machine.teardown()
    happened = {what for what, count in Machine.happened.items() if count}
    assert happened == {
        "parked for its version", "claimed out of parked", "suspect claimed", "loss limit", "failure that holds its key"
    }  # fmt: skip
