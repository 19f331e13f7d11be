"""What an error of psycopg means for the caller: one of our own. And the parts of a DSN, to say where it happened."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from consumer.errors import AgentError, ConfigurationError, DataRefused, Outage, RowcallError, TransactionConflict
from consumer.settings.database_url import POOLER


def parsed(url: str) -> dict[str, Any]:
    """The parts of a DSN.

    Raises:
        ConfigurationError: it cannot be read. It is not shown: it may hold a password.
    """
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error:
        raise ConfigurationError(
            "DATABASE_URL cannot be read: write postgresql://user:password@host:port/database, with special characters "
            "of the password percent-encoded"
        ) from None


def translation(error: psycopg.Error, url: str | None) -> RowcallError:
    """Our error for this one; `url` is the database's, where it is known."""
    state = error.sqlstate or ""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state.startswith("28") or "password authentication failed" in text or "no password supplied" in text:
        return ConfigurationError(f"Postgres refuses the login{_where(url)}: {text}. Check DATABASE_URL")
    if "unsupported startup parameter" in text:
        return ConfigurationError(POOLER.format(why=text))
    if state == "3D000" or ("database" in text and "does not exist" in text and not state.startswith("42")):
        return ConfigurationError(f"{text}{_where(url)}. Create it or change DATABASE_URL")
    if "failed to resolve host" in text or "could not translate host name" in text:
        return ConfigurationError(f"the host in DATABASE_URL cannot be resolved{_where(url)}: {text}")
    if state in ("42P01", "3F000", "42883") and "rowcall." in text:
        return ConfigurationError(f"{text}: the database lacks Rowcall's tables. Run `rowcall migrate`")
    if state in ("40001", "40P01", "55P03"):
        return TransactionConflict(text)
    if state[:2] in ("22", "23", "54") or isinstance(error, psycopg.DataError):
        return DataRefused(text, code=f"db_{state or 'value'}")
    if not state and isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
        return AgentError(f"SQL used wrongly: {text}")
    if state == "57014":
        return Outage(f"the database ended a statement: {text}", dependency="database", code="db_57014")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or state[:2] in ("08", "53", "57", "58"):
        return Outage(f"the database does not answer{_where(url)}: {text}", dependency="database")
    if state.startswith("42"):
        return ConfigurationError(f"the database refuses a statement ({state}): {text}")
    return Outage(f"the database failed ({state}): {text}", dependency="database", code=f"db_{state}")


def _where(url: str | None) -> str:
    if url is None:
        return ""
    parts = parsed(url)
    return f" at {parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
