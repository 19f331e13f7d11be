"""The Restate side of runs_over_restate: the service that granian serves, and the client that calls it.

The service takes three named, durable steps with trivial bodies. `python -m benchmarks.restate_peer URL FLIGHT COUNT`
is the client: it keeps FLIGHT calls under way through the server's ingress. Prints `ready`, waits for a line, makes
COUNT calls, prints `done N`.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import restate
import uvloop

WARM_UP = 50

service = restate.Service("Bench")


def body(value: int) -> int:
    """A step's body that costs nothing."""
    return value


@service.handler()
async def run(context: restate.Context, value: int) -> int:
    """The three steps."""
    first = await context.run_typed("one", body, value=value)
    second = await context.run_typed("two", body, value=first + 1)
    return await context.run_typed("three", body, value=second + 1)


app = restate.app([service])


async def calls(session: aiohttp.ClientSession, url: str, flight: int, count: int) -> int:
    """So many calls, `flight` at a time; how many gave the right answer."""
    numbers = iter(range(count))
    right = 0

    async def caller() -> None:
        nonlocal right
        for number in numbers:
            async with session.post(f"{url}/Bench/run", json=number) as answer:
                right += await answer.json() == number + 2

    await asyncio.gather(*(caller() for _ in range(flight)))
    return right


async def main(url: str, flight: int, count: int) -> None:
    """Warm up, wait for the word, call."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=flight)) as session:
        await calls(session, url, flight, WARM_UP)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(f"done {await calls(session, url, flight, count)}", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
