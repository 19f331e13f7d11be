"""Postgres: reachable, able to be captured, migrated, and what stands in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from consumer import db, migrate
from consumer.agents.door import Agent
from consumer.connect import covers, tables_of
from consumer.connect.advice import is_outbox
from consumer.doctor.finding import Finding, refused
from consumer.doctor.pooler import refuse_pooler
from consumer.errors import ConfigurationError, RowcallError
from consumer.settings import Settings

_SQL: Final = db.queries("doctor")
_AREA: Final = "database"
OUTBOX_SLOT: Final = "rowcall_outbox"
# Oldest major version that has what is used (pg_visible_in_snapshot, detach concurrently, transaction_timeout: 17).
_OLDEST: Final = 17
# Seconds; above this, logs of different machines no longer tell one story. Leases use the database's clock alone.
_CLOCK_SECONDS: Final = 2.0
# Bytes of WAL behind a slot at which someone should look: minutes of a busy database.
_BEHIND: Final = 1 << 30
# Tables whose rows are only inserted; what they log of an old row does not matter.
_INSERT_ONLY: Final = frozenset({"rowcall.outbox", "rowcall.connector_heartbeats"})


def examine(settings: Settings, agents: Sequence[Agent], connectors: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Findings about DATABASE_URL; `connectors` are those that run, by name, none where Connect is away."""
    try:
        url = settings.database_url.get_secret_value()
        with db.connect(url, name="doctor") as session:
            refuse_pooler(session, url)
            return list(_examine(session, agents, connectors))
    except RowcallError as error:
        return [refused(_AREA, error, "DATABASE_URL")]


