"""What Kafka Connect says of the connectors, asked in a thread of its own: Connect may take a minute to answer.

Before it, nothing; after it, `observe` takes the last answer, and when each connector last wrote its own beat: one may
be RUNNING and read nothing. Writes nothing. Promises: a Connect that hangs holds up
no round; one that is away is a failed observer, not a fault of each connector.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping
from typing import Final

from consumer import connect
from consumer.connect import ConnectClient, ConnectorStatus
from consumer.errors import ConfigurationError, Outage, RowcallError
from consumer.settings import Settings
from consumer.watchdog.observation import Fault, Observation, Rules, moment

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 10.0
Told = Mapping[str, ConnectorStatus | None]
"""Connector → its status; None where Connect has none of the name."""
Beats = Mapping[str, dt.datetime]
"""Connector → when it last wrote its beat."""


class Connectors:
    """The connectors of ROWCALL_CONNECTORS, as Connect last told of them.

    Raises:
        ConfigurationError: their files cannot be read.
    """

    def __init__(self, settings: Settings, rules: Rules, *, seconds: float = _LOOK_SECONDS) -> None:
        folder = connect.folder(settings.connectors)
        self._names = connect.connector_names(folder)
        self._pauses = connect.beat_seconds(folder)
        self._url = settings.connect_url
        self._rules = rules
        self._seconds = seconds
        self._told: Told | RowcallError | None = None
        self._failures = 0
        # Connector → since which round it has not been well, whatever was wrong with it.
        self._since: dict[str, dt.datetime] = {}
        # Connector → since which round it runs.
        self._runs: dict[str, dt.datetime] = {}

    def start(self, stop: threading.Event) -> None:
        """Ask from now on, until `stop`. The thread is a daemon: it may hang in a question."""
        threading.Thread(target=self._run, args=(stop,), name="rowcall-watch-connectors", daemon=True).start()

    def take(self, told: Told | RowcallError) -> None:
        """Keep what Connect has told. One question without an answer is nothing yet; the last answer stands."""
        if isinstance(told, RowcallError):
            self._failures += 1
            if self._failures < self._rules.misses:
                return
        else:
            self._failures = 0
        self._told = told

    def look(self, now: dt.datetime, beats: Beats | None = None) -> list[Observation]:
        """The connectors by the last answer, and by their own beats.

        Raises:
            RowcallError: what the last questions ended with.
        """
        if isinstance(self._told, RowcallError):
            raise self._told
        told = self._told or {}
        return [self._judged(name, status, now, (beats or {}).get(name)) for name, status in told.items()]

    def _judged(
        self, name: str, status: ConnectorStatus | None, now: dt.datetime, beat: dt.datetime | None
    ) -> Observation:
        subject = f"connector:{name}"
        paused = status is not None and status.state in ("PAUSED", "STOPPED")
        wrong = None if paused else _wrong(name, status)
        if paused or wrong is not None:
            self._runs.pop(name, None)
        if wrong is None:
            self._since.pop(name, None)
        if paused and status is not None:
            return Observation(subject, now, paused=True, note=f"the connector is {status.state.lower()}")
        if wrong is None:
            silent = self._silent(name, self._runs.setdefault(name, now), beat)
            return Observation(subject, now, faults=silent, note="the connector and its tasks run")
        state, message = wrong
        at = self._since.setdefault(name, now) + dt.timedelta(seconds=self._rules.start_grace)
        return Observation(subject, None, faults=(Fault(state, at, message),), heard=status is not None)

    def _silent(self, name: str, runs: dt.datetime, beat: dt.datetime | None) -> tuple[Fault, ...]:
        """The fault that comes when it runs since `runs` and its beats stay away."""
        if name not in self._pauses:
            return ()
        last = runs if beat is None else max(runs, beat)
        rules = self._rules
        seconds = self._pauses[name] * rules.misses + rules.tolerance + rules.start_grace
        ever = "has never written a heartbeat" if beat is None else f"wrote its last heartbeat at {moment(beat)}"
        message = (
            f"connector {name} is RUNNING for Kafka Connect, but {ever}: it reads nothing, or may not write "
            f"rowcall.connector_heartbeats; see Connect's log and `rowcall connectors status`, then restart it "
            f"(POST /connectors/{name}/restart?includeTasks=true)"
        )
        return (Fault("overdue", last + dt.timedelta(seconds=seconds), message),)

    def _run(self, stop: threading.Event) -> None:
        with ConnectClient(self._url) as client:
            while not stop.is_set():
                try:
                    self.take({name: client.status(name) for name in self._names})
                except (Outage, ConfigurationError) as error:
                    self.take(error)
                except Exception as error:  # noqa: BLE001 - it is told as a failed observer; the thread must go on
                    _log.exception("connectors cannot be looked at", extra={"action": "observer_failed"})
                    self.take(Outage(f"{type(error).__name__}: {error}", dependency="connect"))
                stop.wait(self._seconds)


def _wrong(name: str, status: ConnectorStatus | None) -> tuple[str, str] | None:
    if status is None:
        return "overdue", f"connector {name} does not exist in Kafka Connect; apply it with `rowcall connectors apply`"
    if status.failed:
        reason = next((part for part in (status.reason, *(task.reason for task in status.tasks)) if part), "no reason")
        return "failed", f"connector {name} has failed: {reason}; see `rowcall connectors status`"
    if not status.healthy:
        return "late", f"connector {name} is {status.state.lower()} and does not run"
    return None
