"""What an agent's definition says about its trigger beside the function: watched columns, coalescing.

Column lists are compiled into the trigger when the agent is made, so that intake asks one function either way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumer.records import Change

_LONGEST: Final = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Coalesce:
    """Changes of one key that come within `window` become one run, which sees the latest of them.

    The first makes the job, which is due when the window is over; each later one is taken in while the job has not
    been claimed. The job's `before` stays that of the first, so that the run sees the whole way.

    Args:
        window: how long the first change waits for others; with `max_wait`, each change waits that long anew.
        latest: whether the run sees the latest row; False keeps the first and only counts and records the others.
        max_wait: the longest time from the first change until the job is due, so that a busy key is not starved.
            None is the window itself: it then never moves.
    """

    window: dt.timedelta
    latest: bool = True
    max_wait: dt.timedelta | None = None

    @property
    def longest(self) -> dt.timedelta:
        """From the first change until the job is due at the latest."""
        return self.window if self.max_wait is None else self.max_wait


def coalesce_fault(rule: Coalesce | None) -> str | None:
    """What is wrong with a rule, in words."""
    if rule is None:
        return None
    if not dt.timedelta(0) < rule.window <= _LONGEST:
        return f"Coalesce(window) must be above 0 and at most {_LONGEST.days} days"
    if not rule.window <= rule.longest <= _LONGEST:
        return f"Coalesce(max_wait) must be at least the window and at most {_LONGEST.days} days"
    return None


def columns_fault(columns: object) -> str | None:
    """What is wrong with a list of columns, in words."""
    if isinstance(columns, str):
        return f'columns is one text; write columns=["{columns}"]'
    if not isinstance(columns, list | tuple | set | frozenset):
        return f"columns must be a list of names, not {type(columns).__name__}"
    wrong = [name for name in columns if not isinstance(name, str) or not name]
    return f"columns holds {wrong[0]!r}, which is no column's name" if wrong else None


def watching(columns: Sequence[str], when: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    """The trigger of an agent that watches these columns: `when`, asked only about changes that touched one.

    Events have no columns and go straight to `when`.
    """
    names = tuple(columns)

    def touched(message: Any) -> bool:
        if isinstance(message, Change) and not message.changed(*names):
            return False
        return when is None or bool(when(message))

    return touched
