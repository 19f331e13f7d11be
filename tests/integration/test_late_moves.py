"""What the database moves by itself is what it saw: a run that somebody moves meanwhile is left alone."""

from __future__ import annotations

import threading
import time

from tests.integration.limiting import Fleet


def test_a_run_that_is_cancelled_while_its_budget_lets_go_stays_cancelled(database: str) -> None:
    """Its cancellation is not committed yet when the keeping looks."""
    fleet, person = Fleet(database), Fleet(database, autocommit=False)
    fleet.agent("a")
    fleet.add()
    fleet.promote()
    (run,) = fleet.claim()
    fleet.move([run], "PARKED", reason="budget")
    person.rows(
        "SELECT rowcall.settle(ARRAY[%s]::bigint[], ARRAY[NULL]::bigint[], ARRAY['CANCELLED'], ARRAY[NULL::text],"
        " ARRAY['cancelled'], ARRAY['by me'], ARRAY[NULL::text], ARRAY[NULL]::double precision[], ARRAY[0])",
        run["id"],
    )
    keeper = threading.Thread(target=fleet.keep)
    keeper.start()
    time.sleep(0.3)
    person.session.commit()
    keeper.join()
    assert person.one("SELECT status FROM rowcall.agent_jobs") == "CANCELLED"
    person.session.commit()
    person.close()
    fleet.close()
