"""Fixtures of test modules that run executors: one database for the module, emptied for each test.

A module imports both by name and names them in `__all__`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.agents.doing import DONE
from tests.agents.harness import Records, records
from tests.fixtures.postgres import create, drop

__all__ = ["database", "view"]


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
