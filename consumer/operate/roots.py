"""All that one event has set off, moved together: letting parked causation loops go on, or ending everything.

Each run is moved by itself, in a transaction of its own with its own audit row; what has moved meanwhile is left as it
is and named. Stopping in between and repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consumer import db
from consumer.errors import OperatorError
from consumer.operate.act import Act, every, one
from consumer.operate.runs import Moved, cancel, retry


@dataclass(frozen=True, slots=True)
class RootMoved:
    """What was moved, and one sentence for each run that could not be."""

    root: str
    moved: Sequence[Moved]
    left: Sequence[str]


def retry_root(session: db.SyncSession, root: str, act: Act, *, from_start: bool = False) -> RootMoved:
    """Let the parked causation loops of a root go on, each by one run: what they cause is judged anew.

    Raises:
        OperatorError: nothing was ever caused by such a root.
    """
    return _each(session, root, "parked_of_root", lambda job: retry(session, job, act, from_start=from_start))


def cancel_root(session: db.SyncSession, root: str, act: Act) -> RootMoved:
    """End all that a root has set off and that has not ended.

    Raises:
        OperatorError: nothing was ever caused by such a root.
    """
    return _each(session, root, "live_of_root", lambda job: cancel(session, job, act))


def _each(session: db.SyncSession, root: str, query: str, act: Callable[[int], Moved]) -> RootMoved:
    known = one(session, "known_root", {"root": root})
    if known is None or not known["found"]:
        raise OperatorError(
            f"no run was caused by a root {root!r}; `rowcall jobs show` names a run's root as root_event"
        )
    moved: list[Moved] = []
    left: list[str] = []
    for row in every(session, query, {"root": root}):
        try:
            moved.append(act(row["id"]))
        except OperatorError as error:
            left.append(str(error))
    return RootMoved(root, moved, left)
