"""The loop of a scheduler: fires what is due and sleeps until something is.

Any number of schedulers may run; they share the schedules by `SKIP LOCKED`. Time is the database's. Promises: an outage
or a slot that cannot be fired ends nothing; other schedules go on.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from consumer import db, telemetry
from consumer.errors import DataRefused, TransactionConflict
from consumer.settings import Settings
from producers.schedules.definitions import declared, synchronise
from producers.schedules.fire import fire_due

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("schedules", "producers")
# A changed definition, a resumed schedule or a turned clock is noticed after this time.
LONGEST_SLEEP_SECONDS: Final = 5.0
_SHORTEST_SLEEP_SECONDS: Final = 0.05
# After a slot that cannot be fired; it stays due, and so does what is due beside it.
_REFUSED_SECONDS: Final = 1.0


def run(settings: Settings, stop: threading.Event) -> None:
    """Declare the schedules, then fire until told to stop.

    Raises:
        ConfigurationError: a definition is wrong, or the schema is not this version's.
        Outage: the database is away; begin again.
    """
    found = declared(settings)
    pulse = telemetry.HEALTH.loop("scheduler")
    try:
        with db.connect(settings.database_url.get_secret_value(), name="scheduler") as session:
            synchronise(session, found)
            telemetry.HEALTH.report("scheduler", ready=True, detail="running")
            while not stop.is_set():
                pulse.beat()
                stop.wait(_work(session))
    finally:
        pulse.end()


def _work(session: db.SyncSession) -> float:
    """Fire all that is due; seconds to sleep."""
    while True:
        try:
            if fire_due(session) is None:
                break
        except TransactionConflict as error:
            _log.info("%s; trying again", error, extra={"action": "slot_conflict"})
            return _SHORTEST_SLEEP_SECONDS
        except DataRefused as error:
            _log.error("a slot cannot be fired: %s", error, extra={"action": "slot_refused", "code": error.code})
            return _REFUSED_SECONDS
    with db.translated():
        row = session.execute(_SQL["next_due"]).fetchone()
    if row is None or row["seconds"] is None:
        return LONGEST_SLEEP_SECONDS
    return min(max(float(row["seconds"]), _SHORTEST_SLEEP_SECONDS), LONGEST_SLEEP_SECONDS)
