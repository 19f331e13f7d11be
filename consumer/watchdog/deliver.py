"""Delivery: each channel sends its alerts from a thread and a session of its own.

Before it, `store` wrote one row a flip and channel; after it, whoever is told. Writes what became of each row.
Promises: an alert is tried with growing pauses until it is sent or, after a bound, given up for all to see; a channel
that hangs stops no other, nor the rounds; an alert is sent again with the same ID where it is not sure that it went.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumer import db
from consumer.errors import ConfigurationError, Outage, RowcallError
from consumer.records.jobs import storable
from consumer.telemetry import WATCH_ALERTS, redact
from consumer.watchdog.alert import Channel, of_flip

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("watchdog")
# While one watchdog sends an alert no other does; longer than a channel's own time limits.
_LEASE_SECONDS: Final = 120.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
# What the other side may ask for at most; a receiver that names a year is not to silence its channel.
_LONGEST_ASKED_SECONDS: Final = 3600.0
# About an hour and a half.
TRIES: Final = 25
# Alerts of other watchdogs, and those that are due again, are found after this time.
_LOOK_SECONDS: Final = 1.0
_ERROR_CHARACTERS: Final = 1000
_LEAVE_SECONDS: Final = 5.0


class Delivery:
    """The threads of all channels.

    Args:
        url: database URL.
        channels: with different names.
        first_pause: after the first failure, in seconds; doubles with each.
        tries: after which an alert is given up.

    Raises:
        ConfigurationError: two channels have one name.
    """

    def __init__(
        self, url: str, channels: Sequence[Channel], *, first_pause: float = _FIRST_PAUSE_SECONDS, tries: int = TRIES
    ) -> None:
        self.names: Final = [channel.name for channel in channels]
        if len(set(self.names)) < len(self.names):
            raise ConfigurationError(f"two alert channels have one name: {', '.join(sorted(self.names))}")
        self._url = url
        self._first_pause = first_pause
        self._tries = tries
        self._stop = threading.Event()
        self._due = {name: threading.Event() for name in self.names}
        self._threads = [
            threading.Thread(target=self._run, args=(channel,), name=f"rowcall-alert-{channel.name}", daemon=True)
            for channel in channels
        ]

    def start(self) -> None:
        """Send from now on. The threads are daemons: one may hang in its channel."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Say that there is something new to send."""
        for due in self._due.values():
            due.set()

    def stop(self) -> None:
        """Let the threads end; what is not sent waits for the next watchdog."""
        self._stop.set()
        self.wake()
        for thread in self._threads:
            thread.join(_LEAVE_SECONDS)

    def _run(self, channel: Channel) -> None:
        session: db.SyncSession | None = None
        while not self._stop.is_set():
            # Cleared before the look: what comes during it is looked for again.
            self._due[channel.name].clear()
            try:
                session = session or db.connect(self._url, name=f"alert {channel.name}")
                while not self._stop.is_set() and self._send_one(session, channel):
                    pass
            except RowcallError as error:
                _log.warning("alerts for %s wait: %s", channel.name, error, extra={"action": "alerts_wait"})
                _close(session)
                session = None
            self._due[channel.name].wait(_LOOK_SECONDS)
        _close(session)

    def _send_one(self, session: db.SyncSession, channel: Channel) -> bool:
        """Send what has waited longest; whether there was something."""
        with db.transaction(session):
            values = {"channel": channel.name, "lease": _LEASE_SECONDS, "longest": _LONGEST_ASKED_SECONDS}
            row = session.execute(_SQL["take_alert"], values).fetchone()
        if row is None:
            return False
        error = _tried(channel, row)
        with db.transaction(session):
            if error is None:
                session.execute(_SQL["sent"], {"id": row["id"]})
            else:
                self._put_off(session, channel, row, error)
        if error is None:
            WATCH_ALERTS.add(channel=channel.name, result="sent")
        return True

    def _put_off(self, session: db.SyncSession, channel: Channel, row: Mapping[str, Any], error: Exception) -> None:
        attempts, text = row["attempts"], storable(redact(f"{error}" or type(error).__name__)[:_ERROR_CHARACTERS])
        delay = self._pause(attempts, error)
        give_up = attempts >= self._tries
        values = {"id": row["id"], "error": text, "give_up": give_up, "delay": delay}
        session.execute(_SQL["not_sent"], values)
        WATCH_ALERTS.add(channel=channel.name, result="gave_up" if give_up else "failed")
        _log.log(
            logging.ERROR if give_up else logging.WARNING,
            "an alert about %s %s by %s: %s", row["subject"],
            f"was GIVEN UP after {attempts} tries" if give_up else f"could not be sent (again in {delay:g} s)",
            channel.name, text,
            extra={
                "action": "alert_gave_up" if give_up else "alert_failed", "channel": channel.name,
                "subject": row["subject"],
            },
        )  # fmt: skip

    def _pause(self, attempts: int, error: Exception) -> float:
        # What only an operator can mend is not tried every second.
        if isinstance(error, ConfigurationError):
            return _LONGEST_PAUSE_SECONDS
        doubled: float = min(self._first_pause * 2 ** (attempts - 1), _LONGEST_PAUSE_SECONDS)
        asked = error.retry_after_seconds if isinstance(error, Outage) else None
        return max(doubled, min(asked or 0.0, _LONGEST_ASKED_SECONDS))


def _tried(channel: Channel, row: Mapping[str, Any]) -> Exception | None:
    """Send one alert; what went wrong."""
    try:
        channel.send(of_flip(row, reminder=row["reminder"], message=row["message"]))
    except (Outage, ConfigurationError) as error:
        return error
    except Exception as error:  # noqa: BLE001 - a fault in one channel is kept with the alert, which is tried again
        _log.exception("channel %s is broken", channel.name, extra={"action": "channel_broken"})
        return error
    return None


def _close(session: db.SyncSession | None) -> None:
    if session is not None:
        session.close()
