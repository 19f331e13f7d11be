"""The outside dead-man's switch: a URL that is asked for while the watchdog works, and rings when that stops.

The loop calls `round_done` after each complete round, which never waits; a thread of its own asks for the URL, at most
once in so many seconds. A URL that hangs or refuses is logged and counted, and changes nothing else.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from consumer import telemetry
from consumer.errors import RowcallError
from consumer.watchdog.channels import request

_log = logging.getLogger(__name__)
_DEADLINE_SECONDS: Final = 10.0


class Ping:
    """Asks for one URL."""

    def __init__(self, url: str, *, every_seconds: float, deadline_seconds: float = _DEADLINE_SECONDS) -> None:
        """`every_seconds` is the least pause between two pings.

        Raises:
            ConfigurationError: the URL is no http or https URL.
        """
        self._shown = request.shown(url)
        self._url = url
        self._every = every_seconds
        self._deadline = deadline_seconds
        self._round = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rowcall-ping", daemon=True)
        self._thread.start()

    def round_done(self) -> None:
        """Say that a round is complete; returns at once."""
        self._round.set()

    def close(self) -> None:
        """End the thread; a ping under way is not waited for."""
        self._stop.set()
        self._round.set()
        self._thread.join(0.5)

    def _run(self) -> None:
        while True:
            self._round.wait()
            if self._stop.is_set():
                return
            self._round.clear()
            self._ping()
            if self._stop.wait(self._every):
                return

    def _ping(self) -> None:
        try:
            answer = request.send("GET", self._url, dependency="ping", seconds=self._deadline)
        except RowcallError as error:
            self._failed(str(error))
        else:
            if answer.ok:
                telemetry.WATCHDOG_PINGS.add(result="answered")
            else:
                self._failed(f"{self._shown} answered {answer.status}")

    def _failed(self, said: str) -> None:
        telemetry.WATCHDOG_PINGS.add(result="failed")
        _log.warning("the outside switch was not reached: %s (ROWCALL_WATCHDOG_PING_URL)", said,
                     extra={"action": "watchdog_ping_failed"})  # fmt: skip
