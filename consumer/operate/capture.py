"""Capture: what connectors need of the database before they are applied, and waiting until they really read the log.

A connector's task says RUNNING before its replication slot exists, and a row committed in between is seen by nobody
where no snapshot is taken. So whoever applies connectors waits here before letting rows or workers in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumer import db
from consumer.connect import ConnectClient, ConnectorFile, ConnectorStatus, tables_of
from consumer.errors import ConfigurationError, OperatorError, Outage

_SQL: Final = db.queries("capture")
_LOOK_SECONDS: Final = 0.25
# Connect answers a new configuration before it has started the tasks again; until then the old ones still run or still
# show their failure. A task is started again within a second or two.
STALE_SECONDS: Final = 10.0
_PLAIN: Final = re.compile(r"[^\\*+?()\[\]{}|^$]+\.[^\\*+?()\[\]{}|^$]+")


def check_tables(session: db.SyncSession, files: Sequence[ConnectorFile]) -> None:
    """Refuse files that would capture tables this database does not have; a regular expression is not looked at.

    Raises:
        OperatorError: naming connector, tables and database.
    """
    refused = []
    for file in files:
        names = [name for name in tables_of(file.config) if _PLAIN.fullmatch(name)]
        with db.translated():
            missing = session.execute(_SQL["missing_tables"], {"names": names}).fetchall()
        if missing:
            refused.append(_refusal(file.name, [row["name"] for row in missing], missing[0]["database"]))
    if refused:
        raise OperatorError("\n".join(refused))


def bring_publications(session: db.SyncSession, files: Sequence[ConnectorFile]) -> None:
    """Bring publications that already exist to the tables of their files, before the connectors start with them.

    Debezium 3.6.1 does it with a statement that Postgres refuses (WITH behind ALTER PUBLICATION … SET TABLE), and tries
    again for ever. A list with a regular expression, or with a signal table beside it, is left to Debezium.

    Raises:
        ConfigurationError: the role of DATABASE_URL may not change the publication.
    """
    for file in files:
        tables, publication = tables_of(file.config), file.config.get("publication.name")
        filtered = file.config.get("publication.autocreate.mode") == "filtered"
        if not (publication and filtered and tables) or "signal.data.collection" in file.config:
            continue
        if all(_PLAIN.fullmatch(name) for name in tables):
            given = {"tables": list(tables), "publication": publication}
            with db.translated():
                for row in session.execute(_SQL["publication_change"], given).fetchall():
                    session.execute(row["statement"].encode())


def _refusal(connector: str, tables: Sequence[str], database: str) -> str:
    one = len(tables) == 1
    what, them = ("table", "it") if one else ("tables", "them")
    advice = f"create {them} or take {them} out of table.include.list"
    if all(name.startswith("rowcall.") for name in tables):
        advice = "`rowcall migrate` creates " + them
    elif set(tables) <= {"public.orders", "public.customers"}:
        advice += f"; `rowcall example-tables` creates {them} for a trial"
    return (
        f"{connector}: {what} {', '.join(tables)} {'does' if one else 'do'} not exist in database {database}; {advice}"
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """How a connector stood at one moment: its states, and the server process that fed it from its slot."""

    status: ConnectorStatus | None
    reader: int | None


def standing(session: db.SyncSession, client: ConnectClient, files: Iterable[ConnectorFile]) -> dict[str, Standing]:
    """How these connectors stand now, by name."""
    slots = {file.name: file.config.get("slot.name", "") for file in files}
    with db.translated():
        rows = session.execute(_SQL["read_slots"], {"names": list(slots.values())}).fetchall()
    readers = {row["slot_name"]: row["active_pid"] for row in rows}
    return {file.name: Standing(client.status(file.name, file.mask), readers.get(slots[file.name])) for file in files}


def await_capture(
    session: db.SyncSession,
    client: ConnectClient,
    files: Sequence[ConnectorFile],
    *,
    seconds: float,
    before: Mapping[str, Standing] | None = None,
) -> None:
    """Return when every connector runs and its slot is being read.

    `before` has those that were changed or restarted as they stood before it. Until STALE_SECONDS are over, what still
    stands there unchanged is taken for left over: the old failure for none, the old reader for none.

    Raises:
        ConfigurationError: a task has failed; gives its reason.
        Outage: it took longer than `seconds`; names what is missing.
    """
    old = dict(before or {})
    began = time.monotonic()
    while True:
        if time.monotonic() - began > STALE_SECONDS:
            old.clear()
        now = standing(session, client, files)
        missing = [lack for file in files if (lack := _missing(file, now[file.name], old.get(file.name)))]
        if not missing:
            return
        if time.monotonic() - began > seconds:
            raise Outage(f"after {seconds:g} s {'; '.join(missing)}", dependency="connect")
        time.sleep(_LOOK_SECONDS)


def _missing(file: ConnectorFile, now: Standing, old: Standing | None) -> str:
    status, slot = now.status, file.config.get("slot.name")
    if status is not None and status.failed and not _left_over(status, old):
        raise ConfigurationError(
            f"connector {file.name} failed: {_reasons(status)}; when the cause is mended: "
            f"rowcall connectors apply {file.name} --restart-failed"
        )
    if status is None or not status.healthy:
        return f"connector {file.name} does not run"
    if slot and (now.reader is None or (old is not None and now.reader == old.reader)):
        return f"replication slot {slot} is not read"
    return ""


def _left_over(status: ConnectorStatus, old: Standing | None) -> bool:
    was = None if old is None else old.status
    return was is not None and was.failed and _reasons(was) == _reasons(status)


def _reasons(status: ConnectorStatus) -> str:
    return "; ".join(task.reason for task in status.tasks if task.reason) or status.reason
