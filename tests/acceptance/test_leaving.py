"""A worker whose agent will not end is gone all the same, and what it held is left to its lease."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from consumer import db
from tests.acceptance.test_cli import environment, eventually, executing, job, process, run

__all__ = ["environment", "executing"]

AGENT = """
import asyncio
from pydantic import BaseModel
from consumer.agents.door import Agent

class Answer(BaseModel):
    n: int

agent = Agent(name="immortal", version=1, answer=Answer)
AGENTS = [agent]

@agent.run
async def outlive(ctx, event):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


def test_an_agent_that_swallows_its_cancellation_for_ever_cannot_keep_the_process(executing: dict[str, str]) -> None:
    (Path(executing["PYTHONPATH"]) / "immortal_agents.py").write_text(AGENT)
    environment = executing | {
        "ROWCALL_AGENTS": "immortal_agents",
        "ROWCALL_DRAIN_SECONDS": "0.2",
        "ROWCALL_LEASE_SECONDS": "3",
        "ROWCALL_BEAT_SECONDS": "0.5",
    }
    with db.connect(executing["DATABASE_URL"], name="test") as session:
        session.execute("INSERT INTO rowcall.agents (name, version) VALUES ('immortal', 1)")
    queued = json.loads(run(environment, "enqueue", "immortal", "--payload", "{}", "--json").stdout)["job_id"]
    with process(environment, "execute") as worker:
        worker.wait_for("executor_started")
        eventually(lambda: job(environment, queued)["status"] == "RUNNING")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code(30) == 0
        (said,) = [record for record in worker.records() if record["action"] == "drain_overrun"]
    assert f"run {queued}" in said["message"]
    assert job(environment, queued)["status"] == "RUNNING"
