"""Commands by which operators move schedules, budgets and storms, as a person types them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from consumer import db
from consumer.agents.schedule import Schedule
from consumer.cli import main
from producers.schedules.definitions import synchronise
from tests.fixtures.logs import logging_as_it_was
from tests.fixtures.postgres import Clock
from tests.integration.limiting import Fleet

__all__ = ["logging_as_it_was"]

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rowcall(database: str, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=answer, env={"DATABASE_URL": database, "USER": "ada"})


@pytest.fixture
def fleet(database: str, clock: Clock) -> Iterator[Fleet]:
    found = Fleet(database)
    found.agent("a", storm=60)
    yield found
    found.close()


def test_a_backfill_fires_what_has_started_nothing_once_and_only_when_told(database: str, fleet: Fleet) -> None:
    fleet.rows("UPDATE public.test_clock SET at = %s", START + dt.timedelta(hours=5))
    with db.connect(database, name="test") as session:
        synchronise(session, {"code": [Schedule(name="hourly", cron="0 * * * *", agent="a")]})
    asked = ("schedule", "backfill", "hourly", "--from", "2026-01-01T01:00Z", "--to", "2026-01-01T04:00Z")
    refused = rowcall(database, *asked, answer="n\n")
    assert refused.exit_code != 0 and "fire 3 slots of hourly (0 are left alone)?" in refused.output
    assert fleet.one("SELECT count(*) FROM rowcall.agent_jobs") == 0
    done = rowcall(database, *asked, "--yes", "--reason", "a restored disk")
    assert (done.exit_code, done.output) == (0, "3 queued\n")
    queued = [row["occurred_at"].astimezone(dt.UTC).hour for row in fleet.rows("SELECT * FROM rowcall.agent_jobs")]
    assert sorted(queued) == [1, 2, 3]
    assert "3 slots of this range have started something" in rowcall(database, *asked, "--yes").output
    assert fleet.one("SELECT actor || ': ' || (detail ->> 'reason') FROM rowcall.audit") == "ada: a restored disk"


def test_a_budget_is_removed_once(database: str, fleet: Fleet) -> None:
    budget = str(fleet.budget(100, agent="a"))
    done = rowcall(database, "budgets", "remove", budget, "--reason", "the trial is over")
    assert (done.exit_code, done.output) == (0, f"budget {budget} removed\n")
    assert fleet.rows("SELECT 1 FROM rowcall.budgets") == []
    again = rowcall(database, "budgets", "remove", budget)
    assert again.exit_code == 1 and "`rowcall budgets list`" in again.stderr


def test_storms_that_are_held_are_listed(database: str, fleet: Fleet) -> None:
    assert rowcall(database, "limits", "storms").output == "no storm is held\n"
    fleet.add(200, source_topic="cdc.public.orders")
    fleet.promote()
    assert fleet.claim() == []
    (row,) = json.loads(rowcall(database, "limits", "storms", "--json").output)
    assert (row["agent"], row["topic"], row["lanes_held"]) == ("a", "cdc.public.orders", 200)
    assert "the limit is 60" in " ".join(rowcall(database, "limits", "storms").output.split())
