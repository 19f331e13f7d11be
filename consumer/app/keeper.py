"""The connector keeper: restarts what has failed of ROWCALL_CONNECTORS, and warns once of what their settings lack.

Kafka Connect never restarts a task that has failed for good, as when the registry was away while a new schema was
needed. Every process with an intake looks, in a daemon thread of its own, and asks the database nothing while all is
well. Promises: one process of a fleet restarts at a time (it holds an advisory lock until all has run for a while);
pauses grow with each restart of the same connector; a Connect that is away is said once and waited for.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import Final

from consumer import connect, db, telemetry
from consumer.connect import FAILED, ConnectClient, ConnectorStatus
from consumer.errors import ConfigurationError, OperatorError, Outage, RowcallError
from consumer.settings import Settings

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("keeper")

LOOK_SECONDS: Final = 15.0
"""Between two looks at connectors that run."""
_FIRST_PAUSE_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
_CALM_SECONDS: Final = 60.0
"""A connector that has run for so long after a restart is well again."""


@dataclass(slots=True)
class Trouble:
    """A connector that has failed, with times of `time.monotonic`. The first restart is due at once."""

    due: float
    pause: float = _FIRST_PAUSE_SECONDS
    well_since: float | None = None

    def restarted(self, now: float) -> None:
        """Count a restart: the pause before the next one doubles."""
        self.due = now + self.pause
        self.pause = min(self.pause * 2, _LONGEST_PAUSE_SECONDS)

    def is_over(self, now: float) -> bool:
        """Whether the connector, which runs now, has done so long enough to be forgotten."""
        self.well_since = self.well_since or now
        return now - self.well_since >= _CALM_SECONDS


class Keeper:
    """Looks and restarts, one `round` at a time. Belongs to one thread."""

    def __init__(self, settings: Settings, client: ConnectClient) -> None:
        self._names = connect.connector_names(connect.folder(settings.connectors))
        self._url = settings.database_url.get_secret_value()
        self._client = client
        self._session: db.SyncSession | None = None
        self._troubles: dict[str, Trouble] = {}
        self._away = False
        self._advised: set[str] = set()

    def round(self) -> float:
        """Look once, restart what is due, and say after how many seconds to look again."""
        try:
            for name in self._names:
                self._examine(name)
            if self._away:
                self._away = False
                _log.info("connectors are looked after again", extra={"action": "keeper_back"})
        except (Outage, ConfigurationError) as error:
            self._close_session()
            if not self._away:
                self._away = True
                if isinstance(error, Outage):
                    telemetry.OUTAGES.add(dependency=error.dependency)
                _log.warning("connectors are not looked after: %s", error, extra={"action": "keeper_waits"})
        if not self._troubles:
            self._close_session()
        now = time.monotonic()
        soonest = min((item.due - now for item in self._troubles.values() if item.due > now), default=LOOK_SECONDS)
        return min(LOOK_SECONDS, max(1.0, soonest)) * random.uniform(0.9, 1.0)

    def close(self) -> None:
        """Let another process lead."""
        self._close_session()

    def _examine(self, name: str) -> None:
        status, now = self._client.status(name), time.monotonic()
        if status is not None and name not in self._advised:
            self._advise(name)
        trouble = self._troubles.get(name)
        if status is None or not status.failed:
            if trouble is not None and (status is None or trouble.is_over(now)):
                del self._troubles[name]
            return
        if trouble is None:
            trouble = self._troubles[name] = Trouble(due=now)
        trouble.well_since = None
        if trouble.due > now:
            return
        if self._leads():
            self._restart(status, trouble)
        else:
            trouble.due = now + LOOK_SECONDS

    def _advise(self, name: str) -> None:
        """Say what the running configuration lacks, once in the life of this process."""
        config = self._client.config(name)
        if config is None:
            return
        for advice in connect.lint(config):
            _log.warning(
                "connector %s: %s should be %s, not %s: %s",
                name,
                advice.setting,
                advice.wanted,
                advice.present or "(unset)",
                advice.cost,
                extra={"action": "connector_advice", "connector": name},
            )
        self._advised.add(name)

    def _restart(self, status: ConnectorStatus, trouble: Trouble) -> None:
        parts = [(status.state, status.reason), *((task.state, task.reason) for task in status.tasks)]
        reasons = [reason for state, reason in parts if state == FAILED]
        _log.warning(
            "connector %s has failed and is restarted (again after %g s at the earliest): %s",
            status.name,
            trouble.pause,
            reasons[0] or "Connect gives no reason",
            extra={"action": "connector_restarted", "connector": status.name},
        )
        trouble.restarted(time.monotonic())
        telemetry.CONNECTOR_RESTARTS.add(connector=status.name)
        try:
            self._client.restart_failed(status.name)
        except OperatorError as error:
            _log.warning("%s", error, extra={"action": "connector_not_restarted", "connector": status.name})

    def _leads(self) -> bool:
        """Whether this process is the one that acts; proves that the session which holds the lock still lives."""
        if self._session is None or self._session.closed:
            self._session = db.connect(self._url, name="keeper")
        with db.translated():
            row = self._session.execute(_SQL["lead"]).fetchone()
        return row is not None and bool(row["mine"])

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def keep(settings: Settings, stop: threading.Event) -> threading.Thread | None:
    """Start to look after the connectors, until `stop`; None where there is nothing to look after.

    The thread is a daemon: a Connect that hangs must not hold up the end of the process.
    """
    if not settings.keep_connectors or not settings.connect_url:
        _log.info("no connectors are looked after", extra={"action": "keeper_off"})
        return None
    thread = threading.Thread(target=_run, args=(settings, stop), name="rowcall-keeper", daemon=True)
    thread.start()
    return thread


def _run(settings: Settings, stop: threading.Event) -> None:
    try:
        with ConnectClient(settings.connect_url) as client:
            keeper = Keeper(settings, client)
            # Not at once: processes that start together look in turn, and connectors may just be being applied.
            wait = random.uniform(1.0, LOOK_SECONDS)
            while not stop.wait(wait):
                wait = keeper.round()
            keeper.close()
    except RowcallError as error:
        _log.warning("connectors are not looked after: %s", error, extra={"action": "keeper_off"})
    except Exception:  # noqa: BLE001 - intake needs no keeper, and a thread that dies in silence is missed by nobody
        _log.exception("the connector keeper has died", extra={"action": "keeper_died"})
