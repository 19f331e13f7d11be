"""The transaction an agent's `write` works with: one statement a call, no transaction control, rows re-checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from consumer import db
from consumer.errors import AgentError, StaleRow
from consumer.records import UNCHANGED, Change

# What would end, split or hide the outcome transaction; the first word after comments and white space.
_CONTROL: Final = frozenset(
    {
        *("ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"),
        *("SET", "RESET", "DISCARD", "LISTEN", "NOTIFY", "UNLISTEN"),
    }
)
_LEADING: Final = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Emission:
    """A record the agent sends; it becomes an outbox row in the same transaction."""

    topic: str
    key: str | None
    record: BaseModel | Mapping[str, Any]
    event_type: str


class OutcomeTransaction:
    """Implements `consumer.agents.door.Transaction` on a session that is inside the outcome transaction."""

    def __init__(self, session: db.Session, *, check_stale: bool) -> None:
        self._session = session
        self._check_stale = check_stale
        self.emissions: list[Emission] = []

    async def execute(self, statement: str, *parameters: Any) -> int:
        """Run one statement and return how many rows it touched; see the door."""
        refuse_control(statement)
        return await db.run_one(self._session, statement, parameters)

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """The rows one statement returns; see the door."""
        refuse_control(query)
        return await db.fetch_all(self._session, query, parameters)

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        """Update the row of `change`; see the door."""
        if not change.key:
            raise AgentError(f"{change.origin.table} has no key; update it with tx.execute")
        current = await db.lock_row(self._session, change.origin.schema, change.origin.table, change.key)
        if current is None:
            raise StaleRow(f"the row {_shown(change)} is gone")
        if self._check_stale:
            changed = changed_columns(change, current, set(columns))
            if changed:
                raise StaleRow(f"{_shown(change)}: {', '.join(changed)} changed since the agent read the row")
        await db.update_row(self._session, change.origin.schema, change.origin.table, change.key, columns)

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        """Send `record` through the outbox; see the door."""
        self.emissions.append(Emission(topic, None if key is None else str(key), record, event_type))


def refuse_control(statement: str) -> None:
    """Refuse a statement that would leave or split the transaction.

    Raises:
        AgentError: naming the word.
    """
    match = _LEADING.match(statement)
    rest = statement[match.end() :] if match else statement
    word = re.match(r"[A-Za-z]*", rest)
    name = word.group().upper() if word else ""
    if name in _CONTROL:
        raise AgentError(f"{name} is not allowed in an agent's SQL: the outcome transaction is Rowcall's")


def changed_columns(change: Change, current: Mapping[str, Any], written: set[str]) -> list[str]:
    """Columns of the change whose value in the database is another one now; those about to be written do not count."""
    read = change.row
    return [
        name
        for name, value in read.items()
        if name not in written and value is not UNCHANGED and name in current and not _same(value, current[name])
    ]


def _same(read: Any, current: Any) -> bool:
    if isinstance(read, float) and isinstance(current, float) and math.isnan(read):
        return math.isnan(current)
    if isinstance(current, memoryview):
        current = bytes(current)
    return bool(read == current)


def _shown(change: Change) -> str:
    key = ", ".join(f"{name}={value}" for name, value in (change.key or {}).items())
    return f"{change.origin.schema}.{change.origin.table}({key})"
