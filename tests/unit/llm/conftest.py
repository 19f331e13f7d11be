"""Clients opened by a test are closed with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.llm.asking import OPENED


@pytest.fixture(autouse=True)
async def _clients() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().aclose()
