"""Roles that agents or monitors need and of which no process beats: one subject a role, however many processes it had.

Before it, a query of `observe`; after it, `decide`. Pure. Promises: a role that nothing needs is not missed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from consumer.watchdog.observation import Fault, Observation, Rules, moment

_NEEDS: Final = {
    "intake": ("agents have topics", "`rowcall worker` or `rowcall intake`"),
    "drift": ("drift monitors are not retired", "`rowcall drift run`"),
}


def needed(row: Mapping[str, Any], rules: Rules) -> Observation:
    """The processes of a role that something needs, as a whole."""
    heard, role = row["at"], row["role"]
    due = row["since"] if heard is None else max(row["since"], row["silent_at"])
    last = "no process of it beats" if heard is None else f"the last one beat at {moment(heard)}"
    needs, start = _NEEDS[role]
    message = (
        f"{row['needed']} {needs}, and {role} is gone ({last}); start {start}, or `rowcall watchdog pause fleet:{role}`"
    )
    fault = Fault("overdue", due + dt.timedelta(seconds=rules.start_grace), message)
    return Observation(f"fleet:{role}", heard, due, (fault,), heard=heard is not None, note=f"{role} beats")
