"""From levels to events: one event an episode, level and turn, with confirmation, hysteresis and cooldown.

An episode begins when a level is raised and ends when it has recovered; a level that was reached stays until then.
Time is that of the values, so a replay decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from producers.drift.detectors import CRITICAL, LEARNING, OK, WARNING

NAMES: Final = ("ok", "warning", "critical")


class Turn(NamedTuple):
    """What is to be told: level 1 or 2, `raised` or `recovered`, the state before, and which reminder or silence it is,
    if one.
    """

    level: int
    turn: str
    previous: str
    episode: int
    began_at: float
    at: float
    reminder: int = 0
    silence: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """How many readings confirm a level and a recovery; seconds without a raise after one; seconds after which a
    critical episode is told again (0: never).
    """

    confirm: int
    recover: int
    cooldown: float
    remind: float = 0.0


class Alarm:
    """The state of one segment."""

    __slots__ = ("above", "began_at", "below", "cooldown_until", "number", "raised", "reminders", "silences",
                 "silent_at", "state", "told_at")  # fmt: skip

    def __init__(self) -> None:
        self.state = "warming"
        self.raised = OK
        self.number = 0
        self.above, self.below = 0, 0
        self.began_at, self.cooldown_until = 0.0, 0.0
        self.told_at, self.reminders = 0.0, 0
        self.silences, self.silent_at = 0, 0.0

    def step(self, level: int, at: float, rules: Rules) -> list[Turn]:
        """Take the detector's level; what is to be told, warnings before criticals."""
        if level == self.raised and (level or self.state == "ok"):
            self.above = self.below = 0
            self.state = NAMES[level]
            return self._remind(at) if level == CRITICAL and 0 < rules.remind <= at - self.told_at else []
        if level == LEARNING:
            self.state = NAMES[self.raised] if self.raised else "warming"
            return []
        if level > self.raised:
            self.below, self.above = 0, self.above + 1
            if at < self.cooldown_until and not self.raised:
                self.state = "cooldown"
                return []
            return self._raise(level, at) if self.above >= rules.confirm else []
        self.above = 0
        if level == OK and self.raised:
            self.below += 1
            return self._recover(at, rules) if self.below >= rules.recover else []
        self.below = 0
        self.state = NAMES[self.raised] if self.raised else "cooldown" if at < self.cooldown_until else "ok"
        return []

    def fall_silent(self, at: float, *, tell: bool) -> list[Turn]:
        """No value for too long. What was raised stays raised; a silence that is told is told once."""
        before, self.state = self.state, "no_data"
        if not tell or self.silent_at:
            return []
        self.silences, self.silent_at = self.silences + 1, at
        return [Turn(WARNING, "raised", before, self.number, at, at, silence=self.silences)]

    def end_silence(self, at: float) -> list[Turn]:
        """A value has come; the end of a silence that was told."""
        began, self.silent_at = self.silent_at, 0.0
        return [Turn(WARNING, "recovered", "no_data", self.number, began, at, silence=self.silences)]

    def begin_anew(self, at: float) -> list[Turn]:
        """The baseline is given up: what was raised has recovered, and nothing is known until one is learned."""
        turns = self._recover(at, Rules(1, 1, 0.0)) if self.raised else []
        self.state, self.above, self.below, self.cooldown_until = "warming", 0, 0, 0.0
        return turns

    def dump(self) -> list[Any]:
        """As JSON."""
        return [self.state, self.raised, self.number, self.above, self.below, self.began_at, self.cooldown_until,
                self.told_at, self.reminders, self.silences, self.silent_at]  # fmt: skip

    def load(self, state: list[Any]) -> None:
        """Take what `dump` gave."""
        self.state, self.raised, self.number, self.above, self.below, self.began_at, self.cooldown_until = state[:7]
        # States of before there were reminders, or told silences, have none.
        self.told_at, self.reminders = state[7:9] or (self.began_at, 0)
        self.silences, self.silent_at = state[9:] or (0, 0.0)

    def _raise(self, level: int, at: float) -> list[Turn]:
        if not self.raised:
            self.number += 1
            self.began_at = at
        turns = []
        for reached in range(self.raised + 1, level + 1):
            turns.append(Turn(reached, "raised", self.state, self.number, self.began_at, at))
            self.state = NAMES[reached]
        self.raised, self.above = level, 0
        self.told_at, self.reminders = at, 0
        return turns

    def _remind(self, at: float) -> list[Turn]:
        self.told_at, self.reminders = at, self.reminders + 1
        return [Turn(CRITICAL, "raised", self.state, self.number, self.began_at, at, self.reminders)]

    def _recover(self, at: float, rules: Rules) -> list[Turn]:
        turns = [Turn(level, "recovered", NAMES[self.raised], self.number, self.began_at, at)
                 for level in range(self.raised, OK, -1)]  # fmt: skip
        self.raised, self.below = OK, 0
        self.cooldown_until = at + rules.cooldown
        self.state = "cooldown" if rules.cooldown else "ok"
        return turns
