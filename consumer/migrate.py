"""Schema migrations: forward-only, in order, each in its own transaction under one advisory lock.

Reads sql/migrations/NNNN_name.sql, records each in `rowcall.schema_migrations` with its digest. Then the functions of
sql/functions, one a file and named after it, are made anew, all together, where any of them differs from the code's.
Safe to run twice and from any number of processes at once; refuses a database that is newer than this code, or whose
history differs.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from importlib import resources

from consumer import db
from consumer.errors import ConfigurationError

_log = logging.getLogger(__name__)
_SQL = db.queries("migrate")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of sql/migrations."""

    version: int
    name: str
    sql: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the file, hex."""
        return hashlib.sha256(self.sql).hexdigest()


@dataclass(frozen=True, slots=True)
class Function:
    """One file of sql/functions: the function of the file's name, in every form it has."""

    name: str
    sql: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the file, hex."""
        return hashlib.sha256(self.sql).hexdigest()


def migrations() -> list[Migration]:
    """All migrations this code knows, in order."""
    return [Migration(int(name[:4]), name[5:], sql) for name, sql in _files("migrations")]


def functions() -> list[Function]:
    """The functions this code calls, by name."""
    return [Function(name, sql) for name, sql in _files("functions")]


def migrate(session: db.SyncSession) -> list[Migration]:
    """Apply what is missing and return it.

    Raises:
        ConfigurationError: the database is newer than this code, or an applied migration differs from its file.
        Outage: Postgres does not answer.
    """
    with db.translated():
        session.execute(_SQL["lock"])
        try:
            session.execute(_SQL["create_history"])
            known = migrations()
            applied = _check(known, session)
            missing = [migration for migration in known if migration.version not in applied]
            for migration in missing:
                with session.transaction():
                    session.execute(migration.sql)
                    session.execute(_SQL["record"], (migration.version, migration.name, migration.digest))
                _log.info("migration applied", extra={"action": "migrate", "version": migration.version})
            _renew_functions(session)
            return missing
        finally:
            if not session.closed and not session.broken:
                session.execute(_SQL["unlock"])


def check(session: db.SyncSession) -> None:
    """Refuse to work on a schema that is not exactly this code's.

    Raises:
        ConfigurationError: older, newer or altered, with what to do.
    """
    with db.translated():
        exists = session.execute(_SQL["history_exists"]).fetchone()
        if exists is None or not exists["found"]:
            raise ConfigurationError("the database lacks Rowcall's tables. Run `rowcall migrate`")
        known = migrations()
        applied = _check(known, session)
    missing = [migration.version for migration in known if migration.version not in applied]
    if missing:
        raise ConfigurationError(
            f"the database is at schema {max(applied, default=0)}, this code needs {missing[-1]}. Run `rowcall migrate`"
        )
    with db.translated():
        altered = _altered_functions(session)
    if altered:
        raise ConfigurationError(
            f"the database's functions are of another build ({', '.join(altered)}). Run `rowcall migrate` of the build "
            "that is to work on it"
        )


def _files(folder: str) -> list[tuple[str, bytes]]:
    """Name without ending and content of the SQL files of a folder, sorted."""
    items = resources.files("consumer").joinpath("sql", folder).iterdir()
    return sorted((item.name[:-4], item.read_bytes()) for item in items if item.name.endswith(".sql"))


def _altered_functions(session: db.SyncSession) -> list[str]:
    """Names of the functions that the database has not in this code's form, or has too many."""
    applied = {row["name"]: row["sha256"] for row in session.execute(_SQL["functions"])}
    known = {function.name: function.digest for function in functions()}
    return sorted(name for name in applied | known if applied.get(name) != known.get(name))


def _renew_functions(session: db.SyncSession) -> None:
    altered = _altered_functions(session)
    if not altered:
        return
    known = functions()
    with session.transaction():
        for row in session.execute(_SQL["drops"], (sorted({*altered, *(item.name for item in known)}),)).fetchall():
            session.execute(row["statement"].encode())
        session.execute(_SQL["forget_functions"])
        for function in known:
            session.execute(function.sql)
            session.execute(_SQL["record_function"], (function.name, function.digest))
    _log.info("functions renewed", extra={"action": "migrate", "count": len(known)})


def _check(known: list[Migration], session: db.SyncSession) -> set[int]:
    applied = {row["version"]: row for row in session.execute(_SQL["history"])}
    newest = known[-1].version
    if applied and max(applied) > newest:
        raise ConfigurationError(
            f"the database is at schema {max(applied)}, this code knows only {newest}: it is too old for this "
            "database. Install the newer version; nothing was changed"
        )
    for migration in known:
        row = applied.get(migration.version)
        if row is not None and row["sha256"] != migration.digest:
            raise ConfigurationError(
                f"migration {migration.version} ({migration.name}) was applied in another form than this code has; "
                "the database was made by a different build"
            )
    return set(applied)
