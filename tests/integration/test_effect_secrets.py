"""What a server repeats of a request in the place of an answer is kept nowhere with its secret."""

from __future__ import annotations

import asyncio

import pytest

from consumer.agents.door import Agent, Context, secret
from consumer.records import Event
from tests.agents.doing import Note
from tests.agents.harness import records, running, settings
from tests.agents.shared import database

__all__ = ["database"]

SECRET = "s3cret-of-the-crm"
parrot = Agent(name="parrot", version=1, answer=Note, max_attempts=1)


@parrot.run
async def ask(ctx: Context, event: Event) -> Note:
    """Reads from a server that speaks no HTTP."""
    await ctx.http("read", "GET", event.data["url"], params={"q": secret("PARROT_TOKEN")})
    return Note(title="read", score=1)


async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what it gets."""
    writer.write(await reader.readuntil(b"\r\n\r\n"))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_a_secret_that_a_server_repeats_in_its_status_line_is_kept_nowhere(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PARROT_TOKEN", SECRET)
    listener = await asyncio.start_server(repeat, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, records(database, clear=True) as view:
        await view.know([parrot])
        async with running(settings(database, http_allow=("127.0.0.0/8",)), agents=[parrot]):
            job_id = await view.add("parrot", {"url": f"http://127.0.0.1:{port}/"}, attempts=1)
            job = await view.wait(job_id, "FAILED")
        call = await view.one("SELECT endpoint, error FROM rowcall.external_calls")
    assert job["error_code"] == "http_broken" and "***" in job["last_error"]
    assert SECRET not in f"{job} {call} {caplog.text}"
