"""A connection pooler in front of Postgres: told apart before anything is built on sessions that are none.

Asked by the doctor and by a process at its start; writes nothing. A pooler that refuses or ignores our start options
is found by `db.connect` itself; this finds the one that lets them pass and gives each transaction another session.
"""

from __future__ import annotations

from consumer import db
from consumer.errors import ConfigurationError
from consumer.settings.database_url import POOLER


def refuse_pooler(session: db.SyncSession, url: str) -> None:
    """Refuse what gives sessions away between transactions: two open sessions have two servers, but for its clients.

    Raises:
        ConfigurationError: that is what answers at `url`.
    """
    with db.connect(url, name="pooler?") as other, db.translated():
        pids = {row["pid"] for each in (session, other) for row in each.execute("SELECT pg_backend_pid() AS pid")}
    if len(pids) == 1:
        raise ConfigurationError(POOLER.format(why="one session of it serves two of ours"))
