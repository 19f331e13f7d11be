"""An alert to send, and a server that never comes to an end."""

from __future__ import annotations

import datetime as dt
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from consumer.watchdog.alert import Alert

AT: Final = dt.datetime(2026, 3, 1, 7, 0, tzinfo=dt.UTC)
_OVERDUE: Final = Alert(
    id=uuid.UUID("11111111-2222-4333-8444-555555555555"),
    subject="agent:order-triage",
    kind="agent",
    state="overdue",
    previous_state="late",
    due_at=AT,
    last_beat_at=AT - dt.timedelta(hours=1),
    run_id=None,
    reminder=0,
    detected_at=AT + dt.timedelta(seconds=61),
    message="order-triage should have run at 07:00. Look at `rowcall jobs list`.",
)


def alert(**changed: Any) -> Alert:
    """An agent is overdue, with these fields changed."""
    return replace(_OVERDUE, **changed)


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[int]:
    """A server on a port that says `first` and then `drop` ten times a second, for ever."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(first)
                while not over.wait(0.1):
                    connection.sendall(drop)
            except OSError:
                return

    def accept(listener: socket.socket) -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        accepting = threading.Thread(target=_until, args=(accept, listener, over), daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            accepting.join(5)


def _until(accept: Any, listener: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        accept(listener)
