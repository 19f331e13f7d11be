"""The connector keeper, as far as it needs no Connect: who leads, how long it waits, and what it does without one."""

from __future__ import annotations

import logging

import pytest

from consumer import db, settings
from consumer.app.keeper import LOOK_SECONDS, Keeper, Trouble
from consumer.connect import ConnectClient
from consumer.errors import Outage
from debezium import ports
from tests.fixtures.process import eventually


def keeper(url: str) -> Keeper:
    there = f"http://127.0.0.1:{ports.choose()}"
    return Keeper(settings.load({"DATABASE_URL": url, "CONNECT_URL": there}), ConnectClient(there))


def test_one_keeper_leads_until_it_closes(database: str) -> None:
    first, second = keeper(database), keeper(database)
    assert first._leads() and first._leads()
    assert not second._leads()
    first.close()
    assert eventually("the second leads", second._leads)
    second.close()


def test_a_keeper_whose_session_was_ended_leads_no_more(database: str) -> None:
    first, second = keeper(database), keeper(database)
    assert first._leads()
    with db.connect(database, name="test") as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'rowcall keeper'"
        )
    assert eventually("the second leads", second._leads)
    with pytest.raises(Outage):
        first._leads()
    assert not first._leads(), "its lead ended with its session, and it asks anew"
    first.close()
    second.close()


def test_a_connect_that_is_away_is_said_once_and_waited_for(database: str, caplog: pytest.LogCaptureFixture) -> None:
    alone = keeper(database)
    for _ in range(3):
        assert 0 < alone.round() <= LOOK_SECONDS
    said = [record for record in caplog.records if record.__dict__.get("action") == "keeper_waits"]
    assert [record.levelno for record in said] == [logging.WARNING]


def test_pauses_double_up_to_five_minutes_and_a_minute_of_calm_ends_the_trouble() -> None:
    trouble, now, pauses = Trouble(due=100.0), 100.0, []
    for _ in range(8):
        trouble.restarted(now)
        pauses.append(trouble.due - now)
        now = trouble.due
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert not trouble.is_over(now) and not trouble.is_over(now + 59)
    assert trouble.is_over(now + 60)
