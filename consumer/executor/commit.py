"""Group commit: many runs' writes of one kind become one statement, one commit.

A transaction for each checkpoint would give some 900 runs a second; grouped, the same disk gives several thousand.
Items that arrive while a group is being written form the next group, so an idle system adds no delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from consumer import db
from consumer.errors import DataRefused, Outage, TransactionConflict

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[db.Session, Sequence[Item]], Awaitable[Sequence[Result]]]

_log = logging.getLogger(__name__)
# A statement of 256 rows takes a few milliseconds; larger groups only add latency.
GROUP_LIMIT = 256
# Bytes of one statement's items.
GROUP_BYTES = 32 * 1024 * 1024
# With a lock timeout of half a second: as long as a lease, for the one run whose row somebody holds.
_CONFLICT_TRIES = 60


class GroupCommit(Generic[Item, Result]):
    """Writes items in groups and gives each caller its own item's result.

    An outage is retried for `patience` seconds: the writes are idempotent, and after a lease's length they would be
    refused anyway. A group that the database refuses is halved until only the guilty item fails. A group that meets a
    row which somebody else holds is written item by item, so that only that row's run waits. `weigh` gives an item's
    size in bytes: a group is bounded by it, for the database refuses a statement of 1 GB as a whole.
    """

    def __init__(
        self,
        pool: db.AsyncPool,
        write: Write[Item, Result],
        *,
        name: str,
        patience: float,
        weigh: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._weigh = weigh
        self._alone: set[asyncio.Task[None]] = set()
        self._pool = pool
        self._write = write
        self._name = name
        self._patience = patience
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Write the item with the next group.

        Raises:
            DataRefused: the database refuses this very item.
            Outage: the database stayed away longer than the patience.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name=f"group commit {self._name}")
        return await future

    async def _flush(self) -> None:
        # One turn of the loop: runs that were woken together submit together.
        await asyncio.sleep(0)
        while self._waiting:
            group = self._next_group()
            # A caller that is gone wants no write: its run was taken away or cancelled.
            await self._deliver([entry for entry in group if not entry[1].done()])

    def _next_group(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        weight = count = 0
        for item, _ in self._waiting[:GROUP_LIMIT]:
            weight += self._weigh(item)
            if count and weight > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _deliver_alone(self, entry: tuple[Item, asyncio.Future[Result]]) -> None:
        task = asyncio.create_task(self._deliver([entry], _CONFLICT_TRIES), name=f"single commit {self._name}")
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _deliver(self, group: list[tuple[Item, asyncio.Future[Result]]], tries: int = 1) -> None:
        if not group:
            return
        try:
            results = await self._write_patiently([item for item, _ in group], tries)
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except TransactionConflict as error:
            if tries > 1:
                _fail(group, error)
                return
            # The next groups go on meanwhile.
            for entry in group:
                self._deliver_alone(entry)
        except Exception as error:  # noqa: BLE001 - every caller gets it; without one their runs would wait for ever
            if len(group) == 1 or not _is_of_one_item(error):
                _fail(group, error)
                return
            middle = len(group) // 2
            await self._deliver(group[:middle])
            await self._deliver(group[middle:])
        else:
            for (_, future), result in zip(group, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _write_patiently(self, items: Sequence[Item], tries: int) -> Sequence[Result]:
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._patience
        conflicts = 0
        delay = 0.05
        while True:
            try:
                with db.translated():
                    async with self._pool.connection() as session:
                        return await self._write(session, items)
            except TransactionConflict:
                conflicts += 1
                if conflicts >= tries:
                    raise
                await asyncio.sleep(0.005 * conflicts)
            except UnicodeEncodeError as error:
                raise DataRefused(f"half a character cannot be stored: {error.reason}", code="db_22021") from error
            except Outage as error:
                if error.code != Outage.code or clock() + delay > give_up:
                    raise
                _log.warning("%s waits for the database: %s", self._name, error, extra={"action": "database_outage"})
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)


def _is_of_one_item(error: Exception) -> bool:
    """Whether one item may have caused it: the database refused something, and is not away."""
    return isinstance(error, DataRefused) or (isinstance(error, Outage) and error.code != Outage.code)


def _fail(group: Sequence[tuple[Item, asyncio.Future[Result]]], error: Exception) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)
