"""Row changes and events, as every stage after decoding sees them.

A `Change` is one committed change of one row; an `Event` is anything else that can wake an agent: a record another
agent emitted, or the payload of a job an operator or a database trigger queued.
"""

from __future__ import annotations

import datetime as dt
import enum
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from consumer.errors import AgentError
from consumer.records.same import same

_log = logging.getLogger(__name__)

UNKNOWN_COLUMN: Final = "unknown_column"
"""Error code of a trigger that names a column its table has not."""
# Tables whose updates come without the old row, complained of once a process.
_TOLD: Final[set[str]] = set()


class Unchanged(enum.Enum):
    """The value of a TOASTed column that the change did not touch and the log therefore does not hold."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED


class Infinity(enum.Enum):
    """Postgres' infinite dates and timestamps, which Python's types cannot hold."""

    POSITIVE = "infinity"
    NEGATIVE = "-infinity"


# A column's value. Lists and mappings hold values again.
Value = (
    None | bool | int | float | str | bytes | Decimal | dt.date | dt.time | dt.datetime | dt.timedelta | uuid.UUID
    | Unchanged | Infinity | list[Any] | dict[str, Any]
)  # fmt: skip
Row = Mapping[str, Any]


class ReadRow(Mapping[str, Any]):
    """A row that remembers which of its columns were looked at, so that a write can tell whether they still hold."""

    __slots__ = ("_row", "read")

    def __init__(self, row: Row, read: Iterable[str] = ()) -> None:
        self._row = row
        self.read: set[str] = set(read)

    @property
    def whole(self) -> Row:
        """The row itself; looking at it is not counted."""
        return self._row

    def __getitem__(self, column: str) -> Any:
        self.read.add(column)
        return self._row[column]

    def __iter__(self) -> Iterator[str]:
        """Whoever goes through the columns is taken to read them all."""
        self.read.update(self._row)
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        return repr(self._row)


class Operation(enum.StrEnum):
    """Debezium's operation letters."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    TRUNCATE = "t"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a message stood in Kafka. Shown to people; never part of an identity (a re-created topic reuses them)."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Debezium's source block, the parts that identify a change.

    `txid` is the low 32 bits of the writing transaction; `committed_ms` its commit time in milliseconds since 1970.
    """

    connector: str
    database: str
    schema: str
    table: str
    txid: int | None
    lsn: int | None
    committed_ms: int
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change of one row. `before` is None for inserts, `after` None for deletes."""

    id: str
    operation: Operation
    before: Row | None
    after: Row | None
    key: Row | None
    origin: Origin
    coordinates: Coordinates | None = None

    @property
    def row(self) -> Row:
        """The row as it stands after the change, or as it stood before a delete."""
        return self.after if self.after is not None else (self.before or {})

    @property
    def inserted(self) -> bool:
        """Whether the row is new here: inserted, or read from a snapshot."""
        return self.operation in (Operation.CREATE, Operation.READ)

    @property
    def updated(self) -> bool:
        """Whether the row was there before and still is. A new primary key is a delete and an insert."""
        return self.operation is Operation.UPDATE

    @property
    def deleted(self) -> bool:
        """Whether the row is gone; a TRUNCATE, which names no row, counts."""
        return self.operation in (Operation.DELETE, Operation.TRUNCATE)

    def changed(self, *columns: str) -> bool:
        """Whether the value of any of these columns differs between before and after.

        True for inserts and deletes, and for an update whose old row the log does not hold (see `was`). NULL equals
        NULL; a TOASTed value that the update left alone is no change.

        Raises:
            AgentError: none of them changed, and the table lacks one: a misspelt name must not pass for "unchanged".
        """
        before, after = self.before, self.after
        if before is None or after is None:
            if self.operation is Operation.UPDATE:
                self._tell_unknown()
            return True
        for column in columns:
            value = after.get(column)
            if value is not UNCHANGED and not same(before.get(column), value):
                return True
        for column in columns:
            self._refuse_unknown(column)
        return False

    def was(self, column: str, value: Any) -> bool:
        """Whether the column held `value` before; False for inserts.

        True for an update whose old row the log does not hold: a table without REPLICA IDENTITY FULL. What is not known
        counts as a match, so that no change is passed by; this is logged once a table.

        Raises:
            AgentError: the table has no such column.
        """
        self._refuse_unknown(column)
        if self.before is not None:
            return same(self.before.get(column), value)
        if self.operation is not Operation.UPDATE:
            return False
        self._tell_unknown()
        return True

    def became(self, column: str, value: Any) -> bool:
        """Whether this very change set the column to `value` (an insert with it counts).

        Raises:
            AgentError: the table has no such column.
        """
        after = self.after
        if after is None or column not in after:
            self._refuse_unknown(column)
            return False
        return same(after.get(column), value) and self.changed(column)

    def rose(self, column: str) -> bool:
        """Whether the column's value grew; False where either value is NULL, True where the old row is not known.

        Raises:
            AgentError: the table has no such column.
        """
        return self._moved(column, upwards=True)

    def fell(self, column: str) -> bool:
        """Whether the column's value shrank; as `rose`."""
        return self._moved(column, upwards=False)

    def _moved(self, column: str, *, upwards: bool) -> bool:
        self._refuse_unknown(column)
        if self.operation is not Operation.UPDATE or self.after is None:
            return False
        after = self.after.get(column)
        if after is None or after is UNCHANGED:
            return False
        if self.before is None:
            self._tell_unknown()
            return True
        before = self.before.get(column)
        if before is None or before is UNCHANGED:
            return before is UNCHANGED
        return bool(after > before if upwards else after < before)

    def _refuse_unknown(self, column: str) -> None:
        for row in (self.after, self.before):
            if row is not None and column in row:
                return
        if self.after is None and self.before is None:
            return
        origin = self.origin
        raise AgentError(
            f"{origin.schema}.{origin.table} has no column {column!r}; it has {', '.join(sorted(self.row))}. Correct "
            "the name in the agent, or give each table an agent of its own",
            code=UNKNOWN_COLUMN,
        )

    def _tell_unknown(self) -> None:
        table = f"{self.origin.schema}.{self.origin.table}"
        if table not in _TOLD:
            _TOLD.add(table)
            _log.warning(
                "updates of %s come without the old row: every column counts as changed. "
                "ALTER TABLE %s REPLICA IDENTITY FULL lets triggers compare",
                table,
                table,
                extra={"action": "old_row_unknown", "table": table},
            )


@dataclass(frozen=True, slots=True)
class Event:
    """Something other than a row change that wakes an agent.

    `data` is the decoded record or payload. `headers` are the message's headers as text (empty for queued jobs).
    `occurred_at` is constant over re-sends; None where the sender named none.
    """

    id: str
    topic: str | None
    key: str | None
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    occurred_at: dt.datetime | None = None
    coordinates: Coordinates | None = None
