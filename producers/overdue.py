"""The topic `agents.overdue`: what the watchdog tells, for agents to subscribe to.

Before it, the watchdog has recorded a flip; after it, intake reads the topic as any other. Promises: the event's ID is
the alert's, so that one that is sent again starts no second run; an alert counts as sent when the brokers have it.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import uuid
from typing import Any, Final, Protocol

from consumer.errors import ConfigurationError, Outage
from consumer.settings import Settings
from producers.emit import Emitter, Produced

_log = logging.getLogger(__name__)
SCHEMA: Final = "agents.overdue"
_DELIVERY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 5.0
_MESSAGE_LENGTH: Final = 10_000


class Told(Protocol):
    """An alert, as `consumer.watchdog` makes it."""

    @property
    def id(self) -> uuid.UUID: ...
    @property
    def subject(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def previous_state(self) -> str: ...
    @property
    def due_at(self) -> dt.datetime | None: ...
    @property
    def last_beat_at(self) -> dt.datetime | None: ...
    @property
    def run_id(self) -> int | None: ...
    @property
    def reminder(self) -> int: ...
    @property
    def detected_at(self) -> dt.datetime: ...
    @property
    def message(self) -> str: ...


class OverdueTopics:
    """Makes the channels of topics; one object a process, with one connection to the brokers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._emitter: Emitter | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def channel(self, name: str, topic: str) -> OverdueTopic:
        """The channel of one topic.

        Topic and schema are made as soon as brokers and registry answer: agents can subscribe before the first alert.
        """
        made = OverdueTopic(name, topic, self._opened())
        threading.Thread(target=self._prepare, args=(made,), name=f"rowcall-{topic}", daemon=True).start()
        return made

    def close(self) -> None:
        """Close every connection."""
        self._closed.set()
        if self._emitter is not None:
            self._emitter.close()

    def _opened(self) -> Emitter:
        with self._lock:
            if self._emitter is None:
                self._emitter = Emitter(self._settings, delivery_seconds=_DELIVERY_SECONDS)
            return self._emitter

    def _prepare(self, channel: OverdueTopic) -> None:
        while not self._closed.is_set():
            try:
                channel.prepare()
                return
            except (Outage, ConfigurationError) as error:
                _log.warning("the topic %s is not ready: %s", channel.topic, error,
                             extra={"action": "overdue_topic_waits", "topic": channel.topic})  # fmt: skip
                self._closed.wait(_PAUSE_SECONDS)


class OverdueTopic:
    """A channel that puts alerts onto one topic."""

    def __init__(self, name: str, topic: str, emitter: Emitter) -> None:
        self.name = name
        self.topic = topic
        self._emitter = emitter
        self._ready = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make topic and schema, once.

        Raises:
            ConfigurationError, Outage: as `Emitter.prepare`.
        """
        with self._lock:
            if not self._ready:
                self._emitter.prepare([(self.topic, SCHEMA)])
                self._ready = True

    def send(self, alert: Told) -> None:
        """Put it onto the topic and wait for the brokers.

        Raises:
            Outage: brokers or registry do not answer; send the same alert again.
            ConfigurationError: they refuse it for good.
        """
        self.prepare()
        self._emitter.emit([event(alert, self.topic)])


def event(alert: Told, topic: str) -> Produced:
    """The event of an alert; the same each time."""
    record: dict[str, Any] = {
        "subject": _clean(alert.subject), "kind": _clean(alert.kind), "state": _clean(alert.state),
        "previous_state": _clean(alert.previous_state), "due_at": alert.due_at, "last_beat_at": alert.last_beat_at,
        "run_id": alert.run_id, "reminder": alert.reminder, "detected_at": alert.detected_at,
        "message": _clean(alert.message[:_MESSAGE_LENGTH]),
    }  # fmt: skip
    return Produced(topic, record["subject"], record, alert.id, alert.detected_at, event_type=record["state"],
                    schema=SCHEMA)  # fmt: skip


def _clean(text: str) -> str:
    """Without what neither brokers nor the database store: NUL and halves of characters."""
    return "".join("�" if character == "\x00" or "\ud800" <= character <= "\udfff" else character for character in text)
