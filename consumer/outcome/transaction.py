"""The transaction an agent's `write` works with: one statement a call, no transaction control, rows re-checked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from consumer import db
from consumer.errors import AgentError, ConfigurationError, Outage, StaleRow
from consumer.llm.render import render
from consumer.records import Change, ReadRow
from consumer.records.staleness import changed_columns

# What would end, split or hide the outcome transaction; the first word after comments and white space.
_CONTROL: Final = frozenset(
    {
        *("ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"),
        *("SET", "RESET", "DISCARD", "LISTEN", "NOTIFY", "UNLISTEN", "DEALLOCATE"),
    }
)
# As Postgres' scanner reads them: a line comment also ends at a carriage return, block comments nest.
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f\v;(]+|--[^\r\n]*)+")
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_WORD: Final = re.compile(r"[A-Za-z_]*")
# What gives rows without writing any.
_READS: Final = frozenset({"SELECT", "TABLE", "VALUES", "SHOW", "EXPLAIN"})
# What the server answers where the text got past the check above, or follows a refusal that the agent swallowed.
_AGENTS_FAULT: Final = {
    "db_25001": "must not change the transaction it runs in",
    "db_25006": "may only read",
    "db_25P02": "goes on after one of its statements failed",
    "db_2D000": "must not end the transaction it runs in",
}


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
        self._open = True
        # Statements of one run go one by one; closing waits for the last.
        self._turn = asyncio.Lock()
        self.emissions: list[Emission] = []
        self.touched = 0

    async def close(self) -> None:
        """Let nothing more in: an agent that keeps `tx`, or forgot to await it, must not write past the fence."""
        async with self._turn:
            self._open = False

    async def execute(self, statement: str, *parameters: Any) -> int:
        """Run one statement and return how many rows it touched; see the door."""
        refuse_control(statement)
        async with self._statement():
            count = await db.run_one(self._session, statement, parameters)
            # Statements without a count, as TRUNCATE, did something too.
            self.touched += 1 if count < 0 else count
            return count

    async def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """The rows one statement returns; see the door."""
        refuse_control(query)
        async with self._statement():
            found = await db.fetch_all(self._session, query, parameters)
            self.touched += 0 if _first_word(query) in _READS else len(found)
            return found

    async def update(self, change: Change, columns: Mapping[str, Any]) -> None:
        """Update the row of `change`; see the door."""
        if not change.key:
            raise AgentError(f"{change.origin.table} has no key; update it with tx.execute")
        async with self._statement():
            current = await db.lock_row(self._session, change.origin.schema, change.origin.table, change.key)
            if current is None:
                raise StaleRow(f"the row {_shown(change)} is gone")
            if self._check_stale:
                _refuse_stale(change, current, set(columns))
            await db.update_row(self._session, change.origin.schema, change.origin.table, change.key, columns)
            self.touched += 1

    async def hold_as_seen(self, change: Change) -> None:
        """Lock the row that a person decided about and refuse one that is another now, before the agent writes.

        Raises:
            StaleRow: a column that the run looked at has a different value now, or the row is gone.
        """
        if not self._check_stale or not change.key or not isinstance(change.after, ReadRow):
            return
        async with self._statement():
            current = await db.lock_row(self._session, change.origin.schema, change.origin.table, change.key)
            refuse_changed(change, current)

    def emit(self, topic: str, *, key: object, record: BaseModel | Mapping[str, Any], event_type: str = "") -> None:
        """Send `record` through the outbox; see the door."""
        self._refuse_closed()
        self.emissions.append(Emission(topic, None if key is None else str(key), record, event_type))

    @asynccontextmanager
    async def _statement(self) -> AsyncIterator[None]:
        async with self._turn:
            self._refuse_closed()
            with faults():
                yield

    def _refuse_closed(self) -> None:
        if not self._open:
            raise AgentError("the outcome transaction is over; await every use of tx inside @agent.write")


def refuse_changed(change: Change, current: Mapping[str, Any] | None) -> None:
    """Refuse a row that is another one now than the run has read.

    Raises:
        StaleRow: a column that the run looked at has a different value now, or the row is gone.
    """
    if current is None:
        raise StaleRow(f"the row {_shown(change)} is gone")
    _refuse_stale(change, current, set())


def refuse_control(statement: str) -> None:
    """Refuse a statement that would leave or split the transaction.

    Raises:
        AgentError: naming the word.
    """
    name = _first_word(statement)
    if not name:
        raise AgentError("an agent's SQL must begin with a word of SQL")
    if name in _CONTROL:
        raise AgentError(f"{name} is not allowed in an agent's SQL: the outcome transaction is Rowcall's")


@contextmanager
def faults() -> Iterator[None]:
    """Turn what the database says about an agent's statement into the agent's fault, where it is one."""
    try:
        yield
    except Outage as error:
        if error.code in _AGENTS_FAULT:
            raise AgentError(f"an agent's SQL {_AGENTS_FAULT[error.code]}: {error}") from error
        raise
    except ConfigurationError as error:
        if "multiple commands" in str(error):
            raise AgentError(f"an agent's SQL must be one statement: {error}") from error
        raise


def _first_word(statement: str) -> str:
    position = 0
    while True:
        if skipped := _SKIPPED.match(statement, position):
            position = skipped.end()
        elif statement.startswith("/*", position):
            position = _after_comment(statement, position)
        else:
            word = _WORD.match(statement, position)
            return word.group().upper() if word else ""


def _after_comment(statement: str, position: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(statement, position):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(statement)


def _shown(change: Change) -> str:
    key = ", ".join(f"{name}={value}" for name, value in (change.key or {}).items())
    return f"{change.origin.schema}.{change.origin.table}({key})"


def _refuse_stale(change: Change, current: Mapping[str, Any], written: set[str]) -> None:
    changed = changed_columns(change, current, written)
    if changed:
        # Not through the mapping itself: that would count as reading.
        seen = change.row.whole if isinstance(change.row, ReadRow) else change.row
        raise StaleRow(
            f"{_shown(change)}: {', '.join(changed)} changed since the agent read the row",
            changed={name: (_told(seen[name]), _told(current[name])) for name in changed},
        )


def _told(value: Any) -> str:
    """A value of a row as a person is shown it, as JSON."""
    try:
        return render(value)
    except AgentError:
        return render(repr(value))
