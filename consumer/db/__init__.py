"""Postgres: connections, named queries and the translation of its errors into decisions.

The only module that imports psycopg. Queries live in sql/<stage>.sql, each under a line `-- name: <name>`; statements
are sent in autocommit unless a caller opens `transaction()`. Every psycopg error leaves here as one of our own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection, Copy, sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from consumer.db.faults import parsed, translation
from consumer.db.loading import adapt
from consumer.errors import AgentError, ConfigurationError, Outage
from consumer.settings.database_url import POOLER

__all__ = [
    "AsyncPool",
    "Copy",
    "Session",
    "SyncSession",
    "async_transaction",
    "connect",
    "connect_async",
    "fetch_all",
    "listen",
    "lock_row",
    "open_pool",
    "queries",
    "read_row",
    "row_now",
    "run_one",
    "transaction",
    "transaction_with",
    "translated",
    "update_row",
]

Session = AsyncConnection[DictRow]
SyncSession = Connection[DictRow]
AsyncPool = AsyncConnectionPool[AsyncConnection[DictRow]]

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
# Comments are for readers; a placeholder named in one would be taken for a parameter.
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)
# What a transaction leaves behind in a session. Not DISCARD ALL: it would drop prepared statements too, and psycopg
# goes on calling them by name.
_FORGET: Final = (
    b"SELECT pg_advisory_unlock_all(); RESET SESSION AUTHORIZATION; RESET ALL; CLOSE ALL; UNLISTEN *; "
    b"DISCARD TEMP; DISCARD SEQUENCES"
)
# Half-open connections must be noticed within a lease (30 s): 5 s idle, then 3 probes 3 s apart.
_KEEPALIVE: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Statements over queues find rows by key. Statistics of a queue are always stale, and a plan that reads all runs under
# way, or all that an old snapshot still keeps, costs more with each of them. Such a plan does not depend on parameters,
# and making it anew for each small group costs more than carrying it out.
_BY_KEY: Final = (
    "enable_seqscan=off",
    "enable_bitmapscan=off",
    "enable_hashjoin=off",
    "enable_mergejoin=off",
    "plan_cache_mode=force_generic_plan",
)


@cache
def queries(stage: str, package: str = "consumer") -> Mapping[str, bytes]:
    """The named queries of <package>/sql/<stage>.sql, as bytes that psycopg takes for trusted SQL."""
    text = resources.files(package).joinpath("sql", f"{stage}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: _COMMENT.sub("", body).strip().encode() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def connect(url: str, *, name: str, by_key: bool = False) -> SyncSession:
    """A blocking autocommit session, for the two threads and for commands. `name` shows in pg_stat_activity.

    With `by_key` its statements look rows up by key, whatever a queue's statistics say.

    Raises:
        Outage: Postgres does not answer.
        ConfigurationError: host, password, role or database is wrong.
    """
    with translated(url):
        session = Connection.connect(url, autocommit=True, row_factory=dict_row, **_start(url, name, by_key))
        _adapt_checked(session)
        return session


async def connect_async(url: str, *, name: str, by_key: bool = False) -> Session:
    """The same, for asyncio."""
    with translated(url):
        session = await AsyncConnection.connect(url, autocommit=True, row_factory=dict_row, **_start(url, name, by_key))
        _adapt_checked(session)
        return session


async def listen(url: str, name: str, statement: bytes, heard: Callable[[], None]) -> None:
    """Listen on a session of its own and call `heard` for each notification, until the session breaks.

    Raises:
        Outage: the session broke or could not be made.
    """
    session = await connect_async(url, name=name)
    try:
        with translated():
            await session.execute(statement)
            async for _ in session.notifies():
                heard()
    finally:
        await session.close()


async def open_pool(
    url: str,
    *,
    name: str,
    size: int,
    idle_seconds: float,
    read_only: bool = False,
    for_agents: bool = False,
    lock_seconds: float | None = None,
    by_key: bool = False,
) -> AsyncPool:
    """A pool of at most `size` sessions, opened and checked; autocommit, or each use one READ ONLY transaction.

    A transaction that sends nothing for `idle_seconds` is ended by the server: a frozen process must not hold its rows.
    With `for_agents` a session forgets whatever its user left in it: settings, locks, temporary tables. With
    `lock_seconds` a statement that waits longer for a lock becomes a TransactionConflict. `by_key` as in `connect`.

    Raises:
        Outage, ConfigurationError: as `connect`.
    """
    first = await connect_async(url, name=name)  # a pool hides the reason why it cannot connect
    await first.close()

    async def configure(session: Session) -> None:
        adapt(session)
        await session.set_read_only(read_only or None)

    # As start options, so that forgetting what a session was told leaves them in place.
    options = _options(
        url,
        f"idle_in_transaction_session_timeout={round(idle_seconds * 1000)}",
        *([] if lock_seconds is None else [f"lock_timeout={round(lock_seconds * 1000)}"]),
        *(_BY_KEY if by_key else ()),
    )
    pool = AsyncPool(
        url,
        min_size=1,
        max_size=size,
        open=False,
        timeout=30,
        configure=configure,
        reset=_forget if for_agents else None,
        kwargs={
            "autocommit": not read_only,
            "application_name": f"rowcall {name}",
            "row_factory": dict_row,
            "options": options,
            **_KEEPALIVE,
        },
    )
    await pool.open()
    return pool


async def _forget(session: Session) -> None:
    transactional = not session.autocommit
    await session.set_autocommit(True)
    await session.execute(_FORGET, prepare=False)
    await session.set_autocommit(not transactional)


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


@asynccontextmanager
async def transaction_with(
    session: Session, statement: bytes, parameters: Mapping[str, Any]
) -> AsyncIterator[DictRow | None]:
    """`async_transaction` whose beginning and first statement go to the server together; gives that one's first row."""
    with translated():
        async with AsyncExitStack() as stack:
            async with session.pipeline():
                # session.transaction() would stay in the pipeline until its end, and an agent's errors come late.
                await stack.enter_async_context(psycopg.AsyncTransaction(session))
                cursor = await session.execute(statement, parameters)
            yield await cursor.fetchone()


