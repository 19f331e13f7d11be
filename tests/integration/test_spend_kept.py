"""What model calls have spent is kept for as long as a limit may add it up, and no longer."""

from __future__ import annotations

from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet

SPEND = """
INSERT INTO rowcall.spend (job_id, lease_epoch, agent, tenant, state, tokens, money, budget_ids, starts)
VALUES (%s, 1, 'a', 'default', %s, 1, 1, '{}', '{}')
"""


def test_spend_of_ended_runs_is_pruned_after_its_time_and_nothing_else(database: str, clock: Clock) -> None:
    fleet = Fleet(database)
    try:
        fleet.agent()
        waiting, ended = fleet.add(2)
        fleet.rows(
            "UPDATE rowcall.agent_jobs SET status = 'CANCELLED', finished_at = rowcall.now() WHERE id = %s", ended
        )
        for job, state in ((waiting, "SETTLED"), (ended, "SETTLED"), (ended, "FREED")):
            fleet.rows(SPEND, job, state)
        clock.advance(99 * 86_400)
        fleet.rows("SELECT * FROM rowcall.keep_limits(100)")
        assert fleet.one("SELECT count(*) FROM rowcall.spend") == 3
        clock.advance(2 * 86_400)
        fleet.rows("SELECT * FROM rowcall.keep_limits(100)")
        assert fleet.rows("SELECT job_id FROM rowcall.spend") == [{"job_id": waiting}]
    finally:
        fleet.close()
