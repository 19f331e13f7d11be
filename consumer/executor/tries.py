"""A step's function, called as often as its retry policy says, each time within its timeout.

Comes before the checkpoint: `context` keeps what is returned here, and nothing else of the tries.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from consumer.agents.door import Retry
from consumer.errors import AgentError, HttpRetryable, ModelRetryable, StepTimeout
from consumer.executor.threads import in_thread

_log = logging.getLogger(__name__)


async def tried(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    retry: Retry | None,
    seconds: float | None,
    labels: dict[str, object],
    again: Callable[[], None],
) -> Any:
    """What `function` returns, at its first try that succeeds; `again` is called before every other one.

    A thread cannot be ended: a synchronous function that overruns goes on beside whatever comes next, and what it
    returns or raises then goes nowhere.

    Raises:
        StepTimeout: the last try did not end within `seconds`.
        AgentError: `seconds` is no positive number.
    """
    if seconds is not None and not seconds > 0:
        raise AgentError(f"step {name!r}: timeout_seconds must be more than 0, not {seconds!r}")
    tries = 0
    while True:
        tries += 1
        try:
            return await _once(name, function, arguments, seconds)
        except Exception as error:
            wish = error.retry_after_seconds if isinstance(error, HttpRetryable | ModelRetryable) else None
            # A server that wants to be left alone for longer is asked by a later attempt.
            if retry is None or not retry.repeats(error, tries) or (wish or 0.0) > retry.cap_seconds:
                raise
            pause = retry.delay(tries, at_least=wish)
            _log.warning(
                "step %r failed in try %d of %d, again in %.1f s: %s: %s",
                name, tries, retry.attempts, pause, type(error).__name__, error,
                extra={"action": "step_retry", "step": name, **labels},
            )  # fmt: skip
        await asyncio.sleep(pause)
        again()


async def _once(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            value = await in_thread(function, *arguments)
            return await value if inspect.isawaitable(value) else value
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StepTimeout(f"step {name!r} did not end within its timeout of {seconds:g} s") from error
