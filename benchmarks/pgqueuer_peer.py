"""One PgQueuer process of noop_over_pgqueuer: `python -m benchmarks.pgqueuer_peer BATCH JOBS`, with the database in
BENCH_DATABASE.

With JOBS above 0 it first makes PgQueuer's tables and queues so many jobs. Prints `ready`, waits for a line, works
until the queue is empty, prints `done N` with the jobs it ran. PgQueuer at its fastest: asyncpg, uvloop, its durable
tables, no periodic aggregation of its log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

CHUNK = 1000


async def main(batch: int, jobs: int) -> None:
    """Queue, wait for the word, drain."""
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE"])
    queries = Queries(AsyncpgDriver(connection))
    if jobs:
        await queries.install()
        for first in range(0, jobs, CHUNK):
            count = min(CHUNK, jobs - first)
            await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
    manager = QueueManager(queries)
    done = 0

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        nonlocal done
        done += 1

    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await manager.run(
        dequeue_timeout=timedelta(seconds=1),
        batch_size=batch,
        mode=QueueExecutionMode.drain,
        log_aggregation_interval=timedelta(0),
    )
    print(f"done {done}", flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
