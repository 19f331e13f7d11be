"""What the detectors' process does beside detecting: says which monitors it has, carries out resets, prunes.

Called by the loop between its turns. Promises: a reset is carried out with the states it changes, in parts, and once;
what was told is kept for ROWCALL_DRIFT_KEEP_DAYS after it was sent, and what a retired monitor knew for as long.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumer import db
from producers.drift.engine import Engine, Key
from producers.drift.monitors import Monitor

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("drift", "producers")
_DECLARE_SECONDS: Final = 60.0
_PRUNE_SECONDS: Final = 600.0
_PART: Final = 5000
"""Rows that one statement prunes, and segments that are reset at a time."""


class Upkeep:
    """Of one process's monitors."""

    def __init__(self, session: db.SyncSession, monitors: Sequence[Monitor], keep_days: int) -> None:
        self._session, self._days = session, keep_days
        self._monitors = list(monitors)
        self._declared = self._pruned = 0.0
        self._refused: set[str] = {monitor.name for monitor in monitors}

    def look(self, now: float) -> None:
        """Declare and prune, each in its time."""
        if now - self._declared >= _DECLARE_SECONDS:
            self._declared = now
            self._declare()
        if now - self._pruned >= _PRUNE_SECONDS:
            self._pruned = now
            self._prune()

    def refused(self, monitor: Monitor, error: str) -> None:
        """A monitor sees nothing, as when its query was refused: shown by `rowcall drift list`."""
        self._refused.add(monitor.name)
        self._run("refused", {"monitor": monitor.name, "error": error})

    def answered(self, monitor: Monitor) -> None:
        """It sees something again."""
        if monitor.name in self._refused:
            self._refused.discard(monitor.name)
            self._run("answered", {"monitor": monitor.name})

    def reset(self, engine: Engine, names: Sequence[str], now: float) -> Mapping[str, Any] | None:
        """Carry out the next part of a reset in `engine`; what has to be saved with it, where there is one."""
        with db.translated():
            asked = self._session.execute(_SQL["resets"], (list(names),)).fetchone()
            if asked is None:
                return None
            rows = self._session.execute(_SQL["reset_segments"], {**asked, "limit": _PART}).fetchall()
        keys: list[Key] = [(asked["monitor"], row["segment"]) for row in rows]
        why = f": {asked['reason']}" if asked["reason"] else ""
        engine.reset(keys, now, f"{asked['actor']} has taken what is now for the new normal{why}")
        done = len(keys) < _PART
        if done:
            _log.info("%s learns its baseline anew", asked["monitor"],
                      extra={"action": "drift_reset", "monitor": asked["monitor"], "by": asked["actor"]})  # fmt: skip
        return {"id": asked["id"], "reached": keys[-1][1] if keys else asked["reached"], "segments": len(keys),
                "done": done}  # fmt: skip

    def _declare(self) -> None:
        names, sources = [item.name for item in self._monitors], [item.source for item in self._monitors]
        self._run("declare", {"names": names, "sources": sources})
        for row in self._run("retire", None):
            _log.info("%s is in no file any more", row["name"],
                      extra={"action": "drift_retired", "monitor": row["name"]})  # fmt: skip

    def _prune(self) -> None:
        what = {"days": self._days, "limit": _PART}
        self._run("prune_events", what)
        self._run("prune_states", what)
        self._run("prune_monitors", what)

    def _run(self, name: str, values: Any) -> list[Mapping[str, Any]]:
        with db.transaction(self._session):
            found = self._session.execute(_SQL[name], values)
            return list(found.fetchall()) if found.description else []
