"""Health: whether the process lives, whether it is ready to work, and its metrics, over HTTP in a daemon thread.

/healthz is 200 while every registered loop has turned within its limit and every live check passes: a failure means
that only a restart helps. /readyz is 200 while also every part that is expected here has reported itself ready: a
failure means that work cannot be done now, as when the database is away. Both name each check in a JSON body. It
serves without any of the loops, so a hung loop is seen from outside.
"""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

from consumer.errors import ConfigurationError
from consumer.settings import Settings
from consumer.telemetry.logs import redact
from consumer.telemetry.metrics import REGISTRY

_log = logging.getLogger(__name__)

# A loop that has not turned for this long is taken for hung; each loop turns at least every few seconds when idle.
SILENCE_SECONDS: Final = 30.0
# Seconds a client may take for its request: a scraper that hangs must not keep a thread for ever.
_REQUEST_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    """What one check says: whether it holds, and a sentence for people."""

    ok: bool
    detail: str


class Loop:
    """The pulse of one loop. The loop calls `beat` each time it turns; /healthz looks at the silence since."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._last: float | None = time.monotonic()
        self.turns = 0

    def beat(self) -> None:
        """Say that the loop has turned."""
        self._last = time.monotonic()
        self.turns += 1

    def end(self) -> None:
        """Say that the loop has ended as it should; it is not looked at any more."""
        self._last = None

    @property
    def silence_seconds(self) -> float:
        """Seconds since the last beat; 0 once the loop has ended."""
        return 0.0 if self._last is None else time.monotonic() - self._last

    def status(self) -> Status:
        """Whether the loop turns."""
        if self._last is None:
            return Status(True, "ended")
        silence = self.silence_seconds
        return Status(silence <= self._limit, f"last turn {silence:.1f} s ago, limit {self._limit:g} s")


class Health:
    """The checks of one process. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, Callable[[], Status]] = {}
        self._ready: dict[str, Status] = {}
        self._loops: dict[str, Loop] = {}

    def loop(self, name: str, *, limit_seconds: float = SILENCE_SECONDS) -> Loop:
        """Register a loop by name and get its pulse; a second one of the same name replaces the first."""
        loop = Loop(limit_seconds)
        with self._lock:
            self._loops[name] = loop
        self.check(name, loop.status)
        return loop

    def check(self, name: str, function: Callable[[], Status]) -> None:
        """Register a live check. It is called by the HTTP thread and must answer at once."""
        with self._lock:
            self._live[name] = function

    def expect(self, name: str, detail: str = "starting") -> None:
        """Keep the process from being ready until `report` says that this part is."""
        with self._lock:
            self._ready.setdefault(name, Status(False, detail))

    def report(self, name: str, *, ready: bool, detail: str = "") -> None:
        """Say whether a part is ready to work, and why."""
        with self._lock:
            self._ready[name] = Status(ready, detail)

    def turns(self) -> dict[str, int]:
        """Loop → how often it has turned."""
        with self._lock:
            return {name: loop.turns for name, loop in self._loops.items()}

    def live(self) -> dict[str, Status]:
        """Name → status of every live check."""
        with self._lock:
            checks = list(self._live.items())
        return {name: function() for name, function in checks}

    def ready(self) -> dict[str, Status]:
        """Name → status of every live check and every part that must be ready."""
        with self._lock:
            parts = dict(self._ready)
        return self.live() | parts


HEALTH: Final = Health()
"""The checks of this process; stages register here."""


class HealthServer:
    """The HTTP server of one process; `port` is the one it listens on."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.port: int = server.server_address[1]
        self._thread = threading.Thread(target=server.serve_forever, name="rowcall-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(settings: Settings, health: Health = HEALTH) -> HealthServer:
    """Start answering on ROWCALL_HEALTH_HOST and ROWCALL_HEALTH_PORT.

    Raises:
        ConfigurationError: the port is taken or the address is not this machine's.
    """
    address = (settings.health_host, settings.health_port)
    try:
        server = _Server(address, type("Handler", (_Handler,), {"health": health}))
    except OSError as error:
        raise ConfigurationError(_refusal(settings, error)) from error
    started = HealthServer(server)
    _log.info(
        "health on http://%s:%s", settings.health_host, started.port, extra={"action": "health", "port": started.port}
    )
    return started


def _refusal(settings: Settings, error: OSError) -> str:
    where = f"{settings.health_host}:{settings.health_port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"the health port {where} is taken by another process. Set ROWCALL_HEALTH_PORT to a free one, "
            "or to 0 to have one picked"
        )
    if error.errno == errno.EACCES:
        return f"the health port {where} may not be opened by this user. Set ROWCALL_HEALTH_PORT to one above 1023"
    return f"cannot listen on {where}: {error.strerror or error}. Check ROWCALL_HEALTH_HOST and ROWCALL_HEALTH_PORT"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.exception("a health request failed", extra={"action": "health"})


class _Handler(BaseHTTPRequestHandler):
    health: Health
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(self.health.live())
        elif path == "/readyz":
            self._answer(self.health.ready())
        elif path == "/metrics":
            encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._send(200, content_type, encoder(REGISTRY))
        else:
            self._send(404, "text/plain; charset=utf-8", b"/healthz, /readyz and /metrics are here\n")

    def _answer(self, checks: dict[str, Status]) -> None:
        ok = all(check.ok for check in checks.values())
        shown = {name: {"ok": check.ok, "detail": redact(check.detail)} for name, check in sorted(checks.items())}
        body = json.dumps({"ok": ok, "checks": shown}).encode() + b"\n"
        self._send(200 if ok else 503, "application/json", body)

    def _send(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args, extra={"action": "health"})
