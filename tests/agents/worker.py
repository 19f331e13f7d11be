"""One executor as a process, for crash tests: settings from the environment, drains on SIGTERM.

`rowcall execute` does this and more (it needs Kafka to activate agents); here the test has written the agents' rows.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from consumer import settings as configuration
from consumer.agents import registry
from consumer.executor.loop import run_executor


async def main() -> None:
    """Run until SIGTERM."""
    settings = configuration.load()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_executor(settings, registry.load(settings), stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main())
