"""Delivery: each channel sends its alerts from a thread and a session of its own.

Before it, `store` wrote one row a flip and channel; after it, whoever is told. Writes what became of each row.
Promises: an alert is tried with growing pauses until it is sent or, after a bound, given up for all to see; a channel
that hangs stops no other, nor the rounds; an alert is sent again with the same ID where it is not sure that it went.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from consumer import db
from consumer.errors import ConfigurationError, Outage, RowcallError
from consumer.records.jobs import storable
from consumer.telemetry import WATCH_ALERTS, redact
from consumer.watchdog.alert import Alert, Channel

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("watchdog")
_NAMESPACE: Final = uuid.UUID("6f0f6e3e-6f6b-5a3c-9b53-0d8f1a6f2c11")
# While one watchdog sends an alert no other does; longer than a channel's own time limits.
_LEASE_SECONDS: Final = 120.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
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
            row = session.execute(_SQL["take_alert"], {"channel": channel.name, "lease": _LEASE_SECONDS}).fetchone()
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
        # What only an operator can mend is not tried every second.
        doubled = min(self._first_pause * 2 ** (attempts - 1), _LONGEST_PAUSE_SECONDS)
        delay = _LONGEST_PAUSE_SECONDS if isinstance(error, ConfigurationError) else doubled
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


class Pings:
    """Calls `ping` after complete rounds, from a thread of its own, so that one that hangs holds up no round."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping = ping
        self._due = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rowcall-ping", daemon=True)

    def start(self) -> None:
        """Begin to wait for rounds."""
        self._thread.start()

    def after_round(self) -> None:
        """Say that a round is complete; several rounds during one ping make one more."""
        self._due.set()

    def stop(self) -> None:
        """Ping no more."""
        self._ended.set()
        self._due.set()
        self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        while self._due.wait() and not self._ended.is_set():
            self._due.clear()
            try:
                self._ping()
            except Exception as error:  # noqa: BLE001 - whoever waits for the ping tells of it; the rounds go on
                _log.warning("the ping failed: %s", error, extra={"action": "ping_failed"})


def _tried(channel: Channel, row: Mapping[str, Any]) -> Exception | None:
    """Send one alert; what went wrong."""
    try:
        channel.send(_alert(row))
    except (Outage, ConfigurationError) as error:
        return error
    except Exception as error:  # noqa: BLE001 - a fault in one channel is kept with the alert, which is tried again
        _log.exception("channel %s is broken", channel.name, extra={"action": "channel_broken"})
        return error
    return None


def _alert(row: Mapping[str, Any]) -> Alert:
    subject = row["subject"]
    return Alert(
        id=uuid.uuid5(_NAMESPACE, f"{row['flip']} {subject} {row['at'].isoformat()} {row['reminder']}"),
        subject=subject,
        kind=subject.partition(":")[0],
        state=row["new_state"],
        previous_state=row["old_state"],
        due_at=row["due_at"],
        last_beat_at=row["last_beat_at"],
        run_id=row["run_id"],
        reminder=row["reminder"],
        detected_at=row["at"],
        message=row["message"],
    )


def _close(session: db.SyncSession | None) -> None:
    if session is not None:
        session.close()
