"""What people do with drift monitors: look, and give up a baseline. Each act is one transaction with its audit row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from consumer import db
from consumer.errors import OperatorError

_SQL: Final = db.queries("drift", "producers")

Row = Mapping[str, Any]


def reset(session: db.SyncSession, monitor: str, segment: str | None, *, actor: str, reason: str | None) -> int:
    """Ask for new baselines, of one segment or of all; the process that watches them carries it out. Its number.

    Raises:
        OperatorError: no such segment is known, or nobody is named.
    """
    if not actor.strip():
        raise OperatorError("say who you are: --by NAME")
    with db.transaction(session):
        known = session.execute(_SQL["is_known"], {"monitor": monitor, "segment": segment}).fetchone()
        if known is None or not known["known"]:
            what = (
                f"segment {segment!r} of monitor {monitor}" if segment is not None else f"segment of monitor {monitor}"
            )
            raise OperatorError(f"no {what} is known; `rowcall drift list` names the monitors")
        made = session.execute(_SQL["ask_reset"], (monitor, segment, actor.strip(), reason)).fetchone()
        assert made is not None
        detail = orjson.dumps({"segment": segment, "reason": reason, "reset": made["id"]}).decode()
        session.execute(_SQL["audit"], (actor.strip(), f"monitor {monitor}", detail))
    return int(made["id"])


def listed(session: db.SyncSession) -> list[Row]:
    """Monitors with how many segments are in which state."""
    with db.translated():
        return list(session.execute(_SQL["list"]))


def shown(session: db.SyncSession, monitor: str, limit: int) -> tuple[list[Row], list[Row], list[Row]]:
    """Segments, events and resets of a monitor, at most `limit` of each.

    Raises:
        OperatorError: nothing is known of it.
    """
    with db.translated():
        segments: list[Row] = list(session.execute(_SQL["show"], (monitor, limit)))
        events: list[Row] = list(session.execute(_SQL["events"], (monitor, monitor, limit)))
        resets: list[Row] = list(session.execute(_SQL["resets_of"], (monitor, limit)))
    if not segments and not events:
        raise OperatorError(f"no segment of a monitor {monitor} is known; `rowcall drift list` names those that are")
    return segments, events, resets
