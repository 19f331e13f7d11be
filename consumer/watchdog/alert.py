"""An alert: what the watchdog tells a channel about one flip of something it watches.

Before it, `store` has recorded the flip; after it, each channel sends the alert by itself. Writes nothing. Promises:
the same flip and reminder has the same ID in each channel and each time it is sent.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Alert", "Channel"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to tell.

    Args:
        id: the same whenever and by whichever channel it is sent.
        subject: what is watched, as `agent:order-triage`, `schedule:daily`, `process:executor`, `connector:rows`.
        kind: the part of the subject before the colon.
        state: what it is now: late, overdue, failed, stuck, no_output, gap, or up and recovered.
        previous_state: what it was before.
        due_at: when it should have been heard of; None where nothing was due.
        last_beat_at: when it was last heard of; None where never.
        run_id: the run it is about, if one.
        reminder: 0 for the first word about it, then 1, 2, …
        detected_at: when the watchdog saw it, by the database's clock.
        message: one or two sentences: what is wrong and what to do.
    """

    id: uuid.UUID
    subject: str
    kind: str
    state: str
    previous_state: str
    due_at: dt.datetime | None
    last_beat_at: dt.datetime | None
    run_id: int | None
    reminder: int
    detected_at: dt.datetime
    message: str


class Channel(Protocol):
    """One way out for alerts."""

    name: str

    def send(self, alert: Alert) -> None:
        """Deliver it, or raise; called again with the same alert where it raised.

        Raises:
            Outage: the other side does not answer or says to come later; trying again can help.
            ConfigurationError: it refuses for good (wrong address, password, command); trying again helps
                only after an operator changed something.
        """
