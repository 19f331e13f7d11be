"""Commits rows all the time, whatever happens to the database, and knows which ones are committed.

Transactions of one to nine rows at a steady rate. A transaction whose end is not known is committed again under the
same ids, so that after the load every id below `committed` is in the table, once.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final

import psycopg

INSERT: Final = "INSERT INTO public.chaos_orders (id) SELECT unnest(%s::bigint[]) ON CONFLICT DO NOTHING"


class Load:
    """A thread with a session of its own.

    Args:
        url: database URL.
        rate: rows a second.
    """

    def __init__(self, url: str, rate: float) -> None:
        self._url = url
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._slow = False
        self.committed = 0
        """Rows 0 to committed - 1 are in the table for sure."""
        self.repeated = 0
        """Transactions whose end was not known."""

    def start(self) -> None:
        """Start committing."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the transaction under way and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(120)

    def ease(self, slow: bool) -> None:
        """A tenth of the rate while the rest is far behind: never silence."""
        self._slow = slow

    def _run(self) -> None:
        session: psycopg.Connection | None = None
        due = time.monotonic()
        while not self._stop.is_set():
            count = random.randint(1, 9)
            session = self._commit(session, list(range(self.committed, self.committed + count)))
            self.committed += count
            # A pause does not become a burst: what an outage kept back is not made up for.
            due = max(due, time.monotonic() - 1) + count / (self._rate / 10 if self._slow else self._rate)
            self._stop.wait(max(0.0, due - time.monotonic()))
        if session is not None:
            session.close()

    def _commit(self, session: psycopg.Connection | None, ids: list[int]) -> psycopg.Connection:
        while True:
            try:
                if session is None or session.closed:
                    session = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
                session.execute(INSERT, (ids,))
                return session
            except psycopg.OperationalError:
                self.repeated += 1
                if session is not None:
                    session.close()
                session = None
                time.sleep(0.1)
