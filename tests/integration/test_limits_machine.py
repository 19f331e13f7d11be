"""Limits under random histories on real Postgres: claims open and committed, crashes, expiries, calls, budgets raised.

After each act no limit is exceeded and what is reserved is what calls under way have reserved; when all owners are
dead, every slot and every reservation comes back and every run ends.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from psycopg.rows import DictRow

from tests.agents.shared import database
from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet

__all__ = ["database"]

SLOTS, RUN_CAP = 3, 500
CLEAR = """
TRUNCATE rowcall.agent_jobs, rowcall.lanes, rowcall.limits, rowcall.buckets, rowcall.budgets, rowcall.budget_usage,
    rowcall.spend, rowcall.holds, rowcall.storm_counts
"""


class Machine(RuleBasedStateMachine):
    """One history. `open` is a worker whose claim is not committed yet."""

    fleet: ClassVar[Fleet]
    open: ClassVar[Fleet]
    clock: ClassVar[Clock]

    def __init__(self) -> None:
        super().__init__()
        self.open.session.rollback()
        self.fleet.rows(CLEAR)
        self.fleet.agent("a", concurrency=SLOTS, run_tokens=RUN_CAP)
        self.runs: list[DictRow] = []
        self.uncommitted: list[DictRow] = []
        self.calls: list[DictRow] = []
        # Most that any budget has allowed, and what calls used above what was reserved for them.
        self.allowed = 1000
        self.over = 0
        self.fleet.budget(1000, agent="a")

    @rule(count=st.integers(1, 4), tenant=st.sampled_from(["t", "u"]), priority=st.sampled_from([0, 0, 5]))
    def insert(self, count: int, tenant: str, priority: int) -> None:
        self.fleet.add(count, tenant=tenant, priority=priority, max_attempts=50)
        self.fleet.promote()

    @rule(limit=st.sampled_from([1, 2, 100]))
    def claim(self, limit: int) -> None:
        self.took(self.fleet.claim(limit))

    @precondition(lambda self: not self.uncommitted)
    @rule(limit=st.sampled_from([1, 2, 100]))
    def claim_without_commit(self, limit: int) -> None:
        self.uncommitted = self.open.claim(limit)

    @rule(rolled_back=st.booleans())
    def end_open_claim(self, rolled_back: bool) -> None:
        if rolled_back:
            self.open.session.rollback()
        else:
            self.open.session.commit()
            self.took(self.uncommitted)
        self.uncommitted = []

    def took(self, runs: list[DictRow]) -> None:
        self.runs += runs

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), status=st.sampled_from(["SUCCEEDED", "PENDING", "WAITING_RETRY", "PARKED"]))
    def settle(self, data: st.DataObject, status: str) -> None:
        run = data.draw(st.sampled_from(self.runs))
        self.fleet.move([run], status, reason="budget")

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), tokens=st.sampled_from([50, 200, 400]))
    def call(self, data: st.DataObject, tokens: int) -> None:
        runs = data.draw(st.lists(st.sampled_from(self.runs), min_size=1, max_size=3))
        for row in self.fleet.admit(runs, tokens=tokens):
            if row["verdict"] == "go":
                assert row["reservation"] is not None
                self.calls.append({**row, "tokens": tokens})

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.5, 1.0, 1.2, None]))
    def answer(self, data: st.DataObject, share: float | None) -> None:
        """A call ends, whether its run is still under way or not; None is a use that nobody knows."""
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        used = None if share is None else int(call["tokens"] * share)
        freed = self.fleet.one("SELECT state FROM rowcall.spend WHERE id = %s", call["reservation"]) == "FREED"
        # A call that nothing stood for any more when it was answered counts wholly above the reservations.
        self.over += call["tokens"] * 2 if freed else max(0, (used or 0) - call["tokens"])
        self.fleet.settle_calls([call["reservation"]], used)

    @rule(tokens=st.sampled_from([500, 1500, 3000]))
    def person_changes_the_budget(self, tokens: int) -> None:
        self.fleet.budget(tokens, agent="a")
        self.allowed = max(self.allowed, tokens)

    @rule()
    def keep(self) -> None:
        self.fleet.keep()

    @rule(seconds=st.sampled_from([1, 31]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def reclaim(self) -> None:
        self.fleet.reclaim()

    @invariant()
    def holds(self) -> None:
        running = self.fleet.rows("SELECT slot FROM rowcall.agent_jobs WHERE status = 'RUNNING'")
        slots = [row["slot"] for row in running]
        assert len(slots) == len(set(slots)) <= SLOTS and all(1 <= slot <= SLOTS for slot in slots)
        assert len(slots) + len(self.uncommitted) <= SLOTS
        (usage,) = self.fleet.rows("SELECT coalesce(sum(tokens), 0) AS used, coalesce(sum(tokens_reserved), 0) AS held "
                                   "FROM rowcall.budget_usage")  # fmt: skip
        reserved = self.fleet.one("SELECT coalesce(sum(tokens), 0) FROM rowcall.spend WHERE state = 'RESERVED'")
        settled = self.fleet.one("SELECT coalesce(sum(tokens), 0) FROM rowcall.spend WHERE state = 'SETTLED'")
        assert (usage["used"], usage["held"]) == (settled, reserved)
        assert usage["used"] + usage["held"] <= self.allowed + self.over

    def teardown(self) -> None:
        """All workers are dead: slots and reservations come back, and one worker ends every run."""
        self.open.session.rollback()
        self.uncommitted = []
        self.fleet.budget(10**9, agent="a")
        self.allowed = 10**9
        self.clock.advance(100)
        self.fleet.reclaim()
        self.fleet.keep()
        assert self.fleet.one("SELECT coalesce(sum(tokens_reserved), 0) FROM rowcall.budget_usage") == 0
        left = "SELECT id FROM rowcall.agent_jobs WHERE status NOT IN ('SUCCEEDED', 'FAILED')"
        for _ in range(100):
            waiting = self.fleet.rows(left)
            if not waiting:
                break
            # A run that killed its worker more than once is given back with a delay.
            self.clock.advance(600)
            self.fleet.promote()
            runs = self.fleet.claim(100)
            assert len(runs) == min(SLOTS, len(waiting)), "a slot has leaked, or a run is forgotten"
            self.fleet.move(runs)
            self.fleet.keep()
        assert self.fleet.rows(left) == []
        assert self.fleet.rows("SELECT agent FROM rowcall.lanes") == []


def test_no_history_exceeds_a_limit_or_leaks_a_slot_or_a_reservation(database: str) -> None:
    fleet, open_ = Fleet(database), Fleet(database, autocommit=False)
    Machine.fleet, Machine.open, Machine.clock = fleet, open_, Clock(database)
    options: dict[str, Any] = {"max_examples": 40, "stateful_step_count": 40, "deadline": None, "print_blob": True}
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), **options
            ),
        )
    finally:
        fleet.close()
        open_.close()
