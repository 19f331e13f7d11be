"""Monitors that see nothing: a topic that is not there, values of which none is taken, a query that is refused.

Called by the loop; before it, a source was looked at. Writes into rowcall.drift_monitors why, and `rowcall drift list`
shows it. Promises: each reason is logged at most once a minute, and taken back when it holds no more.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from producers.drift.monitors import Monitor
from producers.drift.upkeep import Upkeep

_log = logging.getLogger(__name__)
MINUTE: Final = 60.0
_FED: Final = "fed"
# Why values are left out that point to a fault of the monitor or its source. A NULL is none.
_FAULTS: Final = ("unknown_column", "refused", "undecodable", "ahead", "late")


class Blind:
    """Of one process's monitors."""

    def __init__(self, upkeep: Upkeep, monitors: Sequence[Monitor]) -> None:
        self._upkeep = upkeep
        self._monitors = list(monitors)
        self._why: dict[str, dict[str, str]] = defaultdict(dict)
        self._logged: dict[tuple[str, str], float] = {}
        self._met: Counter[tuple[str, str]] = Counter()
        self._judged: float | None = None

    def topics(self, wanted: Iterable[str], found: Iterable[str], now: float) -> None:
        """Which of the topics that are watched here exist."""
        watched, there = set(wanted), set(found)
        for monitor in self._monitors:
            if monitor.topic is None or monitor.topic not in watched:
                continue
            if monitor.topic in there:
                self._end(monitor, "topic")
            else:
                self._say(monitor, "topic", f"the topic {monitor.topic} does not exist; it is waited for", now)

    def query(self, monitor: Monitor, error: str | None) -> None:
        """A query was refused, or answered where there is no error."""
        if error is None:
            self._end(monitor, "query")
        else:
            self._why[monitor.name]["query"] = error
            self._write(monitor)

    def met(self, counted: Mapping[tuple[str, str], int]) -> None:
        """What became of values: by monitor or topic, and outcome."""
        self._met.update(counted)

    def look(self, now: float) -> None:
        """Once a minute: monitors that had values and took none."""
        if self._judged is None:
            self._judged = now
        if now - self._judged < MINUTE:
            return
        met, self._met, self._judged = self._met, Counter(), now
        for monitor in self._monitors:
            if met[monitor.name, _FED]:
                self._end(monitor, "values")
                continue
            out = {word: met[monitor.name, word] + met[monitor.topic or "", word] for word in _FAULTS}
            if any(out.values()):
                words = ", ".join(f"{word} {count}" for word, count in out.items() if count)
                what = f"; its value is {monitor.value}" if monitor.value else ""
                self._say(monitor, "values", f"no value of the last minute was taken: {words}{what}", now)

    def _say(self, monitor: Monitor, kind: str, text: str, now: float) -> None:
        self._why[monitor.name][kind] = text
        last = self._logged.get((monitor.name, kind))
        if last is None or now - last >= MINUTE:
            self._logged[monitor.name, kind] = now
            _log.warning("monitor %s: %s", monitor.name, text,
                         extra={"action": "drift_sees_nothing", "monitor": monitor.name})  # fmt: skip
            self._write(monitor)

    def _end(self, monitor: Monitor, kind: str) -> None:
        self._logged.pop((monitor.name, kind), None)
        if self._why[monitor.name].pop(kind, None) is None:
            # What an earlier process said of it is of the past too.
            if not self._why[monitor.name]:
                self._upkeep.answered(monitor)
            return
        self._write(monitor)

    def _write(self, monitor: Monitor) -> None:
        if why := "; ".join(self._why[monitor.name].values()):
            self._upkeep.refused(monitor, why)
        else:
            self._upkeep.answered(monitor)
