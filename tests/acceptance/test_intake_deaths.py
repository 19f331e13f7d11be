"""Intake that dies or freezes between two of its acts: no second run for what was sent again, and none missing."""

from __future__ import annotations

import signal

import psutil
from confluent_kafka import Consumer, TopicPartition

from consumer.kafka import Record
from tests.fixtures.process import eventually
from tests.fixtures.world import World

CRASHING = "tests.agents.crashing_worker"


def committed(world: World) -> int:
    """How far Kafka has been told that our group is, over all partitions of things."""
    client = Consumer({"bootstrap.servers": world.stack.kafka_bootstrap_servers, "group.id": world.mark})
    try:
        places = [TopicPartition(world.things, number) for number in range(6)]
        return sum(max(0, place.offset) for place in client.committed(places, 20))
    finally:
        client.close()


def records_of(world: World, ids: range) -> list[Record]:
    """The row changes of these things."""
    return [record for record, change in world.changes(world.things) if change.row["id"] in ids]


def test_a_worker_killed_after_its_poll_or_before_its_offset_commit_gives_every_row_one_run(world: World) -> None:
    ids = range(60)
    world.add("bulk", ids)
    eventually("the rows are on the topic", lambda: len(records_of(world, ids)) == len(ids))

    died = world.worker(module=CRASHING, JOURNEY_DIE_AT="after_poll")
    assert died.ended() == -signal.SIGKILL
    assert world.jobs("every", None) == [] and world.rows("SELECT FROM rowcall.positions") == []

    died = world.worker(module=CRASHING, JOURNEY_DIE_AT="after_admit")
    assert died.ended() == -signal.SIGKILL
    admitted = world.keys("every", None)
    assert admitted and set(admitted) <= set(ids)
    assert committed(world) == 0
    # Kafka knows nothing of what was admitted; what it holds is sent once more on top, at new offsets.
    again = records_of(world, ids)
    for record in again:
        world.send(world.things, record.value, record.key, partition=record.partition)
    world.flush()

    worker = world.worker()
    more = range(60, 80)
    world.add("bulk", more)
    world.has("every", [*ids, *more])
    eventually("all is read", lambda: committed(world) == len(ids) * 2 + len(more))
    assert world.keys("every", None) == [*ids, *more]
    assert sorted(row["thing"] for row in world.rows("SELECT thing FROM public.effects")) == [0]
    assert world.dead_letters() == []
    assert worker.stop() == 0


def test_an_intake_frozen_inside_its_admission_holds_nobody_up_and_comes_back_without_harm(world: World) -> None:
    frozen = world.worker("intake", module=CRASHING, JOURNEY_DIE_AT="in_admission")
    frozen.says("place")
    ids = range(100, 130)
    world.add("bulk", ids)
    process = psutil.Process(frozen.popen.pid)
    eventually("it stands still", lambda: process.status() == psutil.STATUS_STOPPED)
    held = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rowcall admission'"
    assert world.rows(f"{held} AND state = 'idle in transaction'")

    other = world.worker()
    world.has("every", ids)
    more = range(130, 140)
    world.add("bulk", more)
    world.has("every", more)
    eventually("the server has ended the frozen transaction", lambda: len(world.rows(held)) == 1)

    frozen.popen.send_signal(signal.SIGCONT)
    eventually("it has seen what happened", lambda: frozen.records("outage") or frozen.records("fenced"))
    assert other.stop() == 0
    last = range(140, 160)
    world.add("bulk", last)
    eventually("it reads on alone", lambda: set(world.keys("every", None)) >= {*ids, *more, *last})
    assert [key for key in world.keys("every", None) if key >= 100] == [*ids, *more, *last]
    assert world.dead_letters() == []
    assert frozen.stop() == 0
