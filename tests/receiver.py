"""The other system of effects: a real HTTP server on loopback that counts what it was told to do, by both keys.

`POST /act` does something for the business key `n` of its JSON body, and then answers as `do` of the query says; with
`dedup=1` it does it once for each Idempotency-Key, as careful systems do. `GET /acts/<n>` tells whether it was done.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Receiver:
    """What it was asked and what it did. `held` is set to let the requests with `do=hold` be answered."""

    port: int = 0
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    held: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def act(self, key: str, number: str, *, dedup: bool) -> None:
        """Do it, or with `dedup` not a second time for the same key."""
        with self.lock:
            self.received[key] += 1
            if not (dedup and self.received[key] > 1):
                self.acts[number] += 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_GET(self) -> None:
        path, query = self._note(b"")
        if path.startswith("/acts/"):
            count = self.receiver.acts[path.removeprefix("/acts/")]
            self._answer(200 if count else 404, {"count": count})
        elif path == "/redirect":
            self._answer(302, {}, location=query["to"])
        elif path == "/big":
            self._answer(200, {"filler": "x" * int(query["bytes"])})
        else:
            self._answer(int(query.get("status", 200)), {"headers": {k.lower(): v for k, v in self.headers.items()}})

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size)
        if len(body) < size:
            # The sender died in between: no server acts on half a request.
            self.close_connection = True
            return
        _, query = self._note(body)
        key, do = self.headers.get("idempotency-key", ""), query.get("do", "")
        number = str(json.loads(body).get("n")) if body else ""
        if do.startswith("once-"):
            do = "" if self.receiver.received[key] else do.removeprefix("once-")
        refused = (do.isdigit() and 300 <= int(do) < 500) or do == "503"
        if refused:
            with self.receiver.lock:
                self.receiver.received[key] += 1
        else:
            self.receiver.act(key, number, dedup="dedup" in query)
        if do == "reset":
            self.close_connection = True
        elif do == "hold":
            self.receiver.held.wait(30)
            self._answer(200, {"did": number})
        elif do == "slow":
            time.sleep(float(query["seconds"]))
            self._answer(200, {"did": number})
        elif do == "cut":
            self.close_connection = True
            self.wfile.write(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"did"')
        elif do == "big":
            self._answer(200, {"filler": "x" * 100_000})
        elif do.isdigit():
            headers = {"retry-after": query["after"]} if "after" in query else {}
            self._answer(int(do), {"said": do, "echo": self.headers.get("authorization")}, **headers)
        else:
            self._answer(200, {"did": number, "echo": self.headers.get("authorization")})

    def _note(self, body: bytes) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.receiver.asked.append((self.command, self.path, headers, body))
        return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}

    def _answer(self, status: int, value: Any, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def receive() -> Iterator[Receiver]:
    """Run a receiver in threads of this process."""
    receiver = Receiver()
    handler = type("Handler", (_Handler,), {"receiver": receiver})
    with _Server(("127.0.0.1", 0), handler) as server:
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="receiver")
        thread.start()
        try:
            yield receiver
        finally:
            receiver.held.set()
            server.shutdown()
            thread.join(10)
