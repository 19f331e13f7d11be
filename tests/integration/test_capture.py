"""What connectors are checked for in a real Postgres before they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer import db
from consumer.connect import ConnectorFile
from consumer.errors import OperatorError
from consumer.operate.capture import bring_publications, check_tables


@pytest.fixture
def session(database: str) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute("CREATE TABLE public.tickets (id bigint PRIMARY KEY)")
        opened.execute("CREATE TABLE public.parts (id bigint) PARTITION BY RANGE (id)")
        opened.execute("CREATE VIEW public.glance AS SELECT 1 AS id")
        yield opened


def capturing(tables: str, name: str = "rows") -> ConnectorFile:
    return ConnectorFile(name, Path(f"{name}.json"), {"table.include.list": tables})


@pytest.mark.parametrize(
    "tables",
    ["public.tickets", "PUBLIC.Tickets, public.parts", "public\\.tickets", "public.(no|such)", "", "rowcall.outbox"],
)
def test_tables_that_exist_and_expressions_pass(session: db.SyncSession, tables: str) -> None:
    check_tables(session, [capturing(tables)])


def test_a_missing_table_is_named_with_connector_and_database(session: db.SyncSession) -> None:
    with pytest.raises(OperatorError) as error:
        check_tables(session, [capturing("public.tickets,public.invoices")])
    database = session.execute("SELECT current_database() AS name").fetchone()
    assert database is not None
    assert str(error.value) == (
        f"rows: table public.invoices does not exist in database {database['name']}; create it or take it out of "
        "table.include.list"
    )


def test_each_missing_table_is_told_who_creates_it(session: db.SyncSession) -> None:
    files = [
        capturing("public.orders,public.customers"),
        capturing("rowcall.nothing", "out"),
        capturing("public.glance", "v"),
    ]
    with pytest.raises(OperatorError) as error:
        check_tables(session, files)
    first, second, third = str(error.value).splitlines()
    assert "tables public.orders, public.customers do not exist" in first and "rowcall example-tables" in first
    assert "rowcall migrate" in second
    assert "public.glance" in third


def test_a_publication_gets_the_tables_of_its_file(session: db.SyncSession) -> None:
    session.execute('CREATE TABLE public."Odd" (id bigint PRIMARY KEY)')
    session.execute('CREATE PUBLICATION "some rows" FOR TABLE public.tickets')
    config = {"publication.name": "some rows", "publication.autocreate.mode": "filtered"}
    for tables in ("public.tickets,public.Odd", "public.tickets,public.Odd", "public.odd", "public.(no|such)"):
        bring_publications(session, [ConnectorFile("rows", Path("rows.json"), config | {"table.include.list": tables})])
        found = session.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'some rows'").fetchall()
        expected = {"Odd", "tickets"} if "tickets" in tables else {"Odd"}
        assert {row["tablename"] for row in found} == expected
