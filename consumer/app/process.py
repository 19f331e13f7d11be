"""The composition of one process, and how it ends.

Settings → telemetry → agents → health server → database and schema → the loops. Promises: what an operator must mend
ends the process before any loop starts; a dependency that is away is waited for, with a growing pause and a log line;
a part that dies takes the whole process down (exit code 1), for half a worker looks healthy and is not.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, TypeVar

import uvloop

from consumer import activate, db, heartbeats, migrate, telemetry
from consumer.agents import registry
from consumer.agents.door import Agent
from consumer.app import keeper
from consumer.app.stop import Stop
from consumer.app.watch import LoopWatch, watch_database
from consumer.doctor.pooler import refuse_pooler
from consumer.errors import ConfigurationError, Outage, TransactionConflict
from consumer.executor.loop import run_executor
from consumer.intake import Intake
from consumer.kafka import Brokers
from consumer.settings import Settings

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# Pauses between two looks for a dependency that is away at the start.
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
# What the parts may take beyond the drain itself: closing connections, leaving the group.
_CLOSING_SECONDS: Final = 10.0
# For tasks that were cancelled to end.
_LEAVING_SECONDS: Final = 2.0
_DIED: Final = 1
# New objects between two collections of the young ones.
_COLLECT_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Roles:
    """Which loops this process runs."""

    intake: bool
    execute: bool

    @property
    def names(self) -> list[str]:
        """The names of the loops."""
        return [name for name, runs in (("executor", self.execute), ("intake", self.intake)) if runs]


def run(settings: Settings, roles: Roles) -> int:
    """Run until told to stop; the exit code: 0 after a drain, 1 when a part has died.

    Raises:
        ConfigurationError: an operator must change something.
    """
    telemetry.configure(settings)
    telemetry.BUILD.set(1, version=version("rowcall"))
    agents = registry.load(settings)
    server = telemetry.serve(settings)
    _spare_the_collector()
    try:
        return uvloop.run(_main(settings, agents, roles))
    finally:
        server.close()


def _spare_the_collector() -> None:
    """Take what a process is made of out of garbage collection: looking through it again and again costs runs a tenth.

    Runs are made of thousands of short-lived objects without cycles; what has cycles is found a little later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


async def _main(settings: Settings, agents: Sequence[Agent], roles: Roles) -> int:
    telemetry.HEALTH.report("process", ready=False, detail="starting")
    stop = Stop()
    stop.listen()
    async with LoopWatch():
        if await patiently("schema", lambda: asyncio.to_thread(check_schema, settings), stop) is None:
            return 0
        watching = asyncio.create_task(
            watch_database(settings.database_url.get_secret_value(), settings.outbox_slot, stop),
            name="database watch",
        )
        beating = heartbeats.Heartbeats(
            settings.database_url.get_secret_value(), roles.names, seconds=settings.heartbeat_seconds
        )
        beating.start()
        if roles.intake:
            keeper.keep(settings, stop.thread_event)
        try:
            code = await _run_parts(_parts(settings, agents, roles, stop), settings, stop)
        finally:
            stop.request()
            await watching
            await asyncio.to_thread(beating.stop)
    await _leave(code)
    return code


async def _leave(code: int) -> None:
    """End the process here if something in it will not end: an agent may swallow its cancellation for ever."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if not left:
        return
    _, stubborn = await asyncio.wait(left, timeout=_LEAVING_SECONDS)
    if stubborn:
        names = ", ".join(sorted(task.get_name() for task in stubborn))
        _log.error("%s ignored being cancelled; leaving", names, extra={"action": "drain_overrun"})
        logging.shutdown()
        os._exit(code)


def _parts(settings: Settings, agents: Sequence[Agent], roles: Roles, stop: Stop) -> list[asyncio.Task[None]]:
    parts = []
    if roles.execute:
        parts.append(asyncio.create_task(_execute(settings, agents, stop), name="executor"))
    parts.append(asyncio.create_task(_feed(settings, agents, roles, stop), name="intake" if roles.intake else "feed"))
    return parts


async def _execute(settings: Settings, agents: Sequence[Agent], stop: Stop) -> None:
    async def attempt() -> None:
        telemetry.HEALTH.report("executor", ready=True, detail="running")
        await run_executor(settings, agents, stop.event)

    await patiently("executor", attempt, stop)


async def _feed(settings: Settings, agents: Sequence[Agent], roles: Roles, stop: Stop) -> None:
    """Activate what is to be activated, then read until stopped. Runs that wait already do not wait for Kafka."""
    if settings.auto_activate:
        await patiently("agents", lambda: asyncio.to_thread(_activate, settings, agents), stop)
    if not stop.requested:
        telemetry.HEALTH.report("process", ready=True, detail="running")
    if not roles.intake:
        await stop.event.wait()
        return
    loop = asyncio.get_running_loop()
    # A thread of its own: the default pool is for agents' synchronous steps.
    with ThreadPoolExecutor(1, thread_name_prefix="rowcall-intake") as thread:
        await patiently(
            "intake",
            lambda: loop.run_in_executor(thread, lambda: Intake(settings, agents).run(stop.thread_event)),
            stop,
        )


async def _run_parts(parts: Sequence[asyncio.Task[None]], settings: Settings, stop: Stop) -> int:
    done, running = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    unasked = not stop.requested
    stop.request()
    if running:
        late, running = await asyncio.wait(running, timeout=settings.drain_seconds + _CLOSING_SECONDS)
        done |= late
    if running:
        names = ", ".join(sorted(part.get_name() for part in running))
        _log.error("%s did not end; runs are left to their leases", names, extra={"action": "drain_overrun"})
        logging.shutdown()
        os._exit(_DIED)
    failures = [(part, error) for part in done if (error := part.exception()) is not None]
    for part, error in failures:
        if isinstance(error, ConfigurationError):
            raise error
        _log.error("%s died: %s", part.get_name(), error, extra={"action": "part_died"}, exc_info=error)
    if not failures and unasked:
        _log.error("a part ended without being asked to", extra={"action": "part_died"})
    if not failures and not unasked:
        _log.info("drained", extra={"action": "stopped"})
        return 0
    return _DIED


async def patiently(name: str, work: Callable[[], Awaitable[_T]], stop: Stop) -> _T | None:
    """What `work` returns, begun again while a dependency is away; None once the process is to stop.

    /readyz names it: not ready while it is waited for, ready when it is done.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not stop.requested:
        try:
            done = await work()
            if not stop.requested:
                telemetry.HEALTH.report(name, ready=True, detail="done")
            return done
        except (Outage, TransactionConflict) as error:
            if isinstance(error, Outage):
                telemetry.OUTAGES.add(dependency=error.dependency)
            _log.warning("%s; trying again in %g s", error, pause, extra={"action": "waiting", "code": error.code})
            telemetry.HEALTH.report(name, ready=False, detail=str(error))
        await stop.wait(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
    return None


def check_schema(settings: Settings) -> bool:
    """Whether the schema is this version's: True, or an error that says what to do."""
    with db.connect(settings.database_url.get_secret_value(), name="start") as session:
        refuse_pooler(session, settings.database_url.get_secret_value())
        migrate.check(session)
    return True


def _activate(settings: Settings, agents: Sequence[Agent]) -> bool:
    """Activate; without a word to Kafka where the database has every agent as the code does."""
    with db.connect(settings.database_url.get_secret_value(), name="activate") as session:
        known = {row.name: row for row in activate.roster(session).rows}
        stale = [agent for agent in agents if agent.name not in known or not known[agent.name].stands_for(agent)]
        if stale:
            activate.activate(session, Brokers(settings), stale)
    return True
