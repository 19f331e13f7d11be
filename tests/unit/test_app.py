"""How a process begins, waits, notices a hang, and ends, without any service."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from consumer import settings, telemetry
from consumer.app import process, watch
from consumer.app.stop import Stop
from consumer.errors import ConfigurationError, Outage

SETTINGS = settings.load({"ROWCALL_DRAIN_SECONDS": "1"})


def part(name: str, body: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
    async def run() -> None:
        await body()

    return asyncio.create_task(run(), name=name)


async def test_parts_that_drain_when_asked_end_with_0() -> None:
    stop = Stop()
    parts = [part("a", stop.event.wait), part("b", stop.event.wait)]
    asyncio.get_running_loop().call_later(0.05, stop.request)
    assert await process._run_parts(parts, SETTINGS, stop) == 0


async def test_a_part_that_dies_takes_the_others_down_with_it(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop()

    async def dies() -> None:
        raise ZeroDivisionError("in the intake")

    assert await process._run_parts([part("intake", dies), part("b", stop.event.wait)], SETTINGS, stop) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "intake died: in the intake" in record.getMessage()
    assert record.__dict__["action"] == "part_died"


async def test_a_part_that_simply_ends_is_dead_too(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop()

    async def ends() -> None:
        return

    assert await process._run_parts([part("a", ends), part("b", stop.event.wait)], SETTINGS, stop) == 1
    assert "without being asked" in caplog.text


async def test_what_an_operator_must_mend_is_raised_whichever_part_meets_it() -> None:
    stop = Stop()

    async def refused() -> None:
        raise ConfigurationError("wrong option")

    with pytest.raises(ConfigurationError, match="wrong option"):
        await process._run_parts([part("a", refused), part("b", stop.event.wait)], SETTINGS, stop)
    assert stop.requested and stop.thread_event.is_set()


async def test_a_dependency_that_is_away_is_waited_for_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(process, "_LONGEST_PAUSE_SECONDS", 0.03)
    asked = []

    async def work() -> str:
        asked.append(time.monotonic())
        if len(asked) < 5:
            raise Outage("the database does not answer", dependency="database")
        return "there"

    assert await process.patiently("a part", work, Stop()) == "there"
    pauses = [record.getMessage().rpartition(" in ")[2] for record in caplog.records]
    assert pauses == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]
    assert telemetry.HEALTH.ready()["a part"].ok


async def test_waiting_ends_when_the_process_is_to_stop() -> None:
    stop = Stop()

    async def work() -> str:
        raise Outage("away", dependency="broker")

    asyncio.get_running_loop().call_later(0.05, stop.request)
    began = time.monotonic()
    assert await process.patiently("a part", work, stop) is None
    assert time.monotonic() - began < 0.9


async def test_a_blocked_event_loop_is_seen_from_outside(caplog: pytest.LogCaptureFixture) -> None:
    health = telemetry.Health()
    seen: list[float] = []

    async with watch.LoopWatch(health):
        await asyncio.sleep(0.1)
        assert health.live()["event_loop"].ok
        watcher = threading.Timer(2.2, lambda: seen.append(silence(health)))
        watcher.start()
        stand_still()
        watcher.join()
    assert seen[0] > 1.5
    (record,) = [record for record in caplog.records if record.__dict__.get("action") == "loop_blocked"]
    assert "stand_still" in record.__dict__["stack"]
    assert health.live()["event_loop"].detail == "ended"


def stand_still() -> None:
    """The mistake that the watch is there for."""
    time.sleep(2.4)


def silence(health: telemetry.Health) -> float:
    return float(health.live()["event_loop"].detail.split()[2])


async def test_a_loop_that_stands_for_longer_than_the_limit_fails_the_health_check() -> None:
    health = telemetry.Health()
    loop = health.loop("event_loop", limit_seconds=0.05)
    await asyncio.sleep(0.1)
    assert not health.live()["event_loop"].ok
    loop.beat()
    assert health.live()["event_loop"].ok
