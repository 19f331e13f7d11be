"""Synchronous steps: a daemon thread each.

Not a pool: steps that never end would take its threads from every other run, and would keep the process from ending
when it is told to stop. The runs in flight bound their number.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns or raises, run in a thread of its own in this context."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(outcome: Callable[[Any], None], value: Any) -> None:
        # Whoever waited may be gone: cancelled, or past its deadline.
        if not future.done():
            outcome(value)

    def report(outcome: Callable[[Any], None], value: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle, outcome, value)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody waits any more.
            return

    def work() -> None:
        try:
            value = context.run(function, *arguments)
        except StopIteration as error:
            # A future refuses it, for it would end a generator somewhere else.
            report(future.set_exception, RuntimeError(f"the step raised StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the step is awaited
            report(future.set_exception, error)
        else:
            report(future.set_result, value)

    threading.Thread(target=work, name=f"step {getattr(function, '__name__', 'function')}", daemon=True).start()
    return await future
