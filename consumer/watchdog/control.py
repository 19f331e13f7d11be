"""What people do with subjects: look, pause, resume, forget. Each act stands in the audit."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

from consumer import db
from consumer.errors import OperatorError

_SQL: Final = db.queries("watchdog")


def watched(session: db.SyncSession, state: str | None = None) -> list[dict[str, Any]]:
    """Every subject, or those in one state, the worst first."""
    with db.translated():
        return session.execute(_SQL["list"], {"state": state}).fetchall()


def flips(session: db.SyncSession, subject: str | None, limit: int) -> list[dict[str, Any]]:
    """The latest flips, newest first, with what became of their alerts."""
    with db.translated():
        return session.execute(_SQL["flips"], {"subject": subject, "limit": limit}).fetchall()


def pause(session: db.SyncSession, subject: str, *, until: dt.datetime | None, actor: str, reason: str | None) -> None:
    """Tell nothing of a subject, until a time or until it is resumed.

    Raises:
        OperatorError: it is not watched, or the time is over already.
    """
    if until is not None:
        with db.translated():
            ahead = session.execute(_SQL["is_ahead"], {"at": until}).fetchone()
        if ahead is None or not ahead["ahead"]:
            raise OperatorError(f"{until:%Y-%m-%d %H:%M:%S %Z} has passed by the database's clock; nothing is paused")
    _act(session, "pause", subject, actor, reason, {"until": until, "by": actor})


def resume(session: db.SyncSession, subject: str, *, actor: str, reason: str | None) -> None:
    """Judge a subject again.

    Raises:
        OperatorError: it is not watched, or not paused.
    """
    _act(session, "resume", subject, actor, reason, {})


def forget(session: db.SyncSession, subject: str, *, actor: str, reason: str | None) -> None:
    """Drop what is known of a subject; it begins anew if it is seen again. Its flips are kept.

    Raises:
        OperatorError: it is not watched.
    """
    _act(session, "forget", subject, actor, reason, {})


def _act(
    session: db.SyncSession, action: str, subject: str, actor: str, reason: str | None, values: dict[str, Any]
) -> None:
    with db.transaction(session):
        if session.execute(_SQL[action], {"subject": subject, **values}).fetchone() is None:
            raise OperatorError(_refusal(session, action, subject))
        if action == "forget":
            session.execute(_SQL["forget_instance"], {"subject": subject})
        detail = {"reason": reason} | ({"until": str(until)} if (until := values.get("until")) else {})
        session.execute(
            _SQL["audit"],
            {"actor": actor, "action": f"watchdog_{action}", "subject": subject, "detail": json.dumps(detail)},
        )


def _refusal(session: db.SyncSession, action: str, subject: str) -> str:
    if action == "resume" and session.execute(_SQL["known"], {"subject": subject}).fetchone() is not None:
        return f"{subject} is not paused by `rowcall watchdog pause`"
    return f"{subject!r} is not watched; `rowcall watchdog list` names what is"