def _examine(
    session: db.SyncSession, agents: Sequence[Agent], connectors: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    yield from _server(session)
    try:
        migrate.check(session)
    except ConfigurationError as error:
        yield Finding("fail", _AREA, "the schema is not this version's", str(error), "rowcall migrate")
    else:
        yield Finding("ok", _AREA, f"schema {migrate.migrations()[-1].version}")
        yield from _rights(session)
        yield from _indexes(session)
        yield from _standing(session, agents)
    yield from _slots(session, connectors)
    yield from _publications(session, connectors)


def _server(session: db.SyncSession) -> Iterator[Finding]:
    before = time.time()
    row = _rows(session, "server")[0]
    skew = abs(row["clock"] - (before + time.time()) / 2)
    what = f"Postgres {row['version_text']}, database {row['database']} as {row['role']}"
    if row["version"] // 10_000 < _OLDEST:
        yield Finding("fail", _AREA, what, "transaction_timeout is missing", f"use Postgres {_OLDEST} or newer")
    else:
        yield Finding("ok", _AREA, what)
    if row["wal_level"] != "logical":
        why = f"wal_level is {row['wal_level']}: no row change can be captured"
        yield Finding("fail", _AREA, "no logical decoding", why, "set wal_level = logical and restart Postgres")
    if skew > _CLOCK_SECONDS:
        why = "leases use the database's clock, but logs and the shown times will not fit together"
        yield Finding("warn", _AREA, f"clocks differ by {skew:.1f} s", why, "let NTP run on both machines")
    if row["slot_keep"] == "-1":
        why = "max_slot_wal_keep_size is unlimited: a connector that is gone can fill the disk"
        yield Finding("warn", _AREA, "slots may keep any amount of WAL", why, "set max_slot_wal_keep_size")


def _rights(session: db.SyncSession) -> Iterator[Finding]:
    row = _rows(session, "rights")[0]
    if row["missing"]:
        lacking = ", ".join(row["missing"][:8]) + (", …" if len(row["missing"]) > 8 else "")
        yield Finding(
            "fail", _AREA, "the role lacks rights", lacking, "grant them, or let this role run `rowcall migrate`"
        )
    if not row["replicates"]:
        why = "connectors that log in with this role cannot open a replication slot"
        yield Finding(
            "warn", _AREA, "the role may not replicate", why, "ALTER ROLE … REPLICATION, or use another for them"
        )
    if row["superuser"]:
        why = "read-only SQL of an agent could run programs on the database's machine (COPY … TO PROGRAM)"
        advice = "let workers log in with a role of their own, NOSUPERUSER, and a superuser only run `rowcall migrate`"
        yield Finding("warn", _AREA, "the role is a superuser", why, advice)


def _indexes(session: db.SyncSession) -> Iterator[Finding]:
    for row in _rows(session, "invalid_indexes"):
        why = f"a build of it on {row['table']} was broken off: it costs each write and serves no read"
        own = "_ccnew" not in row["index"] and "_ccold" not in row["index"]
        advice = f"{'REINDEX' if own else 'DROP'} INDEX CONCURRENTLY rowcall.{row['index']}"
        yield Finding("warn", _AREA, f"index {row['index']} is invalid", why, advice)


def _slots(session: db.SyncSession, connectors: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    slots = {row["slot"]: row for row in _rows(session, "slots")}
    for name, row in slots.items():
        what = f"slot {name}"
        if row["wal_status"] == "lost" or row["invalidation"]:
            why = f"the WAL it needs is gone ({row['invalidation'] or 'wal_status lost'}): changes are missing for ever"
            yield Finding("fail", _AREA, what, why, "drop it, apply the connector again, and backfill")
        elif not row["active"]:
            why = f"nobody reads it; it keeps {_mib(row['behind'])} of WAL"
            yield Finding("warn", _AREA, what, why, "rowcall connectors status; drop the slot if its connector is gone")
        elif row["behind"] > _BEHIND or row["wal_status"] == "unreserved":
            yield Finding("warn", _AREA, what, f"{_mib(row['behind'])} behind", "see whether its connector keeps up")
        else:
            yield Finding("ok", _AREA, what, f"read, {_mib(row['behind'])} behind")
    wanted = [config.get("slot.name", OUTBOX_SLOT) for config in connectors.values() if is_outbox(config)]
    if not any(slot in slots for slot in wanted or [OUTBOX_SLOT]):
        why = f"no slot {' or '.join(wanted or [OUTBOX_SLOT])}: results are written, and nobody publishes them"
        yield Finding("fail", _AREA, "the outbox is not captured", why, "rowcall connectors apply outbox")


def _publications(session: db.SyncSession, connectors: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    tables: dict[str, list[str]] = {}
    partial = set()
    for row in _rows(session, "publications"):
        tables.setdefault(row["publication"], [])
        if row["table"] is not None:
            tables[row["publication"]].append(row["table"])
            if row["identity"] != "f" and row["table"] not in _INSERT_ONLY:
                partial.add(row["table"])
    for name, published in tables.items():
        yield Finding("ok" if published else "warn", _AREA, f"publication {name}", ", ".join(published) or "is empty")
    for name, config in connectors.items():
        publication = config.get("publication.name", "dbz_publication")
        if config.get("database.dbname") != session.info.dbname:
            continue
        if publication in tables:
            yield from _unpublished(name, config, publication, tables[publication])
        else:
            why = f"connector {name} reads publication {publication}, which does not exist"
            yield Finding("fail", _AREA, "a publication is missing", why, f"rowcall connectors apply {name}")
    for table in sorted(partial):
        why = "updates and deletes carry no old values: `changed`, `became` and the stale-row check see less"
        yield Finding(
            "warn", _AREA, f"{table} has no REPLICA IDENTITY FULL", why, f"ALTER TABLE {table} REPLICA IDENTITY FULL"
        )


def _unpublished(name: str, config: Mapping[str, str], publication: str, published: Sequence[str]) -> Iterator[Finding]:
    """What the connector is to capture and its publication leaves out: changes of it never reach the log's reader."""
    found = [table.replace('"', "") for table in published]
    missing = [entry for entry in tables_of(config) if not any(covers(entry, table) for table in found)]
    if missing:
        why = f"table.include.list of connector {name} names {', '.join(missing)}; publication {publication} does not"
        advice = (
            f"create what does not exist, then `rowcall connectors apply {name}` (it brings the publication to the "
            f"file's list; files are read from ROWCALL_CONNECTORS) or ALTER PUBLICATION {publication} ADD TABLE …"
        )
        yield Finding("fail", _AREA, "tables are not published", why, advice)


def _standing(session: db.SyncSession, agents: Sequence[Agent]) -> Iterator[Finding]:
    row = _rows(session, "standing", {"agents": [agent.name for agent in agents]})[0]
    waiting = {
        "dead_letters": ("open dead letters", "rowcall dead-letters list"),
        "reviews": ("answers wait for a decision", "rowcall reviews list"),
        "failed": ("runs failed in the last day", "rowcall jobs list --status FAILED"),
        "parked": ("runs are parked", "rowcall jobs list --status PARKED"),
    }
    for name, (text, command) in waiting.items():
        if row[name]:
            yield Finding("warn", "records", f"{row[name]} {text}", advice=command)
    if row["idle"]:
        why = f"PENDING, and as things stand nobody will run them: {', '.join(row['idle'])}"
        advice = (
            "`rowcall agents activate` or `resume`; of an agent that has ended, `rowcall agents retire` cancels them"
        )
        yield Finding("warn", "records", "runs of agents that are not active", why, advice)
    for paused in row["paused"]:
        yield Finding("warn", "records", "an agent is paused", paused, "mend the cause, then `rowcall agents resume`")
    for name in row["codeless"] if agents else ():
        why = "no module of ROWCALL_AGENTS here has its code: such a process reads none of its topics, for any agent"
        advice = f"add its module to ROWCALL_AGENTS; if it is gone or renamed, `rowcall agents retire {name}`"
        yield Finding("warn", "agents", f"agent {name} is active without code", why, advice)
    if row["strangers"] and agents:
        why = f"runs wait for agents this process has no code of: {', '.join(row['strangers'])}"
        advice = "add their module to ROWCALL_AGENTS somewhere, or `rowcall agents retire`"
        yield Finding("warn", "records", "runs without code", why, advice)


def _rows(session: db.SyncSession, query: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    with db.translated():
        return session.execute(_SQL[query], parameters or {}).fetchall()


def _mib(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / (1 << 20):.1f} MiB"
