"""An alert: what the watchdog tells a channel about one flip of something it watches.

Before it, `store` has recorded the flip; after it, each channel sends the alert by itself. Writes nothing. Promises:
the same flip and reminder has the same ID in each channel and each time it is sent.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

__all__ = ["Alert", "Channel", "Listener", "of_flip"]
_NAMESPACE: Final = uuid.UUID("6f0f6e3e-6f6b-5a3c-9b53-0d8f1a6f2c11")


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


class Listener(Channel, Protocol):
    """A channel together with what it is to be told of."""

    def wants(self, alert: Alert) -> bool:
        """Whether it is told of this alert at all; asked when the alert is made, not when it is sent."""


def of_flip(row: Mapping[str, Any], *, reminder: int, message: str) -> Alert:
    """The alert about a flip, `row` as the database has it."""
    subject = row["subject"]
    return Alert(
        id=uuid.uuid5(_NAMESPACE, f"{row['flip']} {subject} {row['at'].isoformat()} {reminder}"),
        subject=subject,
        kind=subject.partition(":")[0],
        state=row["new_state"],
        previous_state=row["old_state"],
        due_at=row["due_at"],
        last_beat_at=row["last_beat_at"],
        run_id=row["run_id"],
        reminder=reminder,
        detected_at=row["at"],
        message=message,
    )
