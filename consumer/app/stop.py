"""Stopping: the first SIGTERM or SIGINT drains, the second one ends the process at once.

One request reaches both worlds: the executor waits for an asyncio event, the intake thread for one of threading.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from typing import Final

from consumer import telemetry

_log = logging.getLogger(__name__)

INTERRUPTED: Final = 130
"""Exit code of a process that was told twice."""


class Stop:
    """The wish to stop. Created on the event loop; `request` may be called from it alone."""

    def __init__(self) -> None:
        self.event: Final = asyncio.Event()
        self.thread_event: Final = threading.Event()

    def listen(self) -> None:
        """Take SIGTERM and SIGINT over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, signal.Signals(number).name)

    def request(self) -> None:
        """Let every part drain and end."""
        telemetry.HEALTH.report("process", ready=False, detail="draining")
        self.event.set()
        self.thread_event.set()

    @property
    def requested(self) -> bool:
        """Whether the process is to end."""
        return self.event.is_set()

    async def wait(self, seconds: float) -> bool:
        """Wait for the request, at most `seconds`; whether it has come."""
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            return False
        return True

    def _signalled(self, name: str) -> None:
        if self.requested:
            _log.warning("%s again: ending at once, runs are left to their leases", name, extra={"action": "killed"})
            logging.shutdown()
            os._exit(INTERRUPTED)
        _log.info("%s: draining; once more ends at once", name, extra={"action": "stop_requested", "signal": name})
        self.request()
