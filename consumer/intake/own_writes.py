"""Finds the runs that wrote the rows of a batch: whose own write a change is, and what it was caused by.

The link is the log's: `source.txId` is the transaction in which a run's outcome was written. A change can be decoded
before its transaction is visible to others, so this waits, outside any transaction, a bounded time. Agents are not
woken by their own writes. Emitted events carry their cause in a header.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from consumer import db, telemetry
from consumer.intake.routing import Hit, Routed
from consumer.records import Change, Event
from consumer.records.chain import entry
from consumer.records.jobs import storable

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("intake")

WAIT_SECONDS: Final = 2.0
"""How long a batch waits for its transactions to become visible."""
_POLL_SECONDS: Final = 0.004
# After a batch has waited in vain, the log is likely of another timeline: the next ones wait this long only.
_SHORT_WAIT_SECONDS: Final = 0.05
# A run writes its end before its transaction commits. After a restore the server gives the numbers of lost transactions
# out again; what was lost was committed before it stopped, hence before any run ended that has such a number now.
_CLOCK_STEP_MS: Final = 1_000
_LONGEST_COMMIT_MS: Final = 3_600_000
_MAX_INT: Final = 2**31 - 1
_MAX_BIGINT: Final = 2**63 - 1

CAUSE_HEADER: Final = "cause"


class Cause(NamedTuple):
    """What an event was caused by: the event at the root, the run, how many runs deep, and who stood in between.

    `chain` has an entry (`consumer.records.chain`) for each run from the first to the one that caused this. Not
    `attributable` is a change whose transaction this database does not have: nothing is known then.
    """

    root: str | None
    job: int | None
    depth: int
    chain: tuple[str, ...]
    attributable: bool = True


NO_CAUSE: Final = Cause(None, None, 0, ())


class Writer(NamedTuple):
    """The run that wrote a row; `finished_ms` is when, since 1970, by the clock that also stamps commits."""

    agent: str
    cause: Cause
    finished_ms: int | None

    def wrote(self, committed_ms: int) -> bool:
        """Whether a transaction of the same number, committed then, is this run's and not one of a lost timeline."""
        if self.finished_ms is None:
            return True
        return -_CLOCK_STEP_MS <= committed_ms - self.finished_ms <= _LONGEST_COMMIT_MS


UNKNOWN: Final = Writer("", Cause(None, None, 0, (), attributable=False), None)
"""Whoever wrote in a transaction that this database does not have. No agent has this name, so all are woken."""


class OwnWrites:
    """Looks writing runs up for the sources that read our own database (ROWCALL_OWN_SOURCES)."""

    def __init__(self, own_sources: Iterable[str]) -> None:
        self._own = frozenset(own_sources)
        self._wait = WAIT_SECONDS

    def writers(self, session: db.SyncSession, hits: Sequence[Hit]) -> dict[int, Writer]:
        """32-bit transaction ID → run, for the changes among `hits` that a run wrote; UNKNOWN where it cannot be told.

        Raises:
            Outage: the database does not answer.
        """
        txids = {
            hit.message.origin.txid
            for hit in hits
            if isinstance(hit.message, Change)
            and hit.message.origin.connector in self._own
            and hit.message.origin.txid is not None
            and not hit.message.origin.snapshot
        }
        if not txids:
            return {}
        jobs, unknown = self._visible(session, txids)
        found = dict.fromkeys(unknown, UNKNOWN)
        if not jobs:
            return found
        with db.translated():
            rows = session.execute(_SQL["causes"], {"ids": list(set(jobs.values()))}).fetchall()
        writers = {row["id"]: _writer(row) for row in rows}
        return found | {txid: writers[job] for txid, job in jobs.items() if job in writers}

    def writer_of(self, change: Change | Event, writers: Mapping[int, Writer]) -> Writer | None:
        """The run that wrote this change."""
        if not writers or not isinstance(change, Change) or change.origin.txid is None:
            return None
        writer = writers.get(change.origin.txid) if change.origin.connector in self._own else None
        return writer if writer is not None and writer.wrote(change.origin.committed_ms) else None

    def _visible(self, session: db.SyncSession, txids: set[int]) -> tuple[dict[int, int], set[int]]:
        """(32-bit transaction ID → run, those not to be found here), waiting for those that are not visible yet."""
        jobs: dict[int, int] = {}
        lost: set[int] = set()
        waiting = txids
        deadline = time.monotonic() + self._wait
        while True:
            with db.translated():
                rows = session.execute(_SQL["transactions"], {"txids": f"{{{','.join(map(str, waiting))}}}"}).fetchall()
            jobs |= {row["txid"]: row["job_id"] for row in rows if row["job_id"] is not None}
            lost |= {row["txid"] for row in rows if row["state"] == "lost"}
            waiting = {row["txid"] for row in rows if row["state"] == "pending"}
            if not waiting or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        self._wait = _SHORT_WAIT_SECONDS if waiting else WAIT_SECONDS
        if lost or waiting:
            telemetry.NOT_ATTRIBUTABLE.add(len(lost), state="lost")
            telemetry.NOT_ATTRIBUTABLE.add(len(waiting), state="pending")
            _log.warning(
                "changes of transactions that this database does not have: it was restored, or the connector reads "
                "another one (ROWCALL_OWN_SOURCES); their writers are unknown",
                extra={"action": "source_ahead_of_database", "lost": len(lost), "pending": len(waiting)},
            )
        return jobs, lost | waiting


def woken_by_others(hit: Hit, writer: Writer | None, routed: Routed) -> Hit | None:
    """The hit without the agent that wrote the row itself; None when nobody is left."""
    if writer is None:
        return hit
    agents = [agent for agent in hit.agents if agent.name != writer.agent or agent.on_own_write == "run"]
    if len(agents) < len(hit.agents):
        routed.decisions[writer.agent, "own_write"] += 1
    return hit._replace(agents=agents) if agents else None


def cause_of(message: Change | Event, writer: Writer | None) -> Cause:
    """What a message was caused by; the message itself is the root where nothing is known."""
    if writer is not None:
        return writer.cause
    if isinstance(message, Event) and CAUSE_HEADER in message.headers:
        cause = _from_header(message.headers[CAUSE_HEADER])
        if cause is not None:
            return cause
    return NO_CAUSE


def _writer(row: Mapping[str, Any]) -> Writer:
    chain = (*row["chain"], entry(row["job_type"], row["lane"]))
    return Writer(row["job_type"], Cause(row["root"], row["id"], row["depth"] + 1, chain), row["finished_ms"])


def _from_header(text: str) -> Cause | None:
    """A cause is a hint of the sender: what does not look like one is left out."""
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None
    match value:
        case {"root": str(root), "job": int(job), "depth": int(depth), "chain": list(chain)} if (
            0 <= job <= _MAX_BIGINT and 0 <= depth <= _MAX_INT and all(isinstance(name, str) for name in chain)
        ):
            return Cause(storable(root), job, depth, tuple(storable(name) for name in chain))
    return None
