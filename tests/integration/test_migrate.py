"""Migrations on real Postgres: twice, from two processes at once, and against newer or altered databases."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

import consumer
from consumer import db, migrate
from consumer.errors import ConfigurationError, RowcallError


def test_migrating_twice_applies_nothing_the_second_time(empty_database: str) -> None:
    session = db.connect(empty_database, name="test")
    assert [item.version for item in migrate.migrate(session)] == [item.version for item in migrate.migrations()]
    assert migrate.migrate(session) == []
    migrate.check(session)
    session.close()


def test_two_processes_migrating_at_once_apply_each_migration_once(empty_database: str) -> None:
    applied: list[int] = []
    failures: list[RowcallError] = []

    def work() -> None:
        session = db.connect(empty_database, name="test")
        try:
            applied.extend(item.version for item in migrate.migrate(session))
        except RowcallError as error:
            failures.append(error)
        finally:
            session.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(applied) == [item.version for item in migrate.migrations()]


def test_a_newer_database_is_refused_and_unchanged(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("INSERT INTO rowcall.schema_migrations VALUES (9999, 'later', 'x')")
    session = db.connect(database, name="test")
    with pytest.raises(ConfigurationError, match="too old for this database"):
        migrate.migrate(session)
    with pytest.raises(ConfigurationError, match="too old for this database"):
        migrate.check(session)
    session.close()


def test_an_altered_history_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("UPDATE rowcall.schema_migrations SET sha256 = 'x' WHERE version = 1")
    session = db.connect(database, name="test")
    with pytest.raises(ConfigurationError, match="another form"):
        migrate.check(session)
    session.close()


def test_an_empty_database_says_what_to_run(empty_database: str) -> None:
    session = db.connect(empty_database, name="test")
    with pytest.raises(ConfigurationError, match="rowcall migrate"):
        migrate.check(session)
    session.close()


def test_functions_of_another_build_are_refused_and_made_anew_by_migrate(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("UPDATE rowcall.schema_functions SET sha256 = 'x' WHERE name = 'promote'")
        other.execute("DROP FUNCTION rowcall.promote")
        other.execute("CREATE FUNCTION rowcall.promote(p_limit integer) RETURNS text LANGUAGE sql RETURN 'old form'")
    session = db.connect(database, name="test")
    with pytest.raises(ConfigurationError, match=r"promote.*rowcall migrate"):
        migrate.check(session)
    assert migrate.migrate(session) == []
    migrate.check(session)
    row = session.execute("SELECT rowcall.promote(10) AS placed").fetchone()
    assert row == {"placed": 0}
    session.close()


def test_a_function_the_code_has_no_more_goes_with_the_next_migration(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("INSERT INTO rowcall.schema_functions VALUES ('gone', 'x')")
        other.execute("CREATE FUNCTION rowcall.gone() RETURNS integer LANGUAGE sql RETURN 1")
    session = db.connect(database, name="test")
    migrate.migrate(session)
    row = session.execute("SELECT to_regproc('rowcall.gone') IS NULL AS gone").fetchone()
    assert row == {"gone": True}
    session.close()


def test_a_schema_of_release_0_1_0_is_brought_up(empty_database: str) -> None:
    first = migrate.migrations()[0]
    with psycopg.connect(empty_database, autocommit=True) as other:
        other.execute("CREATE SCHEMA rowcall")
        other.execute(
            "CREATE TABLE rowcall.schema_migrations (version integer PRIMARY KEY, name text NOT NULL,"
            " sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT statement_timestamp())"
        )
        other.execute(first.sql)
        other.execute(
            "INSERT INTO rowcall.schema_migrations VALUES (1, 'records', %s), (2, 'moves', 'gone')", (first.digest,)
        )
    session = db.connect(empty_database, name="test")
    assert migrate.migrate(session)[0].version == 3
    migrate.check(session)
    session.close()


def test_no_table_is_partitioned_by_a_column_that_changes(database: str) -> None:
    """A row that moves between partitions fails whoever updates it; the day of an event is fixed by its ID."""
    with psycopg.connect(database) as session:
        found = session.execute(
            "SELECT p.partrelid::regclass::text, a.attname::text FROM pg_partitioned_table p "
            "JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::smallint[])"
        ).fetchall()
    assert found == [("rowcall.processed_events", "day")]
    folder = Path(consumer.__file__).parent / "sql"
    written = "".join(path.read_text("utf-8") for path in folder.rglob("*.sql"))
    assert "INSERT INTO rowcall.processed_events" in written
    assert "UPDATE rowcall.processed_events" not in written
