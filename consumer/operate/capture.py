"""Capture: wait until connectors really read the log.

A connector's task says RUNNING before its replication slot exists, and a row committed in between is seen by nobody
where no snapshot is taken. So whoever applies connectors waits here before letting rows or workers in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from consumer import db
from consumer.connect import ConnectClient, ConnectorFile
from consumer.errors import ConfigurationError, Outage

_SQL: Final = db.queries("capture")
_LOOK_SECONDS: Final = 0.25


def await_capture(
    session: db.SyncSession, client: ConnectClient, files: Sequence[ConnectorFile], *, seconds: float
) -> None:
    """Return when every connector runs and its slot is being read.

    Raises:
        ConfigurationError: a task has failed; gives its reason.
        Outage: it took longer than `seconds`; names what is missing.
    """
    waiting = {file.name: file for file in files}
    _until(seconds, lambda: _not_running(client, waiting), "connectors do not run")
    slots = [slot for file in files if (slot := file.config.get("slot.name"))]
    _until(seconds, lambda: _not_read(session, slots), "replication slots are not read")


def _until(seconds: float, missing: Callable[[], list[str]], what: str) -> None:
    give_up = time.monotonic() + seconds
    while names := missing():
        if time.monotonic() > give_up:
            raise Outage(f"after {seconds:g} s {what}: {', '.join(names)}", dependency="connect")
        time.sleep(_LOOK_SECONDS)


def _not_running(client: ConnectClient, waiting: dict[str, ConnectorFile]) -> list[str]:
    for name in list(waiting):
        status = client.status(name, waiting[name].mask)
        if status is not None and status.failed:
            reasons = "; ".join(task.reason for task in status.tasks if task.reason) or status.reason
            raise ConfigurationError(f"connector {name} failed: {reasons}")
        if status is not None and status.healthy:
            del waiting[name]
    return sorted(waiting)


def _not_read(session: db.SyncSession, slots: Sequence[str]) -> list[str]:
    with db.translated():
        read = {row["slot_name"] for row in session.execute(_SQL["read_slots"], {"names": list(slots)})}
    return sorted(set(slots) - read)
