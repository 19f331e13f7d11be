"""The loop that claims runs and starts them: wakes on a hint, on freed capacity, or by itself when idle."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumer import claim, db, limits, moves, outcome, steps, validate
from consumer.agents.door import Agent
from consumer.agents.door import Retry as RetryPolicy
from consumer.errors import ConfigurationError, LeaseLost, Outage, RowcallError, TransactionConflict
from consumer.executor.beat import Beat
from consumer.executor.commit import GroupCommit
from consumer.executor.context import PoolReader, Services
from consumer.executor.holding import Waits
from consumer.executor.measure import attempt_ended
from consumer.executor.outside import Outside
from consumer.executor.permits import Permits
from consumer.executor.run import Performed, perform
from consumer.executor.settlement import Settler
from consumer.executor.upkeep import Upkeep
from consumer.executor.wake import Wake
from consumer.llm import ModelClient
from consumer.outbox import Outbox
from consumer.records.jobs import ClaimedJob, Lost, Released, Retry, Verdict, storable
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.telemetry import CLAIMED, HEALTH, OUTAGES, PROMOTED, RUNS_IN_FLIGHT

_log = logging.getLogger(__name__)
# How long claims of an agent stop when every model call is refused (credentials, quota, model name).
_PAUSE_SECONDS = 300.0
# While another worker promotes: look again soon, its jobs may be more than it can hold.
_PROMOTION_WAIT = 0.02
# A group of runs must not wait longer for one row that somebody else holds.
_LOCK_SECONDS = 0.5
# Sessions: for grouped writes and claims, for outcomes with agents' SQL, for agents' reads.
_POOL_SIZE = 6
_WRITERS = 8
_READERS = 4


@dataclass
class _Active:
    """A run this worker holds. `verdict` is set by whoever takes the run away from its task.

    `settling` from the moment its end is being written: then the fence decides, and a beat that no longer finds the run
    RUNNING has seen its end, not its loss.
    """

    job: ClaimedJob
    task: asyncio.Task[None]
    verdict: Verdict | None = None
    settling: bool = False


class Executor:
    """Runs agents until told to stop; build it with `open_executor`."""

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[Agent],
        pool: db.AsyncPool,
        services: Services,
        settler: Settler,
        wake: Wake,
    ) -> None:
        self._settings = settings
        self._agents = {agent.name: agent for agent in agents}
        self._pool = pool
        self._services = services
        self._settler = settler
        self._wake = wake
        self._policy = settler.policy
        # The deadline in the database comes a lease later than our own, which ends the run first if anything here can:
        # so a lease that ends before it was lost with its worker, and one that reaches it belongs to a run that hangs.
        self._lease = claim.Lease(
            uuid.uuid4(), settings.lease_seconds, settings.run_deadline_seconds + settings.lease_seconds
        )
        self._deadlines = {
            agent.name: agent.deadline_seconds + settings.lease_seconds
            for agent in agents
            if agent.deadline_seconds is not None
        }
        # By epoch too: a worker may take its own run over while the old attempt is still ending.
        self._active: dict[tuple[int, int], _Active] = {}
        # Those of them whose end is being written.
        self._ending = 0
        self._loop = asyncio.get_running_loop()
        self._beat = Beat(
            settings.database_url.get_secret_value(),
            seconds=settings.beat_seconds,
            lease_seconds=settings.lease_seconds,
            lost=self._lost_in_thread,
        )
        self._upkeep = Upkeep(list(self._agents), lease_seconds=settings.lease_seconds, permits=services.permits)
        # The last look found nothing, and nothing has happened since.
        self._idle = False
        self._pulse = HEALTH.loop("executor", limit_seconds=max(30.0, 5 * settings.poll_seconds))

    @property
    def in_flight(self) -> int:
        """Runs held now."""
        return len(self._active)

    async def run(self, stop: asyncio.Event) -> None:
        """Claim and run until `stop` is set, then drain: finish what can be finished, give the rest back."""
        self._beat.start()
        _log.info(
            "executor started", extra={"action": "executor_started", "owner": str(self._lease.owner),
                                       "agents": sorted(self._agents)},
        )  # fmt: skip
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        try:
            while not stop.is_set():
                pause = await self._look()
                woken = await self._wake.wait(pause)
                self._idle = self._idle and not woken
        finally:
            stopping.cancel()
            await self._drain()
            self._beat.stop()
            self._pulse.end()

    async def _look(self) -> float:
        """One look for work; returns how long to wait for the next, in seconds, unless something happens before."""
        self._pulse.beat()
        RUNS_IN_FLIGHT.set(len(self._active))
        room = self._room()
        placed, jobs = 0, list[ClaimedJob]()
        versions = {agent.name: agent.version for agent in self._agents.values()}
        turn: float | None = None
        try:
            with db.translated():
                async with self._pool.connection() as session:
                    await self._upkeep.tend(session)
                    if room > 0 and not (self._idle and not await claim.any_work(session, versions)):
                        placed = await claim.promote(session)
                        jobs = await self._claim(session, room, versions)
                        if self._upkeep.rated and len(jobs) < room:
                            turn = await limits.next_permit(session, list(self._agents))
        except TransactionConflict:
            return 0.0
        except ConfigurationError:
            raise
        except RowcallError as error:
            # Whatever one row or one moment refuses must not end the worker for all.
            _log.error("no work can be claimed: %s", error, extra={"action": "claim_failed", "code": error.code})
            if isinstance(error, Outage):
                OUTAGES.add(dependency="database")
            HEALTH.report("executor database", ready=False, detail=str(error))
            return 1.0
        HEALTH.report("executor database", ready=True)
        self._idle = not placed and not jobs
        PROMOTED.add(max(0, placed))
        for job in jobs:
            CLAIMED.add(agent=job.agent)
            self._start(job)
        self._beat.refuse_silence()
        if placed < 0:
            return _PROMOTION_WAIT
        pause = self._settings.poll_seconds if turn is None else min(turn, self._settings.poll_seconds)
        # A full claim or a full promotion: there is more.
        if room <= 0 or (jobs and len(jobs) < room and placed < claim.PROMOTE_LIMIT):
            return pause
        return 0.0 if jobs or placed else pause

    def _room(self) -> int:
        """How many runs may be claimed. Those whose end is being written leave theirs to the next ones, up to as many
        again as may be in flight: claims and writes need not wait for each other.
        """
        most, held = self._settings.runs_in_flight, len(self._active)
        return most - max(held - self._ending, held - most)

    def _settling(self, active: _Active) -> None:
        if not active.settling:
            active.settling = True
            self._ending += 1
            self._wake.set()

    async def _claim(self, session: db.Session, room: int, versions: Mapping[str, int]) -> list[ClaimedJob]:
        """Up to `room` runs; of those that may be what kills their workers, one at a time."""
        suspects = sum(active.job.losses >= claim.SUSPECT_LOSSES for active in self._active.values())
        return await claim.claim(
            session, self._lease, list(self._agents), room,
            versions=versions,
            deadlines=self._deadlines,
            suspects=1 - suspects,
        )  # fmt: skip

    def _start(self, job: ClaimedJob) -> None:
        self._beat.hold(job.id, job.epoch)
        task = asyncio.create_task(self._work(job), name=f"run {job.id}")
        self._active[job.id, job.epoch] = _Active(job, task)

    async def _work(self, job: ClaimedJob) -> None:
        active = self._active[job.id, job.epoch]
        began = time.monotonic()
        verdict: Verdict
        try:
            verdict = await self._performed_and_settled(active)
        except LeaseLost as error:
            verdict = Lost(str(error))
        except Exception as error:  # noqa: BLE001 - a task that dies in silence would hide the run's end
            # The lease runs out and another attempt finds every finished step.
            _log.error(
                "run left to its lease: %s", error, exc_info=not isinstance(error, RowcallError),
                extra={"action": "run_unsettled", **job.labels},
            )  # fmt: skip
            verdict = Lost(str(error))
        finally:
            self._beat.release(job.id, job.epoch)
            self._active.pop((job.id, job.epoch), None)
            self._ending -= active.settling
            self._wake.set()
        attempt_ended(job, verdict, time.monotonic() - began)
        if isinstance(verdict, Retry):
            self._loop.call_later(verdict.delay_seconds, self._wake.set)

    async def _performed_and_settled(self, active: _Active) -> Verdict:
        job, agent = active.job, self._agents[active.job.agent]
        started_at = dt.datetime.now(dt.UTC)
        try:
            performed = await perform(job, agent, self._services, self._policy, self._settings.run_deadline_seconds)
            self._settling(active)
            if performed.pause_agent is not None:
                await self._pause(job.agent, performed.pause_agent)
            return await self._settler.settle(job, agent, performed, started_at)
        except asyncio.CancelledError:
            if active.verdict is None:
                raise
            # Whatever was being written was rolled back, or has landed; the fence of this write tells which.
            self._settling(active)
            return await self._settler.settle(job, agent, Performed(active.verdict, None, 0), started_at)

    async def _pause(self, agent: str, reason: str) -> None:
        _log.error(
            "agent paused for %d s: %s. Mend the cause, then `rowcall agents resume %s`", _PAUSE_SECONDS, reason,
            agent, extra={"action": "agent_paused", "agent": agent},
        )  # fmt: skip
        with db.translated():
            async with self._pool.connection() as session:
                await claim.pause_agent(session, agent, storable(reason), _PAUSE_SECONDS)

    def _lost_in_thread(self, job_id: int, epoch: int) -> None:
        self._loop.call_soon_threadsafe(self._lose, job_id, epoch)

    def _lose(self, job_id: int, epoch: int) -> None:
        """Another owner has the run: stop working on it."""
        active = self._active.get((job_id, epoch))
        if active is not None and not active.settling:
            active.verdict = Lost(f"run {job_id} was taken over by another worker (epoch {epoch} is over)")
            active.task.cancel()

    async def _drain(self) -> None:
        tasks = {active.task for active in self._active.values()}
        if not tasks:
            return
        _log.info("draining %d runs", len(tasks), extra={"action": "drain"})
        _, pending = await asyncio.wait(tasks, timeout=self._settings.drain_seconds)
        for active in list(self._active.values()):
            if active.task in pending:
                active.verdict = Released("the worker was stopped")
                active.task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=self._settings.lease_seconds)


async def run_executor(settings: Settings, agents: Sequence[Agent], stop: asyncio.Event) -> None:
    """Open everything the executor needs, run it until `stop` is set, drain, close.

    Raises:
        Outage, ConfigurationError: when the database cannot be opened at the start.
    """
    url = settings.database_url.get_secret_value()
    patience = idle = settings.lease_seconds
    pool = await db.open_pool(
        url, name="executor", size=_POOL_SIZE, idle_seconds=idle, lock_seconds=_LOCK_SECONDS, by_key=True
    )
    writers = await db.open_pool(url, name="executor outcome", size=_WRITERS, idle_seconds=idle, for_agents=True)
    readers = await db.open_pool(
        url, name="agent sql", size=_READERS, idle_seconds=idle, read_only=True, for_agents=True
    )
    model = ModelClient(settings)
    wake = Wake(url)
    try:
        with db.translated():
            async with pool.connection() as session:
                system = await outcome.system_identifier(session)
        services = _services(settings, agents, pool, readers, model)
        outbox = Outbox(SchemaRegistry(settings.schema_registry_url), namespace=f"{system}:{settings.epoch}")
        await _prepare(outbox)
        settler = Settler(
            pool=writers,
            group=GroupCommit(
                pool, moves.settle_group, name="outcomes", patience=patience, weigh=lambda move: len(move.result or "")
            ),
            send=outbox.send,
            policy=RetryPolicy(settings.retry_base_seconds, settings.retry_cap_seconds),
            system=system,
            patience=patience,
            deadline_seconds=settings.run_deadline_seconds,
            waits=Waits(settings.review_expire_hours * 3600.0, settings.review_escalate_hours * 3600.0),
        )
        wake.start()
        await Executor(settings, agents, pool, services, settler, wake).run(stop)
    finally:
        await wake.close()
        await model.aclose()
        await readers.close()
        await writers.close()
        await pool.close()


def _services(
    settings: Settings, agents: Sequence[Agent], pool: db.AsyncPool, readers: db.AsyncPool, model: ModelClient
) -> Services:
    """What all runs share; grouped writes wait for the database as long as a lease lasts."""
    patience = settings.lease_seconds

    async def keep(session: db.Session, items: Sequence[steps.Checkpoint]) -> Sequence[bool]:
        return await steps.checkpoint(session, items, settings.lease_seconds)

    return Services(
        checkpoints=GroupCommit(pool, keep, name="checkpoints", patience=patience, weigh=lambda step: len(step.output)),
        calls_sent=GroupCommit(pool, steps.call_sent, name="calls sent", patience=patience),
        calls_done=GroupCommit(
            pool, steps.call_done, name="calls done", patience=patience, weigh=lambda call: len(call.response or "")
        ),
        model=model,
        permits=Permits(pool, settings, patience=patience),
        reader=PoolReader(readers),
        outside=Outside.of(settings, pool),
        own_sources=frozenset(settings.own_sources),
        least_tiers=validate.least_tiers(settings.least_tiers, agents),
    )


async def _prepare(outbox: Outbox) -> None:
    """Register the schemas of result topics before any outcome needs them; a registry that is away is asked again then.

    Raises:
        ConfigurationError: the registry refuses a schema.
    """
    try:
        await outbox.prepare()
    except Outage as error:
        _log.warning("schemas are not registered yet: %s", error, extra={"action": "registry_outage"})
