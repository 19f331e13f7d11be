"""Several sessions at once on the same lanes: no deadlock, no run overtaken in its key, no promotion forgotten."""

from __future__ import annotations

import threading

import psycopg
from psycopg.rows import DictRow, dict_row

from tests.fixtures.postgres import create, drop
from tests.integration.acting import claiming
from tests.integration.test_state_machine import BROKEN_LANES, CLAIM, LIVE, MOVES, STEPS, connections


class Hand:
    """One thread's work on the shared runs, with its version of the agent; `conflicts` are deadlocks."""

    def __init__(self, url: str, mending: threading.Event, till: threading.Event, version: int = 1) -> None:
        self.url = url
        self.version = version
        self.mending = mending
        self.till = till
        self.faults: list[BaseException] = []
        self.conflicts = 0
        self.claimed: list[tuple[int, int]] = []

    def work(self) -> None:
        """Promote, claim, settle, cancel and retry, until told to stop."""
        try:
            with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as session:
                while not self.till.is_set():
                    try:
                        self.turn(session)
                    except psycopg.errors.DeadlockDetected:
                        self.conflicts += 1
        except psycopg.Error as error:
            self.faults.append(error)

    def turn(self, session: psycopg.Connection[DictRow]) -> None:
        session.execute(CLAIM["promote"], (37,))
        taken = session.execute(CLAIM["claim"], claiming(6, lease=60.0, versions=[self.version])).fetchall()
        self.claimed += [(row["id"], row["lease_epoch"]) for row in taken]
        if taken:
            self.keep(session, [row for row in taken if row["id"] % 3 == 0 and row["agent_version"] is None])
            self.move(session, [(row["id"], row["lease_epoch"]) for row in taken], [self.end(row) for row in taken])
        if not self.mending.is_set():
            some = session.execute(
                "SELECT id, status FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED' ORDER BY random() LIMIT 8"
            ).fetchall()
            # Not in order of ID: the function itself must lock in one order.
            to = ["PENDING" if row["status"] == "CANCELLED" else "CANCELLED" for row in some]
            self.move(session, [(row["id"], None) for row in some], to)

    def end(self, row: DictRow) -> str:
        """Another version's runs are parked for it, own ones come back once after their step, and then end."""
        if row["agent_version"] not in (None, self.version):
            return "PARKED"
        comes_back = row["id"] % 5 == 0 or (row["id"] % 3 == 0 and row["agent_version"] is None)
        return "WAITING_RETRY" if comes_back else "SUCCEEDED"

    def keep(self, session: psycopg.Connection[DictRow], rows: list[DictRow]) -> None:
        """A step for each of these runs, which pins them to this version."""
        count = len(rows)
        session.execute(
            STEPS["checkpoint"],
            {
                "ids": [row["id"] for row in rows], "epochs": [row["lease_epoch"] for row in rows],
                "names": ["s"] * count, "kinds": ["AGENT_STEP"] * count, "numbers": [1] * count,
                "outputs": ["1"] * count, "versions": [self.version] * count, "started": [None] * count, "lease": 60.0,
            },
        )  # fmt: skip

    def move(self, session: psycopg.Connection[DictRow], held: list[tuple[int, int | None]], to: list[str]) -> None:
        count = len(held)
        session.execute(
            MOVES["settle"],
            {
                "ids": [one[0] for one in held], "epochs": [one[1] for one in held], "statuses": to,
                "results": [None] * count, "codes": ["c"] * count, "errors": ["e"] * count,
                "reasons": ["version" if status == "PARKED" else None for status in to],
                "delays": [0.0] * count, "attempts": [0] * count,
            },
        )  # fmt: skip


