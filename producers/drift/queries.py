"""Sources that are queries: the operator's own, and what Rowcall knows of its queues and of its model's answers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from consumer import db
from consumer.errors import AgentError, ConfigurationError, DataRefused, Outage, TransactionConflict
from consumer.kafka import Brokers, Place
from consumer.settings import Settings
from producers.drift.monitors import Monitor

_SQL: Final = db.queries("drift", "producers")
# Rows that commit out of order are seen by waiting this long for them.
_SETTLE_SECONDS: Final = 5.0
ROWS: Final = 100_000
"""The most that one query may give at a time."""


class Queries:
    """Runs queries when they are due, on a session that can write nothing."""

    def __init__(self, settings: Settings, session: db.SyncSession, brokers: Brokers) -> None:
        self._session, self._brokers = session, brokers
        self._url = settings.database_url.get_secret_value()
        self._reading: db.SyncSession | None = None
        self._last: dict[str, float] = {}
        self._tried: dict[str, float] = {}

    def due(self, monitor: Monitor, now: float) -> list[dict[str, Any]] | None:
        """The rows of a query that is due; None where it is none, or not yet due.

        Raises:
            ConfigurationError: the query is refused, takes longer than its timeout or gives too much; names the
                monitor.
        """
        if monitor.topic:
            return None
        if monitor.name not in self._last:
            with db.translated():
                row = self._session.execute(_SQL["polled"], (monitor.source,)).fetchone()
            self._last[monitor.name] = now - monitor.every if row is None else row["at"]
        since = self._last[monitor.name]
        if now - max(since, self._tried.get(monitor.name, since)) < monitor.every:
            return None
        # A query that fails is asked for the same span again, and not before its time.
        self._tried[monitor.name] = now
        rows = self._rows(monitor, since, now)
        self._last[monitor.name] = now
        return rows

    def close(self) -> None:
        """Close the session."""
        if self._reading is not None:
            self._reading.close()

    def _rows(self, monitor: Monitor, since: float, now: float) -> list[dict[str, Any]]:
        span = {"since": since - _SETTLE_SECONDS, "until": now - _SETTLE_SECONDS, "monitor": monitor.name}
        if monitor.watch == "lag":
            return self._lag()
        if monitor.watch:
            name = "backlog" if monitor.watch == "age" else monitor.watch
            with db.translated():
                rows = self._session.execute(_SQL[f"watch_{name}"], span).fetchall()
            return [row | {"value": row["oldest_seconds"]} if monitor.watch == "age" else row for row in rows]
        assert monitor.sql is not None
        if self._reading is None:
            self._reading = db.connect(self._url, name="drift query")
            self._reading.execute(b"SET default_transaction_read_only = on")
        try:
            with db.transaction(self._reading) as session:
                session.execute(b"SELECT set_config('statement_timeout', %s, true)",
                                (str(int(monitor.timeout * 1000)),))  # fmt: skip
                wants = "%(since)s" in monitor.sql or "%(until)s" in monitor.sql
                found = session.execute(monitor.sql.encode(), span if wants else None, prepare=True)
                rows = list(found.fetchmany(ROWS + 1))
            if len(rows) > ROWS:
                raise ConfigurationError(f"it gives more than {ROWS} rows; aggregate, or narrow it with %(since)s")
            return rows
        except (ConfigurationError, DataRefused, TransactionConflict, AgentError, Outage) as error:
            if isinstance(error, Outage) and error.code == Outage.code:
                raise
            raise ConfigurationError(f"ROWCALL_DRIFT: monitor {monitor.name}: sql: {error}") from error

    def _lag(self) -> list[dict[str, Any]]:
        with db.translated():
            rows = self._session.execute(_SQL["watch_lag"], {"cluster": self._brokers.cluster_id()}).fetchall()
        # A topic that was made anew is another topic; the positions of the old one stay behind.
        topics = self._brokers.topics({row["topic"] for row in rows})
        rows = [row for row in rows if row["topic"] in topics and topics[row["topic"]].id == row["topic_id"]]
        ends = self._brokers.ends(Place(row["topic"], row["partition"]) for row in rows)
        lags: dict[str, float] = defaultdict(float)
        for row in rows:
            end = ends.get(Place(row["topic"], row["partition"]))
            if end is not None:
                lags[f"topic:{row['topic']}"] += max(0, end - row["next_offset"])
        return [{"queue": queue, "value": lag} for queue, lag in lags.items()]
