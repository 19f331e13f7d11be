"""The scripted model endpoint: a real HTTP server on loopback that answers as it is told.

The only fake in the tests besides the database's clock. In a test it runs in a thread (`with serve(...) as endpoint`);
for acceptance tests, demo and benchmarks it is a process: `python -m tests.scripted_model --port N --script FILE
[--log FILE]` prints `listening on PORT` and serves until SIGTERM. A script is JSON:

    {"rules": [{"contains": "text of the request, or absent", "replies": [REPLY, …]}]}

The first rule whose text stands in the request's body (`contains` left out: any) gives its replies in turn, the last of
them for ever. The fields of REPLY are those of `Reply`. `PUT /script` replaces the script of a running endpoint,
`GET /calls` lists what it has received, `GET /health` answers 200. Each request is written to the log as one JSON line
before it is answered, so that calls can be counted by idempotency key even after a SIGKILL; a key is logged as digest.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

_SECRET_HEADERS: Final = frozenset({"authorization", "api-key", "x-api-key"})
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Args:
        answer: wrapped as the content of a chat completion (a str as it is, anything else as JSON).
        body: the whole body instead: a str as it is, anything else as JSON.
        finish_reason, usage, model: parts of that chat completion; `usage` None leaves it out.
        headers: more headers; they replace the usual ones of the same name.
        delay_seconds: silence before the status line.
        keep_alive_seconds: send the head at once and a blank line at this interval, `keep_alive_count` times (None: for
            ever), then the body.
        cut_after: close the connection after so many bytes of the body; 0 closes it before the status line.
    """

    answer: Any = None
    body: Any = None
    status: int = 200
    finish_reason: str | None = "stop"
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 11, "completion_tokens": 7})
    model: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    keep_alive_seconds: float | None = None
    keep_alive_count: int | None = None
    cut_after: int | None = None

    def payload(self) -> bytes:
        """The bytes of the body."""
        if self.body is not None:
            return self.body.encode("utf-8", "surrogatepass") if isinstance(self.body, str) else _json(self.body)
        content = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        completion: dict[str, Any] = {
            "id": "cmpl-1",
            "object": "chat.completion",
            "model": self.model,
            "choices": [
                {
                    "index": 0,
                    "finish_reason": self.finish_reason,
                    "message": {"role": "assistant", "content": content},
                }
            ],
        }
        if self.usage is not None:
            completion["usage"] = self.usage
        return _json(completion)

    def head(self, length: int | None) -> bytes:
        """Status line and headers; `length` None sends the body in chunks."""
        headers = {"content-type": "application/json"} | {name.lower(): text for name, text in self.headers.items()}
        headers |= {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Call:
    """One request as received; `at` in seconds since 1970."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def line(self) -> bytes:
        """The log line."""
        headers = {
            name: hashlib.sha256(text.encode()).hexdigest()[:16] if name in _SECRET_HEADERS else text
            for name, text in self.headers.items()
        }
        line = {
            "at": self.at,
            "path": self.path,
            "idempotency_key": self.headers.get("idempotency-key"),
            "sha256": hashlib.sha256(self.body).hexdigest(),
            "headers": headers,
            "body": self.body.decode("utf-8", "replace"),
        }
        return _json(line) + b"\n"


@dataclass
class _Rule:
    contains: bytes
    replies: Sequence[Reply]
    heads: list[tuple[bytes, bytes]]
    used: int = 0

    def next(self) -> tuple[Reply, bytes, bytes]:
        index = min(self.used, len(self.replies) - 1)
        self.used += 1
        return self.replies[index], *self.heads[index]


class Script:
    """What to answer, and what was asked so far."""

    def __init__(self, rules: Sequence[tuple[str, Sequence[Reply]]], log: BinaryIO | None = None) -> None:
        self.calls: list[Call] = []
        self.connections: set[_Connection] = set()
        self._log = log
        self.replace(rules)

    def replace(self, rules: Sequence[tuple[str, Sequence[Reply]]]) -> None:
        """Answer by other rules from now on."""
        self._rules = []
        for contains, replies in rules:
            payloads = [reply.payload() for reply in replies]
            heads = [(reply.head(len(body)), body) for reply, body in zip(replies, payloads, strict=True)]
            self._rules.append(_Rule(contains.encode(), replies, heads))

    def answer(self, call: Call) -> tuple[Reply, bytes, bytes]:
        """Note the call; give the reply with its head and body as bytes."""
        self.calls.append(call)
        if self._log is not None:
            self._log.write(call.line())
        for rule in self._rules:
            if rule.contains in call.body:
                return rule.next()
        missing = Reply(status=500, body={"error": {"message": "no rule of the script fits this request"}})
        return missing, missing.head(len(missing.payload())), missing.payload()


class _Connection(asyncio.Protocol):
    """One connection: reads requests, answers each as scripted, one after the other."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._script.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._script.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (call := self._take()) is not None:
            if call.path.partition("?")[0].endswith("/chat/completions"):
                self._serve(*self._script.answer(call))
            else:
                self._control(call)

    def _take(self) -> Call | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        if len(self._buffer) < end + 4 + size:
            return None
        body = self._buffer[end + 4 : end + 4 + size]
        self._buffer = self._buffer[end + 4 + size :]
        method, path, _ = first.split(" ", 2)
        return Call(time.time(), method, path, headers, body)

    def _serve(self, reply: Reply, head: bytes, body: bytes) -> None:
        if reply.cut_after is None and not reply.delay_seconds and reply.keep_alive_seconds is None:
            self._write(head + body)
        else:
            self._task = asyncio.get_running_loop().create_task(self._serve_slowly(reply, head, body))

    async def _serve_slowly(self, reply: Reply, head: bytes, body: bytes) -> None:
        await asyncio.sleep(reply.delay_seconds)
        if reply.cut_after is not None:
            self._write(head + body[: reply.cut_after] if reply.cut_after else b"")
            assert self._transport is not None
            self._transport.close()
        elif reply.keep_alive_seconds is not None:
            await self._serve_alive(reply, body)
        else:
            self._write(head + body)

    async def _serve_alive(self, reply: Reply, body: bytes) -> None:
        self._write(reply.head(None))
        sent = 0
        assert reply.keep_alive_seconds is not None
        while reply.keep_alive_count is None or sent < reply.keep_alive_count:
            self._write(b"1\r\n\n\r\n")
            sent += 1
            await asyncio.sleep(reply.keep_alive_seconds)
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    def _control(self, call: Call) -> None:
        status = 200
        result: dict[str, Any] = {"calls": len(self._script.calls)}
        if (call.method, call.path) == ("PUT", "/script"):
            self._script.replace(rules_of(call.json()))
        elif (call.method, call.path) == ("GET", "/calls"):
            result["requests"] = [json.loads(item.line()) for item in self._script.calls]
        elif call.path != "/health":
            status = 404
        reply = Reply(status=status, body=result)
        self._write(reply.head(len(reply.payload())) + reply.payload())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint in this process."""

    port: int
    script: Script

    @property
    def url(self) -> str:
        """What MODEL_BASE_URL must be."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> list[Call]:
        """The requests so far, oldest first."""
        return self.script.calls

    @property
    def connections(self) -> Collection[object]:
        """The connections that are open now."""
        return self.script.connections


@contextmanager
def serve(
    *replies: Reply, rules: Sequence[tuple[str, Sequence[Reply]]] = (), log: Path | None = None
) -> Iterator[Endpoint]:
    """Run an endpoint in a thread: `replies` in turn for every request that no rule of `rules` takes."""
    file = None if log is None else log.open("ab", buffering=0)
    script = Script([*rules, *([("", replies)] if replies else [])], file)
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    ports: list[int] = []

    def ready(port: int) -> None:
        ports.append(port)
        started.set()

    thread = threading.Thread(
        target=loop.run_until_complete, args=(_listen(script, 0, stop, ready),), name="scripted-model"
    )
    thread.start()
    try:
        assert started.wait(10), "the scripted endpoint did not start"
        yield Endpoint(ports[0], script)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
        if file is not None:
            file.close()


def rules_of(document: Mapping[str, Any]) -> list[tuple[str, list[Reply]]]:
    """The rules of a script in JSON form."""
    return [
        (str(rule.get("contains", "")), [Reply(**reply) for reply in rule["replies"]]) for rule in document["rules"]
    ]


async def _listen(script: Script, port: int, stop: asyncio.Event, ready: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(script), "127.0.0.1", port, backlog=2048)
    ready(server.sockets[0].getsockname()[1])
    await stop.wait()
    # First no new connections, then the end of those there are, and only then the server: asyncio drops what it had
    # just accepted, unclosed, when it finds the server closed.
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    while script.connections or len(asyncio.all_tasks()) > 1:
        for connection in list(script.connections):
            connection.close()
        await asyncio.sleep(0)
    server.close()
    await server.wait_closed()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


async def _main(port: int, script: Script) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await _listen(script, port, stop, lambda bound: print(f"listening on {bound}", flush=True))


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="0 picks one and prints it")
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path, help="JSON lines, one for each request, appended")
    options = parser.parse_args()
    log = None if options.log is None else options.log.open("ab", buffering=0)
    asyncio.run(_main(options.port, Script(rules_of(json.loads(options.script.read_text("utf-8"))), log)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
