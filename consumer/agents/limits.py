"""What an agent's code says of its limits, checked and in the form in which the database reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from consumer.errors import ConfigurationError
from consumer.records.money import read_money
from consumer.records.rates import read_rate

PRIORITIES: Final = range(-100, 101)
# The most that fits the columns, and more than any fleet has.
_MOST: Final = 1_000_000


class Limited(Protocol):
    """The options of an agent that limit it; see `Agent`."""

    name: str
    concurrency: int | None
    rate: str | None
    priority: int
    storm: int | None
    run_tokens: int | None
    run_money: str | None
    root_tokens: int | None
    root_money: str | None


def limit_options(agent: Limited) -> dict[str, Any]:
    """Those that are set, as the database reads them.

    Raises:
        ConfigurationError: naming the option that cannot be one, and what it may be.
    """
    options: dict[str, Any] = {}
    for name in ("concurrency", "storm", "run_tokens", "root_tokens"):
        value = getattr(agent, name)
        most = 10**15 if name.endswith("tokens") else _MOST
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise _wrong(agent, name, value, f"must be a whole number from 1 to {most:,}, or None for no limit")
        options[name] = value
    if type(agent.priority) is not int or agent.priority not in PRIORITIES:
        raise _wrong(agent, "priority", agent.priority, "must be a whole number from -100 to 100")
    options["priority"] = agent.priority or None
    rate = None if agent.rate is None else _read(agent, "rate", read_rate)
    options["rate_runs"] = None if rate is None else rate.count
    options["rate_seconds"] = None if rate is None else rate.seconds
    for name in ("run_money", "root_money"):
        options[name] = None if getattr(agent, name) is None else _read(agent, name, read_money)
    return {name: value for name, value in options.items() if value is not None}


def _read(agent: Limited, name: str, read: Callable[[str], Any]) -> Any:
    value = getattr(agent, name)
    if not isinstance(value, str):
        raise _wrong(agent, name, value, "must be text")
    try:
        return read(value)
    except ValueError as error:
        raise _wrong(agent, name, value, str(error)) from error


def _wrong(agent: Limited, name: str, value: object, why: str) -> ConfigurationError:
    return ConfigurationError(f"agent {agent.name}: {name}={value!r}: {why}")
