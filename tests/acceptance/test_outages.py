"""Parts of the stack die or are restarted under load: nothing lost, doubled or given up, and no storm of calls.

These tests stop parts of the shared stack; `disturbed` sees that all of it answers again at the end.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from debezium import stack as local_stack
from debezium.stack import StackInfo
from tests.fixtures.process import Process, eventually
from tests.fixtures.world import World

ROWS = 20_000
INSERT = "INSERT INTO public.things (id, kind) VALUES (%s, 'load') ON CONFLICT DO NOTHING"


@pytest.fixture(scope="module")
def worker(disturbed: StackInfo, world: World) -> Process:
    """One worker that lives through all of it."""
    world.add("plain", [-1])
    started = world.worker()
    started.says("place")
    return started


class Load:
    """Commits a row every 100 ms and goes on through every outage of the database."""

    def __init__(self, world: World, first: int) -> None:
        self._world = world
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ids: list[int] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        number, session = self._first, self._world.connect()
        while not self._stop.wait(0.1):
            try:
                session.execute(
                    "INSERT INTO public.things (id, kind) VALUES (%s, 'load') ON CONFLICT DO NOTHING", [number]
                )
            except psycopg.OperationalError:
                session.close()
                session = self._reconnected()
                continue  # the same row again: whether it was committed is not known
            self.ids.append(number)
            number += 1
        session.close()

    def _reconnected(self) -> psycopg.Connection[dict[str, object]]:
        while True:
            try:
                return self._world.connect()
            except psycopg.OperationalError:
                time.sleep(0.2)

    def more(self, count: int) -> None:
        """Wait until so many rows more are committed."""
        wanted = len(self.ids) + count
        eventually(f"{count} more rows", lambda: len(self.ids) >= wanted)


@contextmanager
def survived(world: World, first: int) -> Iterator[Load]:
    """Load before, during and after an outage; afterwards one run, one effect and one record for each row."""
    with Load(world, first) as load:
        load.more(5)
        world.has("loader", load.ids[:5])
        yield load
        load.more(5)
    world.has("loader", load.ids)
    wanted = Counter(load.ids)
    done = world.rows("SELECT thing FROM public.effects WHERE thing >= %s", first)
    assert Counter(row["thing"] for row in done) == wanted
    topic = f"{world.mark}.loaded"

    def sent() -> Counter[bytes]:
        # The outbox connector may send a record again; its ID tells.
        once = {dict(record.headers or [])["id"]: record.key for record in world.records(topic)}
        return Counter(key for key in once.values() if key is not None and int(key) >= first)

    eventually("a record for each", lambda: len(sent()) == len(wanted))
    assert sent() == Counter({str(number).encode(): 1 for number in load.ids})
    assert world.dead_letters() == []
    assert world.rows("SELECT id, status, last_error FROM rowcall.agent_jobs WHERE status <> 'SUCCEEDED'") == []
    assert {process.popen.poll() for process in world.processes} <= {None, 0}


def calls(world: World, first: int) -> int:
    """Model calls that were recorded before they were sent, for rows from `first` on."""
    (row,) = world.rows(
        "SELECT count(*) AS n FROM rowcall.external_calls c JOIN rowcall.agent_jobs j ON j.id = c.job_id"
        " WHERE j.job_type = 'loader' AND j.key_text::bigint >= %s",
        first,
    )
    return int(row["n"])


def test_connect_killed_while_rows_stream_sends_them_again_and_no_agent_runs_twice(
    world: World, worker: Process, disturbed: StackInfo
) -> None:
    def stream() -> None:
        with world.connect() as session:
            for first in range(0, ROWS, 250):
                session.execute(
                    "INSERT INTO public.things (id, kind) SELECT n, 'bulk' FROM generate_series(%s::int, %s::int) n",
                    (first, first + 249),
                )
                time.sleep(0.03)

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        eventually("a third has arrived", lambda: world.arrived(world.things) > ROWS / 3)
        local_stack.kill(disturbed.directory, "connect")
    finally:
        streaming.join(60)
    local_stack.restart(disturbed.directory, "connect")
    world.wait_slots()
    world.has("every", range(ROWS))
    world.has("sampler", range(0, ROWS, 100))
    changes = [(record, change) for record, change in world.changes(world.things) if change.row["kind"] == "bulk"]
    ids = Counter(change.id for _, change in changes)
    places = {(record.topic, record.partition, record.offset) for record, _ in changes}
    assert len(ids) == ROWS
    # A dedup by topic, partition and offset takes each record for an event of its own.
    doubled = len(places) - len(ids)
    assert doubled == len(changes) - len(ids) > 0
    assert world.keys("every", None) == list(range(ROWS))
    effects = world.rows("SELECT thing FROM public.effects")
    assert sorted(row["thing"] for row in effects) == list(range(0, ROWS, 100))
    assert world.dead_letters() == []


def test_postgres_restarted_under_load(world: World, worker: Process, disturbed: StackInfo) -> None:
    with survived(world, 100_000):
        local_stack.restart(disturbed.directory, "postgres")
    assert calls(world, 100_000) <= 2 * len(world.keys("loader"))


def test_broker_restarted_under_load(world: World, worker: Process, disturbed: StackInfo) -> None:
    with survived(world, 200_000):
        local_stack.restart(disturbed.directory, "kafka")


def test_connect_down_for_a_while(world: World, worker: Process, disturbed: StackInfo) -> None:
    with survived(world, 400_000) as load:
        local_stack.kill(disturbed.directory, "connect")
        load.more(100)
        local_stack.restart(disturbed.directory, "connect")
        world.wait_slots()


def test_model_endpoint_down_for_a_while_is_waited_for_without_a_storm(
    world: World, worker: Process, disturbed: StackInfo
) -> None:
    with survived(world, 500_000) as load:
        assert world.model is not None
        world.model.kill()
        load.more(120)
        before = calls(world, 500_000)
        world.start_model()
    runs = len([key for key in world.keys("loader") if key >= 500_000])
    after = calls(world, 500_000)
    # Five before; five failures open the circuit, with what was under way then; after that one probe at a time.
    assert before <= 40 < runs
    assert after <= runs + 40


def test_registry_dead_for_a_minute_under_a_worker_that_meets_a_schema_it_does_not_know(
    world: World, worker: Process, disturbed: StackInfo
) -> None:
    world.add("bulk", [540_001])
    world.has("every", [540_001])
    (found,) = [record for record, change in world.changes(world.things) if change.row["id"] == 540_001]
    assert found.value is not None
    known = world.registry.schema(int.from_bytes(found.value[1:5], "big"))
    unknown = world.registry.register(f"{world.mark}.unknown", {**known, "doc": world.mark})
    assert unknown.to_bytes(4, "big") != found.value[1:5]
    # The key is the same for all; their times and what the rows say tell them apart.
    ids = list(range(540_101, 540_121))
    outages = len(worker.records("outage"))

    def seen() -> Counter[int]:
        results = [json.loads(job["result_text"])["id"] for job in world.jobs("every")]
        return Counter(number for number in results if number in ids)

    with survived(world, 550_000) as load:
        local_stack.kill(disturbed.directory, "registry")
        died = time.monotonic()
        for number in ids:
            value = world.altered(found, number, seconds=10 * (number - ids[0]))
            world.send(world.things, value[:1] + unknown.to_bytes(4, "big") + value[5:], found.key)
        world.flush()
        eventually("the worker notices", lambda: len(worker.records("outage")) > outages)
        time.sleep(max(0.0, died + 60 - time.monotonic()))
        assert (seen(), worker.popen.poll()) == (Counter(), None)
        assert len(load.ids) > 100
        local_stack.restart(disturbed.directory, "registry")
        eventually("a run for each", lambda: len(seen()) == len(ids))
    assert seen() == Counter(ids)


def test_registry_down_while_a_worker_starts_that_knows_no_schema(
    world: World, worker: Process, disturbed: StackInfo
) -> None:
    # Last, for it ends the worker of the others.
    with survived(world, 600_000) as load:
        local_stack.kill(disturbed.directory, "registry")
        assert worker.stop() == 0
        fresh = world.worker()
        fresh.says("outage")
        load.more(100)
        local_stack.restart(disturbed.directory, "registry")
    assert fresh.records("recovered")
