"""Capture: what connectors need of the database before they are applied, and waiting until they really read the log.

A connector's task says RUNNING before its replication slot exists, and a row committed in between is seen by nobody
where no snapshot is taken. So whoever applies connectors waits here before letting rows or workers in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from consumer import db
from consumer.connect import ConnectClient, ConnectorFile, ConnectorStatus, tables_of
from consumer.errors import ConfigurationError, OperatorError, Outage

_SQL: Final = db.queries("capture")
_LOOK_SECONDS: Final = 0.25
# Connect answers a new configuration before it has started the tasks again; until then they show their old failure.
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


def await_capture(
    session: db.SyncSession,
    client: ConnectClient,
    files: Sequence[ConnectorFile],
    *,
    seconds: float,
    before: Mapping[str, ConnectorStatus | None] | None = None,
) -> None:
    """Return when every connector runs and its slot is being read.

    `before` has the states from before a change or restart, by name: a failure that stands there unchanged is taken for
    a left-over for STALE_SECONDS.

    Raises:
        ConfigurationError: a task has failed; gives its reason.
        Outage: it took longer than `seconds`; names what is missing.
    """
    waiting = {file.name: file for file in files}
    old, stale_until = dict(before or {}), time.monotonic() + STALE_SECONDS

    def not_running() -> list[str]:
        if time.monotonic() > stale_until:
            old.clear()
        return _not_running(client, waiting, old)

    _until(seconds, not_running, "connectors do not run")
    slots = [slot for file in files if (slot := file.config.get("slot.name"))]
    _until(seconds, lambda: _not_read(session, slots), "replication slots are not read")


def _until(seconds: float, missing: Callable[[], list[str]], what: str) -> None:
    give_up = time.monotonic() + seconds
    while names := missing():
        if time.monotonic() > give_up:
            raise Outage(f"after {seconds:g} s {what}: {', '.join(names)}", dependency="connect")
        time.sleep(_LOOK_SECONDS)


def _not_running(
    client: ConnectClient, waiting: dict[str, ConnectorFile], old: Mapping[str, ConnectorStatus | None]
) -> list[str]:
    for name in list(waiting):
        status = client.status(name, waiting[name].mask)
        if status is not None and status.failed and not _left_over(status, old.get(name)):
            raise ConfigurationError(
                f"connector {name} failed: {_reasons(status)}; when the cause is mended: "
                f"rowcall connectors apply {name} --restart-failed"
            )
        if status is not None and status.healthy:
            del waiting[name]
    return sorted(waiting)


def _left_over(status: ConnectorStatus, old: ConnectorStatus | None) -> bool:
    return old is not None and old.failed and _reasons(old) == _reasons(status)


def _reasons(status: ConnectorStatus) -> str:
    return "; ".join(task.reason for task in status.tasks if task.reason) or status.reason


def _not_read(session: db.SyncSession, slots: Sequence[str]) -> list[str]:
    with db.translated():
        read = {row["slot_name"] for row in session.execute(_SQL["read_slots"], {"names": list(slots)})}
    return sorted(set(slots) - read)
