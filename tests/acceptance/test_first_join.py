"""The first group of a fresh broker, whose topics come into being while it joins: every row wakes its agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from consumer import db, migrate
from debezium import stack as local_stack
from debezium.paths import cache_directory
from tests.fixtures.postgres import with_database
from tests.fixtures.world import TABLES, World


@pytest.fixture
def fresh_world(tmp_path: Path) -> Iterator[World]:
    """A world on a stack of its own that nobody has used before, with its agents active and its slots in use."""
    directory = cache_directory() / "tests" / f"first-{tmp_path.name[-40:]}"
    local_stack.stop(directory, remove=True)
    stack = local_stack.start(directory, attached=True)
    try:
        with psycopg.connect(stack.database_url, autocommit=True) as session:
            session.execute("CREATE DATABASE first")
        url = with_database(stack.database_url, "first")
        with db.connect(url, name="first") as migrating:
            migrate.migrate(migrating)
        world = World(stack, url, tmp_path)
        world.do(TABLES)
        world.command("agents", "activate")
        world.apply("rows")
        world.apply("outbox")
        yield world
        world.close()
    finally:
        local_stack.stop(directory, remove=True)


def test_rows_committed_while_the_first_worker_of_a_fresh_broker_starts_all_wake_their_agents(
    fresh_world: World,
) -> None:
    world = fresh_world
    worker = world.worker()
    for number in range(10):
        world.add("write", [number])
    world.has("writer", range(10), 60)
    # The result topic has come into being meanwhile, too, by the first write.
    world.has("chained", range(10), 60)
    assert world.dead_letters() == []
    assert worker.stop() == 0
