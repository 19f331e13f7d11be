"""Wakes the claim loop: by the database's hint that work has come, by freed capacity, or by time.

A hint is only a hint: a lost one costs at most one idle pause. The listener has a connection of its own and makes a new
one when it breaks.
"""

from __future__ import annotations

import asyncio
import logging

from consumer import db
from consumer.errors import RowcallError

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 2.0


class Wake:
    """An event with a listener behind it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._event = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start listening for hints."""
        self._listener = asyncio.create_task(self._listen(), name="work hints")

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def set(self) -> None:
        """Wake the loop now."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Return when woken, or after `seconds`; whether it was woken."""
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                return False
        woken = self._event.is_set()
        self._event.clear()
        return woken

    async def _listen(self) -> None:
        while True:
            try:
                await db.listen(self._url, "work hints", b"LISTEN rowcall_work", self.set)
            except RowcallError as error:
                _log.warning("no hints from the database: %s", error, extra={"action": "listen_failed"})
            await asyncio.sleep(_RECONNECT_SECONDS)
            self.set()
