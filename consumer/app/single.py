"""A process of one loop that runs in a thread of its own: schedulers, detectors and the like.

Like `process`, without agents: settings → telemetry → health server → database and schema → the loop. Promises: an
outage is waited for with a growing pause; what an operator must mend ends the process; SIGTERM lets the loop end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from consumer import heartbeats, telemetry
from consumer.app.process import check_schema, patiently
from consumer.app.stop import Stop
from consumer.settings import Settings


def run_loop(
    settings: Settings, name: str, work: Callable[[Settings, threading.Event], None], *, database: bool = True
) -> int:
    """Run `work` until told to stop; 0, the exit code. `name` shows on /readyz.

    `work` returns once its event is set, and may raise Outage or TransactionConflict to be begun again. `database` is
    false for loops that need none.

    Raises:
        ConfigurationError: an operator must change something.
    """
    telemetry.configure(settings)
    telemetry.BUILD.set(1, version=version("rowcall"))
    server = telemetry.serve(settings)
    try:
        return asyncio.run(_main(settings, name, work, database=database))
    finally:
        server.close()


async def _main(
    settings: Settings, name: str, work: Callable[[Settings, threading.Event], None], *, database: bool
) -> int:
    telemetry.HEALTH.report("process", ready=False, detail="starting")
    stop = Stop()
    stop.listen()
    if database and await patiently("schema", lambda: asyncio.to_thread(check_schema, settings), stop) is None:
        return 0
    telemetry.HEALTH.report("process", ready=True, detail="running")
    loop = asyncio.get_running_loop()
    beating = heartbeats.Heartbeats(
        settings.database_url.get_secret_value(), [name], seconds=settings.heartbeat_seconds
    )
    if database:
        beating.start()
    try:
        with ThreadPoolExecutor(1, thread_name_prefix=f"rowcall-{name}") as thread:
            await patiently(name, lambda: loop.run_in_executor(thread, work, settings, stop.thread_event), stop)
    finally:
        if database:
            await asyncio.to_thread(beating.stop)
    return 0
