"""Observers: each looks at one kind of thing with one query, and one that fails is a finding of its own.

Before it, processes, schedulers and workers have written what they did; after it, `decide`. Writes nothing. Promises:
an observer that fails stops no other, and what it watches keeps its state; what is gone is no longer watched.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from consumer import db
from consumer.errors import Outage, TransactionConflict
from consumer.watchdog import fleets, holds, judge, pauses
from consumer.watchdog.connectors import Connectors
from consumer.watchdog.observation import BAD, Expected, Fault, Known, Observation, Rules

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("watchdog")

States = Mapping[str, Known]
_Look = Callable[[db.SyncSession, States, dt.datetime], Iterable[Observation | None]]


class Observers:
    """Everything one watchdog looks at.

    Args:
        rules: how long silence may last.
        connectors: what Kafka Connect says of connectors; None where nobody looks at them.
        expected: what the code declares and the database may not know yet.
    """

    def __init__(self, rules: Rules, connectors: Connectors | None = None, expected: Sequence[Expected] = ()) -> None:
        self._rules = rules
        self._expected = expected
        self._connectors = connectors
        self._failures: dict[str, int] = {}
        # Observer → the kinds of subjects that it alone gives, and how it looks.
        self._looks: dict[str, tuple[tuple[str, ...], _Look]] = {
            "processes": (("process",), self._processes),
            "schedules": (("schedule",), self._schedules),
            "agents": (("agent", "result"), self._agents),
            "outputs": (("output",), self._outputs),
            "runs": (("run",), self._runs),
            "queues": (("queue", "fleet"), self._queues),
            "holds": ((), lambda session, known, _now: holds.look(session, known)),
        }
        if connectors is not None:
            self._looks["connectors"] = (
                ("connector",),
                lambda session, _known, now: connectors.look(now, _beats(session)),
            )

    def observe(
        self, session: db.SyncSession, known: States, now: dt.datetime, looked: Callable[[], None] = lambda: None
    ) -> list[Observation]:
        """All that there is to see; `looked` is called after each observer.

        Raises:
            Outage: the database is away.
        """
        found: list[Observation] = []
        for name, (kinds, look) in self._looks.items():
            try:
                with db.translated():
                    seen = [item for item in look(session, known, now) if item is not None]
            except Exception as error:
                # Whatever one cannot read must not blind the others.
                if session.closed:
                    raise Outage(f"observer {name}: {error}", dependency="database") from error
                found.append(self._failed(name, error, now))
                looked()
                continue
            looked()
            self._failures[name] = 0
            found += [*seen, Observation(f"observer:{name}", now, note="it looks again"),
                      *_gone(known, kinds, {item.subject for item in seen})]  # fmt: skip
        return found

    def _failed(self, name: str, error: Exception, now: dt.datetime) -> Observation:
        self._failures[name] = count = self._failures.get(name, 0) + 1
        level = logging.INFO if isinstance(error, TransactionConflict) else logging.WARNING
        _log.log(level, "observer %s failed: %s", name, error, extra={"action": "observer_failed", "observer": name})
        message = f"observer failed: {name} cannot look ({error}); what it watches keeps its state until it can"
        fault = Fault("failed" if count >= self._rules.misses else "late", now, message)
        return Observation(f"observer:{name}", None, faults=(fault,))

    def _processes(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation]:
        rows = session.execute(_SQL["processes"]).fetchall()
        for row, seen in zip(rows, judge.processes(rows, self._rules, now), strict=True):
            # One that ended before anybody watched it is nobody's concern.
            if row["state"] != "STOPPED" or seen.subject in known:
                yield seen

    def _schedules(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation]:
        seen = [judge.schedule(row, self._rules) for row in session.execute(_SQL["schedules"]).fetchall()]
        return [*seen, *self._undeclared("schedule", seen, known)]

    def _agents(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation | None]:
        rows = session.execute(_SQL["agents"], {"calm": self._rules.calm}).fetchall()
        # Agents of which nothing is expected give nothing, and yet the database knows them.
        found = [
            pauses.agent(
                row, judge.agent(row, self._rules, _resumed(row, known, now)), self._rules,
                known.get(f"agent:{row['name']}"), now,
            )
            for row in rows
        ]  # fmt: skip
        names = [Observation(f"agent:{row['name']}") for row in rows]
        return [*found, *(judge.result(row, self._rules) for row in rows), *self._undeclared("agent", names, known)]

    def _outputs(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation]:
        window = {"window": self._rules.output + self._rules.calm}
        return [judge.output(row, self._rules) for row in session.execute(_SQL["outputs"], window).fetchall()]

    def _runs(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation]:
        return [judge.run(row, self._rules) for row in session.execute(_SQL["running"]).fetchall()]

    def _queues(self, session: db.SyncSession, known: States, now: dt.datetime) -> Iterable[Observation | None]:
        waiting: list[dict[str, Any]] = session.execute(_SQL["waiting"]).fetchall()
        bounds = {"misses": self._rules.misses, "tolerance": self._rules.tolerance, "future": self._rules.future}
        executors = session.execute(_SQL["executors"], bounds).fetchone()
        queues = [
            pauses.queue(row, judge.queue(row, self._rules), known.get(f"queue:{row['name']}")) for row in waiting
        ]
        claimable = [row for row in waiting if not row["by_hand"]]
        needed = session.execute(_SQL["fleets"], bounds).fetchall()
        workers = judge.fleet(claimable, executors, self._rules)
        return [*queues, workers, *(fleets.needed(row, self._rules) for row in needed)]

    def _undeclared(self, kind: str, seen: Iterable[Observation], known: States) -> Iterable[Observation]:
        """What the code declares of this kind and the database does not know."""
        there = {item.subject for item in seen}
        for item in self._expected:
            if item.subject.startswith(f"{kind}:") and item.subject not in there:
                first = known.get(item.subject)
                yield judge.expected(item, self._rules, None if first is None else first.due_at)


def _resumed(row: Mapping[str, Any], known: States, now: dt.datetime) -> dt.datetime | None:
    """When the pause of an agent itself, not that of its subject, ended: just now, or as its flip says."""
    before = known.get(f"agent:{row['name']}")
    just_now = before is not None and before.state == "paused" and not before.paused and before.due_at is None
    found: dt.datetime | None = now if just_now else row["resumed_at"]
    return found


def _beats(session: db.SyncSession) -> dict[str, dt.datetime]:
    return {row["connector"]: row["beat_at"] for row in session.execute(_SQL["connector_beats"]).fetchall()}


def _gone(known: States, kinds: Sequence[str], seen: set[str]) -> list[Observation]:
    """Subjects with a fault that are not found any more: a run that went on, a queue that is empty; or with a pause."""
    return [
        Observation(item.subject, note="there is nothing left that could be wrong with it")
        for item in known.values()
        if item.subject.partition(":")[0] in kinds
        and item.subject not in seen
        and (item.state in BAD or (item.state == "paused" and not item.paused))
    ]
