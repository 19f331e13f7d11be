"""An alert in the words of a channel: as a document for programs, as a subject and a text for people.

What it says comes from names of agents and errors of runs: it is cleaned here, once, so that no channel is led astray.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from consumer.watchdog.alert import Alert

MESSAGE_LENGTH: Final = 10_000
"""Characters of a message; an environment variable and a mail must both hold it."""
SUBJECT_LENGTH: Final = 150


def document(alert: Alert) -> dict[str, Any]:
    """The alert as JSON knows it: times in ISO 8601 and UTC, null where there is none."""
    return {
        "id": str(alert.id),
        "subject": one_line(alert.subject),
        "kind": one_line(alert.kind),
        "state": one_line(alert.state),
        "previous_state": one_line(alert.previous_state),
        "due_at": moment(alert.due_at),
        "last_beat_at": moment(alert.last_beat_at),
        "run_id": alert.run_id,
        "reminder": alert.reminder,
        "detected_at": moment(alert.detected_at),
        "message": lines(alert.message),
    }


def headline(alert: Alert) -> str:
    """One line for people: what is how."""
    again = f" (reminder {alert.reminder})" if alert.reminder else ""
    return one_line(f"{alert.subject} is {alert.state}{again}")[:SUBJECT_LENGTH]


def text(alert: Alert) -> str:
    """A few lines for people."""
    told = document(alert)
    rows = [
        ("subject", told["subject"]),
        ("state", f"{told['state']} (before: {told['previous_state']})"),
        ("due at", told["due_at"]),
        ("last heard of", told["last_beat_at"] or "never"),
        ("run", told["run_id"]),
        ("noticed at", told["detected_at"]),
        ("reminder", told["reminder"] or None),
        ("alert", told["id"]),
    ]
    return f"{told['message']}\n\n" + "".join(f"{name}: {value}\n" for name, value in rows if value is not None)


def moment(at: dt.datetime | None) -> str | None:
    """A time in UTC, to the millisecond."""
    if at is None:
        return None
    return at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(value: str) -> str:
    """Without line ends, control characters and halves of characters."""
    return "".join(character if character.isprintable() else " " for character in value)


def lines(value: str) -> str:
    """The same, with line ends kept and a limit to its length."""
    return "\n".join(map(one_line, value[:MESSAGE_LENGTH].splitlines()))
