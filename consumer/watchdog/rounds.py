"""The watchdog's loop: look, decide, write, wake the channels, and sleep until something can become due.

Before it, every other process has written what it did; after it, channels tell people. Any number of watchdogs may run.
Time is the database's. Promises: a round is never further away than ROWCALL_WATCHDOG_SECONDS; an outage of the database
ends nothing and is told once, as a gap, when it is over.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from consumer import db, telemetry
from consumer.errors import TransactionConflict
from consumer.settings import Settings
from consumer.telemetry import WATCH_ROUND_SECONDS, WATCH_SUBJECTS
from consumer.watchdog.alert import Listener
from consumer.watchdog.connectors import Connectors
from consumer.watchdog.decide import Decision, decide, next_moment
from consumer.watchdog.deliver import Delivery
from consumer.watchdog.observation import BAD, Expected, Known, Rules
from consumer.watchdog.observe import Observers
from consumer.watchdog.store import Store

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("watchdog")
_SHORTEST_SLEEP_SECONDS: Final = 0.05
_SEE_SECONDS: Final = 15.0
_PRUNE_SECONDS: Final = 3600.0


class Watchdog:
    """One watchdog process.

    Args:
        settings: of the process.
        channels: each is told of every alert that it wants.
        ping: called after each complete round; must not wait.
        expected: what the code declares, whether the database knows it or not.

    Raises:
        ConfigurationError: two channels have one name, or connector files cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        channels: Sequence[Listener] = (),
        *,
        ping: Callable[[], None] | None = None,
        expected: Sequence[Expected] = (),
    ) -> None:
        self._settings = settings
        self._url = settings.database_url.get_secret_value()
        rules = Rules.of(settings)
        self._connectors = Connectors(settings, rules) if settings.connect_url else None
        self._observers = Observers(rules, self._connectors, expected)
        self._channels = channels
        self._delivery = Delivery(self._url, channels)
        self._ping = ping
        self._quiet_seconds = settings.watchdog_grace_seconds + rules.misses * settings.heartbeat_seconds
        self._started = False
        self._seen_at = self._pruned_at = 0.0

    def _start(self, stop: threading.Event) -> None:
        """Start what runs beside the rounds, once: an outage begins the rounds anew, not the channels."""
        if self._started:
            return
        self._started = True
        self._delivery.start()
        if self._connectors is not None:
            self._connectors.start(stop)

    def stop(self) -> None:
        """End what runs beside the rounds."""
        if not self._started:
            return
        self._delivery.stop()

    def run(self, _settings: Settings, stop: threading.Event) -> None:
        """Look until told to stop.

        Raises:
            Outage: the database is away; begin again.
        """
        self._start(stop)
        pulse = telemetry.HEALTH.loop("watchdog")
        try:
            with db.connect(self._url, name="watchdog", by_key=True) as session:
                with db.translated():
                    session.execute(_SQL["limit_statements"], {"gap": self._settings.watchdog_gap_seconds})
                telemetry.HEALTH.report("watchdog", ready=True, detail="running")
                while not stop.is_set():
                    pause = self._round(session)
                    pulse.beat()
                    stop.wait(pause)
        finally:
            pulse.end()

    def _round(self, session: db.SyncSession) -> float:
        """One round; seconds until the next."""
        begun = time.monotonic()
        try:
            foreseen = self.look(session)
        except TransactionConflict as error:
            _log.info("%s; trying again", error, extra={"action": "round_conflict"})
            return _SHORTEST_SLEEP_SECONDS
        if self._ping is not None:
            self._ping()
        took = time.monotonic() - begun
        WATCH_ROUND_SECONDS.observe(took)
        longest = self._settings.watchdog_seconds
        return min(longest, max(_SHORTEST_SLEEP_SECONDS, longest if foreseen is None else foreseen - took))

    def look(self, session: db.SyncSession) -> float | None:
        """Look at everything once, write what has changed, and wake the channels.

        Returns the seconds from the beginning of the look to the next moment at which something may become due.

        Raises:
            Outage, TransactionConflict: what was written so far stands.
        """
        store = Store(session, self._channels)
        settings = self._settings
        begun = store.begin_round(gap_seconds=settings.watchdog_gap_seconds, quiet_seconds=self._quiet_seconds)
        known = store.known()
        found = self._observers.observe(
            session, known, begun.now, lambda: store.still_looking(settings.watchdog_gap_seconds)
        )
        decided = [
            decide(seen, known.get(seen.subject) or Known(seen.subject), begun.now, quiet=begun.quiet) for seen in found
        ]
        store.begin_watching([item for item in decided if item.subject not in known])
        flips = sum(store.move(item) for item in decided if item.changed)
        reminders = 0
        if not begun.quiet:
            worse = {item.subject for item in decided if not item.changed and item.new in BAD}
            still = [item for item in known.values() if item.subject in worse]
            reminders = store.remind(still, begun.now, settings.watchdog_remind_seconds)
        if flips or reminders or begun.gap:
            self._delivery.wake()
        self._now_and_then(store, [item for item in decided if not item.changed])
        _count(decided)
        moment = next_moment(found, begun.now)
        return None if moment is None else (moment - begun.now) / dt.timedelta(seconds=1)

    def _now_and_then(self, store: Store, same: Sequence[Decision]) -> None:
        now = time.monotonic()
        if now - self._seen_at >= _SEE_SECONDS:
            self._seen_at = now
            store.see(same)
        if now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now
            store.prune()


def _count(decided: Sequence[Decision]) -> None:
    counted = Counter(item.new for item in decided)
    for state in ("new", "up", "paused", *BAD):
        WATCH_SUBJECTS.set(counted[state], state=state)
