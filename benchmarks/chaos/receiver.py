"""The system that agents have an effect on: `python -m benchmarks.chaos.receiver --journal FILE --delay SECONDS`.

A real HTTP server on loopback. It acts once for an idempotency key, as payment providers do, and answers a repeated
request as it answered the first. Its journal has a line for each request, written before the answer leaves: what it was
about, under which key, and whether it was acted on. Prints `listening on PORT`; serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class Receiver:
    """Acts on orders and keeps the journal; `delay` in seconds before each answer."""

    def __init__(self, journal: Path, delay: float) -> None:
        self._journal = journal.open("a", buffering=1)
        self._delay = delay
        self._acted: set[str] = set()

    async def act(self, request: Request) -> JSONResponse:
        """Act on one request, or recognise it."""
        order, key = (await request.json())["order"], request.headers["idempotency-key"]
        first = key not in self._acted
        self._acted.add(key)
        self._journal.write(json.dumps({"order": order, "key": key, "acted": first}) + "\n")
        await asyncio.sleep(self._delay)
        return JSONResponse({"order": order})


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds")
    options = parser.parse_args()
    application = Starlette(routes=[Route("/", Receiver(options.journal, options.delay).act, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(application, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