def test_four_hands_on_twenty_keys_meet_no_deadlock_and_keep_the_order(server: str) -> None:
    url = create(server)
    try:
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as session:
            session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
            # Who overtakes an earlier one of its key leaves a trace.
            session.execute("CREATE TABLE public.overtaken (id bigint, earlier bigint)")
            session.execute(
                "CREATE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "INSERT INTO public.overtaken SELECT NEW.id, e.id FROM rowcall.agent_jobs e WHERE e.job_type = "
                "NEW.job_type AND e.key_hash = NEW.key_hash AND (e.lane_seq, e.id) < (NEW.lane_seq, NEW.id) "
                f"AND e.status IN {LIVE}; RETURN NULL; END $$"
            )
            session.execute(
                "CREATE TRIGGER watch AFTER UPDATE ON rowcall.agent_jobs FOR EACH ROW "
                "WHEN (NEW.status = 'RUNNING' AND OLD.status <> 'RUNNING') EXECUTE FUNCTION public.watch()"
            )
            mending, till = threading.Event(), threading.Event()
            hands = [Hand(url, mending, till, version) for version in (1, 2, 1, 2)]
            threads = [threading.Thread(target=hand.work) for hand in hands]
            for thread in threads:
                thread.start()
            for number in range(500):
                session.execute(
                    "INSERT INTO rowcall.agent_jobs (job_type, key_hash, max_attempts) VALUES ('a', %s, 100000)",
                    (number % 20,),
                )
            till.wait(2)
            mending.set()  # no cancels any more: what is left must end
            left = f"SELECT count(*) AS n FROM rowcall.agent_jobs WHERE status IN {LIVE} AND id % 5 <> 0"
            for _ in range(400):
                row = session.execute(left).fetchone()
                if row is None or row["n"] == 0 or any(hand.faults for hand in hands):
                    break
                till.wait(0.05)
            till.set()
            for thread in threads:
                thread.join(20)
            assert [fault for hand in hands for fault in hand.faults] == []
            assert sum(hand.conflicts for hand in hands) == 0
            assert session.execute(left).fetchone() == {"n": 0}
            assert session.execute("SELECT * FROM public.overtaken").fetchall() == []
            assert session.execute(BROKEN_LANES).fetchall() == []
            claimed = [held for hand in hands for held in hand.claimed]
            assert len(claimed) == len(set(claimed)) > 300
            strangers = session.execute(
                "SELECT j.id FROM rowcall.agent_jobs j JOIN rowcall.job_steps s ON s.job_id = j.id "
                "WHERE s.agent_version <> j.agent_version"
            ).fetchall()
            assert strangers == [], "a run has steps of two versions"
    finally:
        drop(url)


def test_a_promotion_while_a_settle_looks_for_the_next_head_is_not_forgotten(server: str) -> None:
    url = create(server)
    told, go = threading.Event(), threading.Event()
    add = "INSERT INTO rowcall.agent_jobs (job_type, key_hash) VALUES ('a', 7) RETURNING id"
    taking = claiming(9, lease=60.0)

    def promote() -> None:
        with psycopg.connect(url, row_factory=dict_row) as promoter:
            promoter.execute(CLAIM["promote"], (100,))
            told.set()
            go.wait(10)

    try:
        with connections(url) as (session, settler):
            session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
            session.execute(add)
            session.execute(CLAIM["promote"], (100,))
            (first,) = session.execute(CLAIM["claim"], taking).fetchall()
            second = session.execute(add).fetchone()
            # What settle() does first; whoever does not wait for it here, promotes into a lane that is about to go.
            settler.execute("SELECT FROM rowcall.lanes FOR UPDATE")
            thread = threading.Thread(target=promote)
            thread.start()
            told.wait(0.5)
            held: list[tuple[int, int | None]] = [(first["id"], first["lease_epoch"])]
            Hand(url, go, go).move(settler, held, ["SUCCEEDED"])
            settler.commit()
            go.set()
            thread.join(10)
            assert second is not None
            assert [row["id"] for row in session.execute(CLAIM["claim"], taking).fetchall()] == [second["id"]]
    finally:
        go.set()
        drop(url)
