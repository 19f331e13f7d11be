"""Schema migrations: forward-only, in order, each in its own transaction under one advisory lock.

Reads sql/migrations/NNNN_name.sql, records each in `rowcall.schema_migrations` with its digest. Safe to run twice and
from any number of processes at once; refuses a database that is newer than this code, or whose history differs.
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


def migrations() -> list[Migration]:
    """All migrations this code knows, in order."""
    folder = resources.files("consumer").joinpath("sql", "migrations")
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return [Migration(int(item.name[:4]), item.name[5:-4], item.read_bytes()) for item in files]


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
