"""Lease renewal, in a thread of its own with a connection of its own: a blocked event loop must not lose leases.

Writes `locked_until` alone. Promises: leases of living runs are renewed at least three times a lease; a run that is not
ours any more, or whose renewal could not be sent for a whole lease, is reported lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from consumer import claim, db
from consumer.errors import BeatLost, RowcallError
from consumer.telemetry import HEALTH

_log = logging.getLogger(__name__)


class Beat:
    """Renews the leases of the runs it is told to hold.

    Args:
        url: database URL.
        seconds: pause between two renewals; at most a third of `lease_seconds`.
        lost: called from this thread with (run, epoch) for each run that is not ours any more.
    """

    def __init__(self, url: str, *, seconds: float, lease_seconds: float, lost: Callable[[int, int], None]) -> None:
        self._url = url
        self._seconds = seconds
        self._lease_seconds = lease_seconds
        self._lost = lost
        self._lock = threading.Lock()
        # By epoch too: the worker itself may take a run over, and its old attempt must still be told.
        self._held: dict[tuple[int, int], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease beat", daemon=True)
        self._pulse = HEALTH.loop("lease beat", limit_seconds=max(30.0, 3 * seconds))
        self._sent_at = time.monotonic()
        self._missed_since: float | None = None
        # Then a renewal of nothing is tried too: whether the next one will arrive has to be known.
        self._failing = False

    def start(self) -> None:
        """Start renewing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing and wait for the thread."""
        self._stop.set()
        self._thread.join(timeout=self._lease_seconds)
        self._pulse.end()

    def refuse_silence(self) -> None:
        """To be called now and then by whoever has just had an answer of the database, from one thread.

        Raises:
            BeatLost: the database answers others, and for two leases no renewal has reached it.
        """
        now = time.monotonic()
        if now - self._sent_at < self._lease_seconds:
            self._missed_since = None
        elif self._missed_since is None:
            # Not from the last renewal: a process that was frozen, or a database that was away, gets its time to renew.
            self._missed_since = now
        elif now - self._missed_since > self._lease_seconds:
            raise BeatLost(
                f"no lease could be renewed for {now - self._sent_at:.0f} s while the database answers; the process "
                "ends so that a new one takes over"
            )

    def hold(self, job_id: int, epoch: int) -> None:
        """Renew this run's lease from now on."""
        with self._lock:
            self._held[job_id, epoch] = time.monotonic()

    def release(self, job_id: int, epoch: int) -> None:
        """Stop renewing this run's lease."""
        with self._lock:
            self._held.pop((job_id, epoch), None)

    def _run(self) -> None:
        session: db.SyncSession | None = None
        while not self._stop.wait(self._seconds):
            with self._lock:
                held = list(self._held)
            self._pulse.beat()
            started = time.monotonic()
            if not held and not self._failing:
                self._sent_at = started
                continue
            try:
                if session is None or session.closed:
                    session = db.connect(self._url, name="beat", by_key=True)
                gone = claim.beat(session, held, self._lease_seconds)
            except RowcallError as error:
                self._failing = True
                _log.warning("leases could not be renewed: %s", error, extra={"action": "beat_failed"})
                if session is not None:
                    session.close()
                    session = None
                self._give_up_old(started)
                continue
            self._renewed(held, gone, started)
        if session is not None:
            session.close()

    def _renewed(self, held: list[tuple[int, int]], gone: set[tuple[int, int]], at: float) -> None:
        self._sent_at, self._failing = at, False
        with self._lock:
            lost = [run for run in held if run in gone and run in self._held]
            for run in lost:
                del self._held[run]
            self._held |= dict.fromkeys(self._held.keys() & set(held), at)
        for job_id, epoch in lost:
            self._lost(job_id, epoch)

    def _give_up_old(self, at: float) -> None:
        """Runs whose lease must be over by now: another worker may already have them."""
        with self._lock:
            lost = [run for run, renewed in self._held.items() if at - renewed > self._lease_seconds]
            for run in lost:
                del self._held[run]
        for job_id, epoch in lost:
            self._lost(job_id, epoch)
