"""Fixtures of test modules that run executors: one database for the module, emptied for each test.

A module imports what it needs by name and names it in `__all__`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.agents.doing import DONE
from tests.agents.harness import Records, records
from tests.fixtures.postgres import create, drop
from tests.receiver import Receiver, receive

__all__ = ["database", "receiver", "view"]


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[str]:
    """A migrated database; one for each test would cost most of a second."""
    url = create(server)
    yield url
    drop(url)


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    """What stands in it, which is nothing but the agents at first."""
    DONE.clear()
    async with records(database, clear=True) as found:
        yield found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """The other system of effects."""
    with receive() as found:
        yield found
