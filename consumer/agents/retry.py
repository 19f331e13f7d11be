"""When an agent, or one step of it, is tried again: how often, after which pause, for which errors.

Pure: the executor asks it. What the class tree of errors decides by itself (a refused value, a lost lease, a verdict of
the agent) no policy turns into a retry.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from consumer.errors import (
    AgentError,
    ConfigurationError,
    DataRefused,
    EffectUnknown,
    HttpBlocked,
    HttpRefused,
    LeaseLost,
    ModelFatal,
    ModelInvalid,
    ModelUnavailable,
    RunCancelled,
    StaleRow,
    Verdict,
)

Errors = type[BaseException] | tuple[type[BaseException], ...]

# What the same call would meet again, or what is decided already.
_FINAL: Final = (
    *(AgentError, DataRefused, EffectUnknown, HttpBlocked, HttpRefused, LeaseLost, ModelFatal, ModelInvalid),
    *(ModelUnavailable, RunCancelled, StaleRow, Verdict),
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter, durations in seconds.

    Args:
        base_seconds: pause after the first try.
        cap_seconds: longest pause.
        factor: how much longer each pause is than the one before.
        jitter: which part of a pause is left to chance: 0.5 gives between half and the whole of it.
        attempts: tries in all, the first one included.
        only: classes of errors that are tried again; none means all.
        never: classes of errors that are not, also where `only` has a base class of them.

    Raises:
        ConfigurationError: naming the value that makes no sense.
    """

    base_seconds: float = 2.0
    cap_seconds: float = 300.0
    factor: float = 2.0
    jitter: float = 0.5
    attempts: int = 5
    only: Errors = ()
    never: Errors = ()

    def __post_init__(self) -> None:
        for name, least, most in (
            ("base_seconds", 0.0, math.inf), ("cap_seconds", 0.0, math.inf), ("factor", 1.0, 1000.0),
            ("jitter", 0.0, 1.0), ("attempts", 1, 1_000_000),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or not least <= value <= most:
                raise ConfigurationError(f"Retry({name}={value!r}): must be a number from {least:g} to {most:g}")
        if type(self.attempts) is not int:
            raise ConfigurationError(f"Retry(attempts={self.attempts!r}): must be a whole number")
        for name in ("only", "never"):
            for item in _classes(getattr(self, name)):
                if not isinstance(item, type) or not issubclass(item, BaseException):
                    raise ConfigurationError(f"Retry({name}=…): {item!r} is no class of errors")

    def delay(self, attempt: int, *, at_least: float | None = None) -> float:
        """The pause after this attempt, in seconds; never less than `at_least`."""
        whole = min(self.cap_seconds, self.base_seconds * self.factor ** min(attempt - 1, 30))
        return max(whole * random.uniform(1.0 - self.jitter, 1.0), at_least or 0.0)

    def takes(self, error: BaseException) -> bool:
        """Whether `only` and `never` let this error be tried again."""
        return not isinstance(error, _classes(self.never)) and (
            not _classes(self.only) or isinstance(error, _classes(self.only))
        )

    def repeats(self, error: BaseException, tries: int) -> bool:
        """Whether a step that has failed `tries` times, now with `error`, is tried once more."""
        return tries < self.attempts and not isinstance(error, _FINAL) and self.takes(error)


def _classes(errors: Errors) -> tuple[type[BaseException], ...]:
    return errors if isinstance(errors, tuple) else (errors,)
