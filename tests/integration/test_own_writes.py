"""After a restore the server gives the numbers of lost transactions out again: a change is a run's only in its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer.telemetry import REGISTRY
from tests.integration.admitting import Rig, agent, at, event


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """One agent that wants everything, and a source that reads this very database."""
    opened = Rig(database, [agent("a")], own_sources=("cdc",))
    yield opened
    opened.close()


def finished_run(rig: Rig) -> tuple[int, int]:
    """(32-bit number, end in ms since 1970) of a transaction in which a run of the agent wrote its outcome."""
    with rig.look.transaction():
        row = rig.look.execute(
            "INSERT INTO rowcall.agent_jobs (job_type) VALUES ('a') RETURNING id, pg_current_xact_id()::text AS xid"
        ).fetchone()
        assert row is not None
        rig.look.execute(
            "UPDATE rowcall.agent_jobs SET status = 'RUNNING', owner = gen_random_uuid(), lease_epoch = 1,"
            " locked_until = rowcall.now(), deadline = rowcall.now() WHERE id = %s",
            (row["id"],),
        )
        done = rig.look.execute(
            "UPDATE rowcall.agent_jobs SET status = 'SUCCEEDED', owner = NULL, finished_at = rowcall.now(),"
            " result_txid = %s WHERE id = %s RETURNING (extract(epoch FROM finished_at) * 1000)::bigint AS ms",
            (row["xid"], row["id"]),
        ).fetchone()
    assert done is not None
    return int(row["xid"]) % 2**32, int(done["ms"])


@pytest.mark.parametrize(("later_ms", "jobs"), [(3, 0), (2_000, 0), (-600_000, 1), (2 * 3_600_000, 1)])
def test_a_change_is_a_runs_own_write_only_if_it_was_committed_right_after_the_run_had_ended(
    rig: Rig, later_ms: int, jobs: int
) -> None:
    txid, ended = finished_run(rig)
    rig.take([at(0, event(1, txId=txid, ts_ms=ended + later_ms))])
    found = rig.rows("SELECT parent_job FROM rowcall.agent_jobs WHERE event_id IS NOT NULL")
    assert found == [{"parent_job": None}] * jobs


def test_a_change_whose_transaction_the_database_does_not_have_is_counted_and_its_job_says_so(rig: Rig) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("rowcall_not_attributable_total", {"state": "pending"}) or 0

    before = counted()
    row = rig.look.execute("SELECT pg_current_xact_id()::text AS xid").fetchone()
    assert row is not None
    ahead, here = (int(row["xid"]) + 1_000_000) % 2**32, int(row["xid"]) % 2**32
    rig.take([at(0, event(1, txId=ahead)), at(1, event(2, txId=here))])
    found = rig.rows("SELECT key_text, not_attributable FROM rowcall.agent_jobs ORDER BY id")
    assert [row["not_attributable"] for row in found] == [True, False]
    assert counted() - before == 1
