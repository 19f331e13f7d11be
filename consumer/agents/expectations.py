"""What an agent's code says of the runs expected of it, checked and in the form in which the watchdog reads it."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, Protocol

from consumer.errors import ConfigurationError

_LONGEST: Final = dt.timedelta(days=3660)
_MOST_MISSES: Final = 1000


class Watched(Protocol):
    """The options of an agent that the watchdog reads; see `Agent`."""

    name: str
    expect_every: dt.timedelta | None
    start_grace: dt.timedelta | None
    run_grace: dt.timedelta | None
    misses: int
    empty_output: Any


def expectation_options(agent: Watched) -> dict[str, Any]:
    """Those that are set, durations in seconds.

    Raises:
        ConfigurationError: naming the option that cannot be one, and what it may be.
    """
    options: dict[str, Any] = {}
    for name, least in (("expect_every", dt.timedelta(seconds=1)), ("start_grace", dt.timedelta()),
                        ("run_grace", dt.timedelta())):  # fmt: skip
        value = getattr(agent, name)
        if value is None:
            continue
        if not isinstance(value, dt.timedelta) or not least <= value <= _LONGEST:
            raise _wrong(agent, name, f"must be a timedelta from {least} to {_LONGEST.days} days")
        options[name] = value.total_seconds()
    if agent.start_grace is not None and agent.expect_every is None:
        raise _wrong(agent, "start_grace", "says how late a run may be, and needs expect_every to say when it is due")
    if type(agent.misses) is not int or not 1 <= agent.misses <= _MOST_MISSES:
        raise _wrong(agent, "misses", f"must be a whole number from 1 to {_MOST_MISSES}")
    if agent.empty_output not in ("alert", "allow"):
        raise _wrong(agent, "empty_output", "must be alert or allow")
    if agent.misses != 1:
        options["misses"] = agent.misses
    if agent.empty_output != "alert":
        options["empty_output"] = agent.empty_output
    return options


def _wrong(agent: Watched, name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"agent {agent.name}: {name}={getattr(agent, name)!r} {why}")
