"""Heartbeats on a real Postgres: one row a role and process, the loop's own progress, and an end that is told."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from consumer.heartbeats import Heartbeats
from consumer.telemetry import Health
from tests.fixtures.process import eventually


def rows(database: str) -> list[dict[str, Any]]:
    with psycopg.connect(database, row_factory=dict_row) as session:
        return session.execute("SELECT * FROM rowcall.heartbeats ORDER BY subject").fetchall()


def test_process_beats_for_each_role_and_says_that_it_stops(database: str) -> None:
    beats = Heartbeats(database, ["executor", "intake"], seconds=0.05, health=Health())
    beats.start()
    first = eventually("both roles", lambda: rows(database) if len(rows(database)) == 2 else [])
    assert [(row["subject"], row["state"], row["instance"]) for row in first] == [
        ("executor", "RUNNING", beats.instance),
        ("intake", "RUNNING", beats.instance),
    ]
    eventually("another beat", lambda: rows(database)[0]["at"] > first[0]["at"])
    beats.stop()
    assert {(row["state"], row["expected_next"]) for row in rows(database)} == {("STOPPED", None)}


def test_progress_is_that_of_the_loop_and_not_of_the_beats(database: str) -> None:
    health = Health()
    pulse = health.loop("scheduler")
    pulse.beat()
    beats = Heartbeats(database, ["scheduler"], seconds=0.05, health=health)
    beats.start()
    try:
        (first,) = eventually("a beat", lambda: rows(database))
        eventually("a later beat", lambda: rows(database)[0]["at"] > first["at"])
        (hung,) = rows(database)
        assert (hung["progress"], hung["progress_at"]) == (1, first["progress_at"])
        pulse.beat()
        eventually("progress", lambda: rows(database)[0]["progress"] == 2)
        assert rows(database)[0]["progress_at"] > first["progress_at"]
    finally:
        beats.stop()


def test_beat_that_cannot_be_written_ends_nothing_and_is_tried_again(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("ALTER TABLE rowcall.heartbeats RENAME TO away")
        beats = Heartbeats(database, ["executor"], seconds=0.05, health=Health())
        beats.start()
        try:
            failed = "SELECT 1 FROM pg_stat_database WHERE datname = current_database() AND xact_rollback > 2"
            eventually("beats that fail", lambda: session.execute(failed.encode()).fetchall())
            session.execute("ALTER TABLE rowcall.away RENAME TO heartbeats")
            eventually("a beat", lambda: rows(database))
        finally:
            beats.stop()
