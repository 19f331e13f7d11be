"""What all runs of a worker share for calls to the outside: the client, its limits, and writes under the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

from consumer import db, effects
from consumer.effects import Request
from consumer.errors import LeaseLost, Outage, TransactionConflict
from consumer.http.addresses import Directions
from consumer.http.outward import Outward
from consumer.records.jobs import ClaimedJob
from consumer.settings import Settings

_T = TypeVar("_T")
# With a lock timeout of half a second: as long as a lease, for a run whose row somebody holds.
_CONFLICT_TRIES: Final = 60


@dataclass(frozen=True, slots=True)
class Outside:
    """`answer_bytes` bounds what a read may give; durations in seconds."""

    outward: Outward
    pool: db.AsyncPool
    lease_seconds: float
    answer_bytes: int
    seconds: float
    host_seconds: dict[str, float]

    @classmethod
    def of(cls, settings: Settings, pool: db.AsyncPool) -> Outside:
        """From the settings.

        Raises:
            ConfigurationError: a host or address of them cannot be read.
        """
        return cls(
            Outward(Directions.read(settings.http_allow, settings.http_hosts)),
            pool,
            settings.lease_seconds,
            settings.http_max_bytes,
            settings.http_timeout_seconds,
            settings.http_host_timeouts,
        )

    def deadline(self, request: Request) -> float:
        """How long a call may take as a whole: as its agent says, or its host's, or the default."""
        if request.seconds is not None:
            return request.seconds
        host = (urlsplit(request.url).hostname or "").lower().removesuffix(".")
        return self.host_seconds.get(host, self.seconds)

    async def written(
        self, job: ClaimedJob, work: Callable[[db.Session, float], Awaitable[_T]], *, patient: bool = True
    ) -> _T:
        """Run `work` in a transaction of the run's owner; it gets the seconds for which the lease holds from there.

        With `patient` an outage is waited for as long as a lease: only for what may be written twice.

        Raises:
            LeaseLost: another owner has the run; nothing was written.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + self.lease_seconds
        conflicts, delay = 0, 0.05
        while True:
            try:
                return await self._once(job, work)
            except TransactionConflict:
                conflicts += 1
                if conflicts >= _CONFLICT_TRIES:
                    raise
                await asyncio.sleep(0.005 * conflicts)
            except Outage as error:
                if not patient or error.code != Outage.code or clock() + delay > give_up:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _once(self, job: ClaimedJob, work: Callable[[db.Session, float], Awaitable[_T]]) -> _T:
        with db.translated():
            async with self.pool.connection() as session, db.async_transaction(session):
                left = await effects.held(session, job, self.lease_seconds)
                if left is None:
                    raise LeaseLost(f"run {job.id} is not ours any more (epoch {job.epoch})")
                return await work(session, left)
