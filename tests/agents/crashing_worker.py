"""`rowcall` as a process that dies or freezes at a boundary inside intake; JOURNEY_DIE_AT says where.

    python -m tests.agents.crashing_worker worker

after_poll: a batch is read, nothing is prepared. after_admit: it is committed, Kafka was not told. in_admission: stops
(SIGSTOP) inside the admission transaction, with the positions locked; only the first time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from unittest.mock import patch

from consumer import db, positions
from consumer.cli import main
from consumer.kafka import Consumer, Place, Polled
from consumer.positions import PartitionId, Span

WHERE = os.environ.get("JOURNEY_DIE_AT", "")

_poll, _advance = Consumer.poll, positions.advance
_left = [signal.SIGSTOP]


def poll(self: Consumer, idle_seconds: float) -> Polled:
    """Polls, then dies of what it got."""
    polled = _poll(self, idle_seconds)
    if polled.records:
        os.kill(os.getpid(), signal.SIGKILL)
    return polled


def commit(self: Consumer, offsets: Mapping[Place, int]) -> None:
    """Dies instead of telling Kafka."""
    if offsets:
        os.kill(os.getpid(), signal.SIGKILL)


def advance(session: db.SyncSession, cluster: str, spans: Sequence[Span]) -> set[PartitionId]:
    """Moves the positions, then stands still once."""
    moved = _advance(session, cluster, spans)
    if _left:
        os.kill(os.getpid(), _left.pop())
    return moved


if WHERE == "after_poll":
    patch.object(Consumer, "poll", poll).start()
elif WHERE == "after_admit":
    patch.object(Consumer, "commit", commit).start()
elif WHERE == "in_admission":
    patch.object(positions, "advance", advance).start()
elif WHERE:
    raise SystemExit(f"JOURNEY_DIE_AT={WHERE}?")

if __name__ == "__main__":
    sys.exit(main())
