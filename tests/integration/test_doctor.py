"""What the doctor says about a real Postgres, healthy and in each way not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

import pytest
from pydantic import BaseModel

from consumer import db, settings
from consumer.agents.door import Agent
from consumer.doctor import Finding, connectors, postgres
from consumer.errors import RowcallError

ROLE = "rowcall_test_doctor"
OUTBOX = {
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "slot.name": "s_outbox",
    "publication.name": "p_outbox",
}


class Answer(BaseModel):
    n: int


AGENT = Agent(name="a", version=1, answer=Answer)


def examine(
    url: str, connectors: Mapping[str, Mapping[str, str]] | None = None, agents: Sequence[Agent] = (AGENT,)
) -> list[Finding]:
    return postgres.examine(settings.load({"DATABASE_URL": url}), agents, connectors or {})


def find(findings: Sequence[Finding], words: str) -> Finding:
    (found,) = [finding for finding in findings if words in finding.what]
    return found


def execute(url: str, *statements: str) -> None:
    with db.connect(url, name="test") as session:
        for statement in statements:
            session.execute(statement.encode())


def with_login(url: str, login: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}"))


def test_a_migrated_database_passes_but_for_what_is_not_applied_yet(database: str) -> None:
    findings = examine(database)
    assert [finding.what for finding in findings if finding.level == "fail"] == ["the outbox is not captured"]
    assert find(findings, "Postgres 18").level == "ok"
    assert find(findings, "schema ").level == "ok"


def test_a_database_without_our_tables_is_told_to_migrate(empty_database: str) -> None:
    assert find(examine(empty_database), "schema is not").advice == "rowcall migrate"


@pytest.mark.parametrize(
    ("url", "what", "advice"),
    [
        (lambda url: "postgresql://u@no-such-host.invalid/x", "cannot be resolved", "host in DATABASE_URL"),
        (lambda url: "postgresql://u@127.0.0.1:1/x", "does not answer", "start it"),
        (lambda url: with_login(url, "postgres:wrong"), "refuses us", "DATABASE_URL"),
        (lambda url: f"{url}_gone", "refuses us", "DATABASE_URL"),
    ],
    ids=["dns", "away", "password", "database"],
)
def test_each_way_of_being_out_of_reach_is_told_apart(database: str, url: object, what: str, advice: str) -> None:
    assert callable(url)
    (finding,) = examine(url(database))
    assert finding.level == "fail"
    assert what in finding.what and advice in finding.advice
    assert "wrong" not in finding.why.replace("wrong-", "")


def test_a_slot_that_nobody_reads_and_the_outbox_slot_are_seen(database: str) -> None:
    execute(database, "SELECT pg_create_logical_replication_slot('s_outbox', 'pgoutput')")
    try:
        findings = examine(database, {"outbox": OUTBOX})
        slot = find(findings, "slot s_outbox")
        assert slot.level == "warn" and "nobody reads it" in slot.why
        assert not [finding for finding in findings if "outbox is not captured" in finding.what]
        assert [
            item for item in examine(database, {"outbox": OUTBOX | {"slot.name": "other"}}) if "outbox is" in item.what
        ]
    finally:
        execute(database, "SELECT pg_drop_replication_slot('s_outbox')")


def test_a_captured_table_without_full_identity_is_named_with_its_cure(database: str) -> None:
    execute(
        database,
        'CREATE TABLE public."Odd Name" (id int PRIMARY KEY)',
        "CREATE TABLE public.whole (id int PRIMARY KEY)",
        "ALTER TABLE public.whole REPLICA IDENTITY FULL",
        'CREATE PUBLICATION p_rows FOR TABLE public."Odd Name", public.whole, rowcall.outbox',
        "CREATE PUBLICATION p_empty",
    )
    findings = examine(database)
    (partial,) = [finding for finding in findings if "REPLICA IDENTITY" in finding.what]
    assert "Odd Name" in partial.what and partial.level == "warn"
    execute(database, partial.advice)
    assert not [finding for finding in examine(database) if "REPLICA IDENTITY" in finding.what]
    assert find(findings, "publication p_empty").level == "warn"
    assert "public.whole" in find(findings, "publication p_rows").why


def test_a_publication_that_a_connector_reads_and_nobody_made_is_a_failure(database: str) -> None:
    config = OUTBOX | {"database.dbname": urlsplit(database).path[1:]}
    assert "p_outbox" in find(examine(database, {"outbox": config}), "a publication is missing").why


def test_a_role_without_rights_is_told_which(database: str) -> None:
    execute(
        database,
        f"CREATE ROLE {ROLE} LOGIN PASSWORD 'pw'",
        f"GRANT USAGE ON SCHEMA rowcall TO {ROLE}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA rowcall TO {ROLE}",
    )
    try:
        findings = examine(with_login(database, f"{ROLE}:pw"))
        assert not [finding for finding in findings if "superuser" in finding.what]
        assert "INSERT on rowcall.agent_jobs" in find(findings, "lacks rights").why
        assert find(findings, "may not replicate").level == "warn"
    finally:
        execute(database, f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


def test_a_superuser_is_warned_of_what_read_only_sql_may_do_then(database: str) -> None:
    found = find(examine(database), "the role is a superuser")
    assert (found.level, "PROGRAM" in found.why, "NOSUPERUSER" in found.advice) == ("warn", True, True)


def test_runs_that_nobody_will_run_are_named_and_counted(database: str) -> None:
    execute(
        database,
        "INSERT INTO rowcall.agents (name, version, state) VALUES ('a', 1, 'ACTIVE'), ('old', 1, 'RETIRED')",
        "INSERT INTO rowcall.agent_jobs (job_type) VALUES ('a'), ('old'), ('old'), ('new')",
    )
    found = find(examine(database), "runs of agents that are not active")
    assert found.level == "warn"
    assert found.why.endswith("new: 1 (not activated), old: 2 (RETIRED)")


def test_what_waits_for_a_person_is_counted(database: str) -> None:
    execute(
        database,
        "INSERT INTO rowcall.agent_jobs (job_type) VALUES ('gone')",
        "INSERT INTO rowcall.agent_jobs (job_type, status, reason) VALUES ('a', 'PARKED', 'older_than_horizon')",
        "INSERT INTO rowcall.agents (name, version, state, state_reason) VALUES ('a', 1, 'PAUSED', 'quota')",
        'INSERT INTO rowcall.dead_letters (cluster_id, topic, partition, "offset", error_code, error, app_version) '
        "VALUES ('c', 't', 0, 0, 'undecodable', 'x', '1')",
    )
    findings = examine(database)
    assert find(findings, "1 open dead letters").advice == "rowcall dead-letters list"
    assert find(findings, "1 runs are parked").level == "warn"
    assert find(findings, "an agent is paused").why == "a: quota"
    assert "gone" in find(findings, "runs without code").why


def test_an_active_agent_whose_code_is_in_no_module_is_named_with_what_to_do(database: str) -> None:
    execute(
        database,
        "INSERT INTO rowcall.agents (name, version, state) VALUES ('a', 1, 'ACTIVE'), ('gone', 1, 'ACTIVE'),"
        " ('old', 1, 'RETIRED')",
    )
    found = [finding for finding in examine(database) if "without code" in finding.what]
    assert [finding.what for finding in found] == ["agent gone is active without code"]
    assert "ROWCALL_AGENTS" in found[0].advice and "rowcall agents retire gone" in found[0].advice


def test_tables_that_a_connector_names_and_its_publication_lacks_are_named(database: str) -> None:
    execute(
        database,
        'CREATE TABLE public."Odd" (id int PRIMARY KEY)',
        "CREATE TABLE public.whole (id int PRIMARY KEY)",
        'CREATE PUBLICATION p_rows FOR TABLE public."Odd"',
    )
    config = {
        "publication.name": "p_rows",
        "database.dbname": urlsplit(database).path[1:],
        "table.include.list": "public.odd,public.whole,public.part_.*",
    }
    found = find(examine(database, {"rows": config}), "tables are not published")
    assert found.level == "fail" and "public.whole, public.part_.*;" in found.why and "odd" not in found.why
    assert "rowcall connectors apply rows" in found.advice and "ROWCALL_CONNECTORS" in found.advice
    execute(
        database,
        "CREATE TABLE public.part_1 (id int PRIMARY KEY)",
        "ALTER PUBLICATION p_rows ADD TABLE public.whole, public.part_1",
    )
    assert not [item for item in examine(database, {"rows": config}) if "not published" in item.what]


def test_advice_on_a_setting_names_the_folder_where_the_connector_is_edited() -> None:
    own = connectors._place(settings.load({"ROWCALL_CONNECTORS": "my-connectors"}))
    assert "my-connectors" in own and "ROWCALL_CONNECTORS" in own
    assert "ROWCALL_CONNECTORS" in connectors._place(settings.load({}))


def test_indexes_that_a_rebuild_left_behind_are_named_with_what_to_do(database: str) -> None:
    with db.connect(database, name="test") as reader, db.connect(database, name="rebuild") as rebuild:
        # A reader of the table keeps the rebuild waiting at its first phase; broken off there, it leaves its index.
        reader.execute("BEGIN")
        reader.execute("LOCK TABLE rowcall.agent_jobs IN ROW EXCLUSIVE MODE")
        rebuild.execute("SET statement_timeout = '300ms'")
        with pytest.raises(RowcallError), db.translated():
            rebuild.execute("REINDEX INDEX CONCURRENTLY rowcall.jobs_lane")
        reader.execute("ROLLBACK")
    found = find(examine(database), "jobs_lane_ccnew")
    assert (found.level, found.advice) == ("warn", "DROP INDEX CONCURRENTLY rowcall.jobs_lane_ccnew")
    execute(database, found.advice)
    assert not [finding for finding in examine(database) if "is invalid" in finding.what]
