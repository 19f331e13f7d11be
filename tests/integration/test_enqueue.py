"""Queueing by hand, on a real Postgres."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from consumer import db
from consumer.enqueue import Queued, enqueue, parse_payload
from consumer.errors import OperatorError
from consumer.records import decode


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1)")
        opened.execute("INSERT INTO rowcall.agents (name, version, state) VALUES ('old', 1, 'RETIRED')")
        yield opened


def stored(session: db.SyncSession, job_id: int) -> dict[str, Any]:
    row = session.execute(
        "SELECT *, payload::text AS payload_text FROM rowcall.agent_jobs WHERE id = %s", (job_id,)
    ).fetchone()
    assert row is not None
    return row


def test_a_queued_run_is_born_as_asked(session: db.SyncSession) -> None:
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    queued = enqueue(session, "a", {"id": 1}, dedupe_key="k", key="row 1", run_after=later, max_attempts=2, tenant="t")
    row = stored(session, queued.job_id)
    assert queued == Queued(row["id"], False, "PENDING", later)
    assert (row["job_type"], row["payload"], row["dedupe_key"], row["key_text"]) == ("a", {"id": 1}, "k", "row 1")
    assert (row["run_after"], row["max_attempts"], row["tenant"], row["status"]) == (later, 2, "t", "PENDING")


def test_the_same_key_is_the_same_lane(session: db.SyncSession) -> None:
    jobs = [stored(session, enqueue(session, "a", {}, key=key).job_id) for key in ("x", "x", "y", None, None)]
    lanes = [job["key_hash"] for job in jobs]
    assert lanes[0] == lanes[1]
    assert len(set(lanes)) == 4


def test_a_taken_dedupe_key_is_taken_in_by_the_run_that_holds_it(session: db.SyncSession) -> None:
    first = enqueue(session, "a", 1, dedupe_key="k")
    second = enqueue(session, "a", 2, dedupe_key="k")
    third = enqueue(session, "a", 3, dedupe_key="k", tenant="other")
    assert (first.coalesced, second.coalesced, third.coalesced) == (False, True, False)
    assert second.job_id == first.job_id != third.job_id
    rows = session.execute("SELECT job_id, payload FROM rowcall.coalesced_events").fetchall()
    assert rows == [{"job_id": first.job_id, "payload": 2}]


def test_many_at_once_with_one_dedupe_key_make_one_run(session: db.SyncSession, database: str) -> None:
    found: list[Queued] = []

    def queue(number: int) -> None:
        with db.connect(database, name=f"queue {number}") as own:
            found.append(enqueue(own, "a", number, dedupe_key="k"))

    threads = [threading.Thread(target=queue, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({queued.job_id for queued in found}) == 1
    assert sorted(queued.coalesced for queued in found) == [False] + [True] * 7
    assert session.execute("SELECT count(*) AS n FROM rowcall.coalesced_events").fetchone() == {"n": 7}


def test_an_unknown_agent_is_named_with_the_known_ones(session: db.SyncSession) -> None:
    with pytest.raises(OperatorError, match="no agent 'b' is known; known are: a, in-code") as raised:
        enqueue(session, "b", {}, known=["in-code"])
    assert raised.value.code == "unknown_agent"
    with pytest.raises(OperatorError, match="'old' is retired"):
        enqueue(session, "old", {}, known=["old"])
    with pytest.raises(OperatorError, match="'old' is retired"):
        enqueue(session, "old", {}, force=True)
    assert session.execute("SELECT FROM rowcall.agent_jobs").fetchall() == []
    assert enqueue(session, "in-code", {}, known=["in-code"]).status == "PENDING"
    assert enqueue(session, "b", {}, force=True).status == "PENDING"


def test_what_the_database_refuses_is_one_clear_error(session: db.SyncSession) -> None:
    with pytest.raises(OperatorError, match="max_attempts"):
        enqueue(session, "a", {}, max_attempts=0)
    with pytest.raises(OperatorError):
        enqueue(session, "a", {}, key="nul \x00")
    assert session.execute("SELECT count(*) AS n FROM rowcall.agent_jobs").fetchone() == {"n": 0}


@pytest.mark.parametrize(
    "value",
    [None, 0, [1, "x"], {"a": {"b": [None]}}, 2**80, "nul \x00 and \ud800", {"$rc1": "int", "v": "5"}, 1e308],
)
def test_a_payload_comes_back_as_it_was_given(session: db.SyncSession, value: Any) -> None:
    queued = enqueue(session, "a", value)
    assert decode(stored(session, queued.job_id)["payload_text"]) == value


def test_a_payload_is_read_as_json_or_refused_with_the_place() -> None:
    assert parse_payload('{"id": 123456789012345678901234567890}') == {"id": 123456789012345678901234567890}
    for text, place in (
        ("{id: 1}", "line 1, column 2"),
        ("", "column 1"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "deep"),
        ("9" * 5000, "digits"),
    ):
        with pytest.raises(OperatorError, match=place):
            parse_payload(text)
