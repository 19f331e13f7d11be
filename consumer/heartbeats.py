"""Heartbeats: each process says in the database that it lives, which roles it has, and whether their loops turn.

Before it, a loop registers its pulse with `telemetry.HEALTH`; after it, whoever asks reads `rowcall.heartbeats`. Writes
that table alone, one statement every ROWCALL_HEARTBEAT_SECONDS, from a thread and a session of its own. Promises: a
beat that cannot be written ends nothing and is tried again; a clean stop is told apart from a death.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from consumer import db
from consumer.errors import RowcallError
from consumer.telemetry import HEALTH, HEARTBEATS, Health

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("heartbeats")
# What a stop waits for the last word; then the process leaves without it and the watchdog finds it silent.
_LEAVE_SECONDS: Final = 5.0


class Heartbeats:
    """The beats of one process.

    Args:
        url: database URL.
        roles: what the process runs; each is the name of a loop in `health`.
        seconds: pause between two beats.
    """

    def __init__(self, url: str, roles: Sequence[str], *, seconds: float, health: Health = HEALTH) -> None:
        self.instance: Final = f"{socket.gethostname()[:150]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._url = url
        self._roles = list(roles)
        self._seconds = seconds
        self._health = health
        self._detail = json.dumps({"version": version("rowcall"), "pid": os.getpid()})
        self._session: db.SyncSession | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rowcall-heartbeats", daemon=True)

    def start(self) -> None:
        """Beat from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Say that the process ends as it should, and stop beating."""
        self._stop.set()
        self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        self._write("beat")
        while not self._stop.wait(self._seconds):
            self._write("beat")
        self._write("stopped")
        self._close()

    def _write(self, name: str) -> None:
        turns = self._health.turns()
        values = {
            "subjects": self._roles,
            "progress": [turns.get(role, 0) for role in self._roles],
            "instance": self.instance,
            "seconds": self._seconds,
            "detail": self._detail,
        }
        try:
            if self._session is None or self._session.closed:
                self._session = db.connect(self._url, name="heartbeats")
            with db.translated():
                self._session.execute(_SQL[name], values)
            HEARTBEATS.add(result="written")
        except RowcallError as error:
            HEARTBEATS.add(result="failed")
            _log.warning("a heartbeat could not be written: %s", error, extra={"action": "heartbeat_failed"})
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
