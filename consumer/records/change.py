"""Row changes and events, as every stage after decoding sees them.

A `Change` is one committed change of one row; an `Event` is anything else that can wake an agent: a record another
agent emitted, or the payload of a job an operator or a database trigger queued.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final


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

    def __init__(self, row: Row) -> None:
        self._row = row
        self.read: set[str] = set()

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

    def changed(self, column: str) -> bool:
        """Whether the column's value differs between before and after; True for inserts and deletes."""
        if self.before is None or self.after is None:
            return True
        after = self.after.get(column)
        return after is not UNCHANGED and self.before.get(column) != after

    def became(self, column: str, value: Any) -> bool:
        """Whether this very change set the column to `value` (an insert with it counts)."""
        return self.after is not None and self.after.get(column) == value and self.changed(column)


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
