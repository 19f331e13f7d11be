"""Whether an agent can be queued by hand is told from what its run declares."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from consumer.agents.door import Agent
from consumer.cli import main
from consumer.records import Change, Event


class Answer(BaseModel):
    """What the agents would answer."""

    n: int


async def change(ctx: Any, message: Change) -> Answer:
    """Declared by name, as annotations are under `from __future__ import annotations`."""
    return Answer(n=1)


async def by_class(ctx: Any, message: Any) -> Answer:
    """Declared by the class itself."""
    return Answer(n=1)


async def event(ctx: Any, message: Event) -> Answer:
    """Takes what is queued."""
    return Answer(n=1)


async def either(ctx: Any, message: Change | Event) -> Answer:
    """Takes both."""
    return Answer(n=1)


by_class.__annotations__["message"] = Change
SILENT, ALONE = [lambda ctx, message: None, lambda: None]


@pytest.mark.parametrize(
    ("run", "topics", "expected"),
    [
        (change, ["any"], True),
        (by_class, [], True),
        (event, ["cdc.public.orders"], False),
        (either, ["cdc.public.orders"], False),
        (SILENT, ["cdc.public.orders"], True),
        (SILENT, ["cdc.public.orders", "orders.triaged"], False),
        (SILENT, [], False),
        (ALONE, [], False),
    ],
)
def test_a_run_that_wants_a_change_or_says_nothing_and_reads_rows_alone_expects_one(
    run: Any, topics: list[str], expected: bool
) -> None:
    agent = Agent(name="a", version=1, answer=Answer, topics=topics)
    agent.run(run)
    assert agent.expects_change(["cdc"]) is expected


def test_enqueue_refuses_an_agent_that_expects_a_row_change_before_anything_is_opened() -> None:
    arguments = ["enqueue", "order-triage", "--payload", "{}"]
    result = CliRunner().invoke(main, arguments, env={"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"})
    assert result.exit_code == 1
    assert "expects a row change" in result.stderr and "cdc.public.orders" in result.stderr
