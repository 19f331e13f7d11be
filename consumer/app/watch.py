"""Two watches: on the event loop, from a thread of its own, and on the database, for /readyz.

An agent that blocks the loop (a synchronous sleep, a long computation) stops every run and every beat of the process.
It cannot be interrupted, but it is named with its stack in the log, measured, and after 30 s /healthz fails.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Final, Self

from consumer import db, telemetry
from consumer.app.stop import Stop
from consumer.errors import Outage, RowcallError

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("capture")

# Often enough to date a block within half a second, seldom enough to cost nothing when idle.
_PULSE_SECONDS: Final = 0.5
# A loop that stands this long has held up hundreds of runs.
_WARN_SECONDS: Final = 1.0
# A fifth of a query a second; /readyz may be asked any number of times.
_DATABASE_SECONDS: Final = 5.0


class LoopWatch:
    """Watches the running event loop while it is entered."""

    def __init__(self, health: telemetry.Health = telemetry.HEALTH) -> None:
        self._pulse = health.loop("event_loop")
        self._ended = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="rowcall-loop-watch", daemon=True)

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat(), name="loop pulse")
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        self._ended.set()
        self._pulse.end()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            await asyncio.sleep(_PULSE_SECONDS)

    def _watch(self) -> None:
        warned = False
        while not self._ended.wait(_PULSE_SECONDS):
            blocked = max(0.0, self._pulse.silence_seconds - _PULSE_SECONDS)
            telemetry.LOOP_BLOCKED_SECONDS.set(blocked)
            if blocked < _WARN_SECONDS:
                warned = False
            elif not warned:
                warned = True
                frame = sys._current_frames().get(self._watched)
                stack = "" if frame is None else "".join(traceback.format_stack(frame, limit=20))
                _log.warning(
                    "the event loop has stood still for %.1f s; something in it blocks",
                    blocked,
                    extra={"action": "loop_blocked", "stack": stack},
                )


async def watch_database(url: str, outbox_slot: str, stop: Stop) -> None:
    """Report to /readyz whether the database answers and the outbox is read, until the process is to stop."""
    session: db.Session | None = None
    try:
        while not stop.requested:
            try:
                if session is None or session.closed:
                    session = await db.connect_async(url, name="watch")
                with db.translated():
                    found = await (await session.execute(_SQL["outbox_slot"], (outbox_slot,))).fetchone()
                telemetry.HEALTH.report("database", ready=True, detail="answers")
                if outbox_slot:
                    slot = f"replication slot {outbox_slot}"
                    exists = found is not None and found["found"]
                    advice = "is there" if exists else "is missing: `rowcall connectors apply`"
                    telemetry.HEALTH.report("outbox", ready=exists, detail=f"{slot} {advice}")
            except RowcallError as error:
                telemetry.HEALTH.report("database", ready=False, detail=str(error))
                if isinstance(error, Outage):
                    telemetry.OUTAGES.add(dependency="database")
            await stop.wait(_DATABASE_SECONDS)
    finally:
        if session is not None:
            await session.close()
