"""What observers hand to `decide`: one subject each, with the faults it has or will have, and the moment of each.

Before it, a query of `observe` has brought the facts; after it `decide` takes the worst fault whose moment has come.
Writes nothing. Promises: a fault's moment depends on what was observed alone, never on when somebody looked.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from consumer.settings import Settings

# Missed beats are counted from a little after the beat was due: each comes late by the time its own write takes.
_TOLERANCE_SECONDS: Final = 2.0
# Failures are over when there was none for so long; otherwise one in a hundred runs would be told a hundred times.
_CALM_SECONDS: Final = 300.0
# Clocks are read in different statements of different sessions; what lies further ahead than this is wrong.
FUTURE_SECONDS: Final = 5.0

BAD: Final = ("failed", "overdue", "stuck", "no_output", "late")
"""States that mean a fault, the worst first."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How long silence may last, in seconds, and how often something may be missed.

    Args:
        start_grace: after the moment at which something should have begun or been heard of.
        run_grace: after a run's lease or deadline has ended and nobody took it over.
        wait: how long a run that could be claimed may wait.
        stuck: how long beats may come without progress.
        misses: beats or looks in a row that may fail before it counts.
        output: how long a run without output is held before it is told.
    """

    start_grace: float = 30.0
    run_grace: float = 60.0
    wait: float = 900.0
    stuck: float = 60.0
    misses: int = 3
    output: float = 300.0
    calm: float = _CALM_SECONDS
    tolerance: float = _TOLERANCE_SECONDS
    future: float = FUTURE_SECONDS

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """Those that the settings give."""
        return cls(
            start_grace=settings.watchdog_grace_seconds,
            run_grace=settings.watchdog_run_grace_seconds,
            wait=settings.watchdog_wait_seconds,
            stuck=settings.watchdog_stuck_seconds,
            misses=settings.watchdog_misses,
            output=settings.watchdog_output_seconds,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A state that something is in from the moment `at` on, which may lie ahead; `message` says what to do."""

    state: str
    at: dt.datetime
    message: str
    run_id: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One subject as it was found.

    Args:
        subject: kind, colon and name.
        last_beat_at: when it was last heard of.
        due_at: when it is to be heard of next.
        faults: what is wrong with it or will be.
        heard: false for what has never given a sign and needs not yet.
        paused: a person has stopped it elsewhere; nothing is expected of it.
        note: what goes with its being well.
    """

    subject: str
    last_beat_at: dt.datetime | None = None
    due_at: dt.datetime | None = None
    faults: tuple[Fault, ...] = ()
    heard: bool = True
    paused: bool = False
    note: str = ""

    @property
    def kind(self) -> str:
        """The part of the subject before the colon."""
        return self.subject.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Known:
    """A subject as the database has it; `told` where somebody knows of the state it is in."""

    subject: str
    state: str = "new"
    told: bool = False
    paused: bool = False
    message: str = ""
    due_at: dt.datetime | None = None
    reminders: int = 0
    reminded_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """Something the code declares and the database may not know yet, such as a schedule that no scheduler has read.

    `first` is when it is to be heard of at the latest, without grace; `what` says how it would be.
    """

    subject: str
    first: dt.datetime
    what: str


def moment(at: dt.datetime) -> str:
    """A time as messages name it."""
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