@contextmanager
def translated(url: str | None = None) -> Iterator[None]:
    """Turn psycopg's errors inside the block into ours."""
    try:
        yield
    except PoolTimeout as error:
        raise Outage(f"no database connection became free: {error}", dependency="database") from error
    except psycopg.Error as error:
        raise translation(error, url) from error


async def run_one(session: Session, statement: str, parameters: Sequence[Any]) -> int:
    """Run exactly one statement; the number of rows it touched.

    Prepared, so that the server itself refuses a second statement in the same text.
    """
    with translated():
        cursor = await session.execute(statement.encode(), list(parameters) or None, prepare=True)
        return cursor.rowcount


async def fetch_all(session: Session, query: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of exactly one statement."""
    with translated():
        cursor = await session.execute(query.encode(), list(parameters) or None, prepare=True)
        if cursor.description is None:
            raise AgentError("the statement returns no rows; use execute()")
        return list(await cursor.fetchall())


async def lock_row(session: Session, schema: str, table: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row with this key, locked for update; None when it is gone."""
    query = sql.SQL("SELECT * FROM {} WHERE {} FOR UPDATE").format(sql.Identifier(schema, table), _matches(key))
    with translated():
        return await (await session.execute(query, list(key.values()))).fetchone()


async def read_row(session: Session, schema: str, table: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row with this key as it stands; None when it is gone."""
    query = sql.SQL("SELECT * FROM {} WHERE {}").format(sql.Identifier(schema, table), _matches(key))
    with translated():
        return await (await session.execute(query, list(key.values()))).fetchone()


def row_now(session: SyncSession, schema: str, table: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """`read_row` on a blocking session."""
    query = sql.SQL("SELECT * FROM {} WHERE {}").format(sql.Identifier(schema, table), _matches(key))
    with translated():
        return session.execute(query, list(key.values())).fetchone()


async def update_row(
    session: Session, schema: str, table: str, key: Mapping[str, Any], columns: Mapping[str, Any]
) -> None:
    """Set columns of the row with this key."""
    query = sql.SQL("UPDATE {} SET {} WHERE {}").format(
        sql.Identifier(schema, table),
        sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in columns),
        _matches(key),
    )
    values = [Jsonb(value) if isinstance(value, dict) else value for value in columns.values()]
    with translated():
        await session.execute(query, [*values, *key.values()])


def _matches(key: Mapping[str, Any]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key)


def _options(url: str, *more: str) -> str:
    """The user's own start options, the form of times that psycopg reads, and more."""
    own = parsed(url).get("options") or ""
    return " ".join([str(own), *(f"-c {option}" for option in ("DateStyle=ISO,YMD", *more))]).strip()


def _start(url: str, name: str, by_key: bool) -> dict[str, Any]:
    return {"application_name": f"rowcall {name}", "options": _options(url, *(_BY_KEY if by_key else ())), **_KEEPALIVE}


def _adapt_checked(session: SyncSession | Session) -> None:
    style = session.info.parameter_status("DateStyle")
    if style != "ISO, YMD":
        session.pgconn.finish()
        raise ConfigurationError(POOLER.format(why=f"our start options were ignored: DateStyle is {style}"))
    adapt(session)
