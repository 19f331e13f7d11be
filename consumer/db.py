"""Postgres: connections, named queries and the translation of its errors into decisions.

The only module that imports psycopg. Queries live in sql/<stage>.sql, each under a line `-- name: <name>`; statements
are sent in autocommit unless a caller opens `transaction()`. Every psycopg error leaves here as one of our own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import AsyncConnection, Connection, Copy
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from consumer.errors import ConfigurationError, DataRefused, Outage, RowcallError, TransactionConflict

__all__ = [
    "AsyncPool",
    "Copy",
    "Session",
    "SyncSession",
    "async_transaction",
    "connect",
    "connect_async",
    "open_pool",
    "queries",
    "transaction",
    "translated",
]

Session = AsyncConnection[DictRow]
SyncSession = Connection[DictRow]
AsyncPool = AsyncConnectionPool[AsyncConnection[DictRow]]

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
# Half-open connections must be noticed within a lease (30 s): 5 s idle, then 3 probes 3 s apart.
_KEEPALIVE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


@cache
def queries(stage: str) -> Mapping[str, bytes]:
    """The named queries of sql/<stage>.sql, as bytes that psycopg takes for trusted SQL."""
    text = resources.files("consumer").joinpath("sql", f"{stage}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: body.strip().encode() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def connect(url: str, *, name: str) -> SyncSession:
    """A blocking autocommit session, for the two threads and for commands. `name` shows in pg_stat_activity.

    Raises:
        Outage: Postgres does not answer.
        ConfigurationError: host, password, role or database is wrong.
    """
    with translated(url):
        return Connection.connect(
            url, autocommit=True, application_name=f"rowcall {name}", row_factory=dict_row, **_KEEPALIVE
        )


async def connect_async(url: str, *, name: str) -> Session:
    """The same, for asyncio."""
    with translated(url):
        return await AsyncConnection.connect(
            url, autocommit=True, application_name=f"rowcall {name}", row_factory=dict_row, **_KEEPALIVE
        )


async def open_pool(url: str, *, name: str, size: int) -> AsyncPool:
    """A pool of at most `size` autocommit sessions, opened and checked.

    Raises:
        Outage, ConfigurationError: as `connect`.
    """
    first = await connect_async(url, name=name)  # a pool hides the reason why it cannot connect
    await first.close()
    pool = AsyncPool(
        url,
        min_size=1,
        max_size=size,
        open=False,
        timeout=30,
        kwargs={
            "autocommit": True,
            "application_name": f"rowcall {name}",
            "row_factory": dict_row,
            **_KEEPALIVE,
        },
    )
    await pool.open()
    return pool


@contextmanager
def transaction(session: SyncSession) -> Iterator[SyncSession]:
    """One transaction; commits at the end, rolls back on any error."""
    with translated(), session.transaction():
        yield session


@asynccontextmanager
async def async_transaction(session: Session) -> AsyncIterator[Session]:
    """One transaction; commits at the end, rolls back on any error."""
    with translated():
        async with session.transaction():
            yield session


@contextmanager
def translated(url: str | None = None) -> Iterator[None]:
    """Turn psycopg's errors inside the block into ours."""
    try:
        yield
    except PoolTimeout as error:
        raise Outage(f"no database connection became free: {error}", dependency="database") from error
    except psycopg.Error as error:
        raise _translation(error, url) from error


def _translation(error: psycopg.Error, url: str | None) -> RowcallError:
    state = error.sqlstate or ""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state.startswith("28") or "password authentication failed" in text or "no password supplied" in text:
        return ConfigurationError(f"Postgres refuses the login{_where(url)}: {text}. Check DATABASE_URL")
    if state == "3D000" or ("database" in text and "does not exist" in text and not state.startswith("42")):
        return ConfigurationError(f"{text}{_where(url)}. Create it or change DATABASE_URL")
    if "failed to resolve host" in text or "could not translate host name" in text:
        return ConfigurationError(f"the host in DATABASE_URL cannot be resolved{_where(url)}: {text}")
    if state in ("42P01", "3F000", "42883") and "rowcall." in text:
        return ConfigurationError(f"{text}: the database lacks Rowcall's tables. Run `rowcall migrate`")
    if state in ("40001", "40P01", "55P03"):
        return TransactionConflict(text)
    if state[:2] in ("22", "23", "54"):
        return DataRefused(text, code=f"db_{state}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or state[:2] in ("08", "53", "57", "58"):
        return Outage(f"the database does not answer{_where(url)}: {text}", dependency="database")
    if state.startswith("42"):
        return ConfigurationError(f"the database refuses a statement ({state}): {text}")
    return Outage(f"the database failed ({state}): {text}", dependency="database", code=f"db_{state}")


def _where(url: str | None) -> str:
    if url is None:
        return ""
    parts = urlsplit(url)
    return f" at {parts.hostname}:{parts.port or 5432}{parts.path}"

