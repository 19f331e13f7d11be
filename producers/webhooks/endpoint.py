"""The HTTP side of webhooks: one POST, one event, answered when the brokers have it.

Answers: 202 taken; 401 not the source's own; 404 no such source; 405 not POST; 408 too slow; 413 too long; 429 too
many; 503 the brokers, or this process' memory, cannot take it now (with Retry-After, so that the sender comes again).
Promises: nothing is answered 202 that is not on the topic; a delivery that is sent again has the same event ID, so it
wakes no agent twice.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from consumer.errors import ConfigurationError, Outage, RowcallError
from consumer.telemetry import WEBHOOKS
from producers.emit import Emitter, Produced, identity
from producers.webhooks.signatures import Refused, Verifier, challenge, delivery, kept_headers
from producers.webhooks.sources import DEFAULT_TOPIC, Keyring, Source

_log = logging.getLogger(__name__)
RETRY_AFTER_SECONDS: Final = 5
BODY_SECONDS: Final = 30.0
"""Time for a body to come: who sends slowly must not hold a place that others need."""

MEMORY: Final = 256 * 1024 * 1024
"""Bytes of bodies that are read and not yet on a topic, in all; none of them is verified before it is whole."""


class TooLong(Exception):
    """A body beyond the source's limit."""


class Bucket:
    """A token bucket: `burst` requests at once, `rate` a second in the long run."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), time.monotonic()

    def take(self) -> bool:
        """Whether one more request is allowed now."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Room:
    """Bytes that may be held at once, over all sources."""

    def __init__(self, size: int = MEMORY) -> None:
        self._free = size

    def take(self, size: int) -> bool:
        """Whether there was room; it is taken then."""
        if size > self._free:
            return False
        self._free -= size
        return True

    def give(self, size: int) -> None:
        """Give it back."""
        self._free += size


class Receiver:
    """Takes the requests of one source."""

    def __init__(self, source: Source, keyring: Keyring, emitter: Emitter, room: Room) -> None:
        self.source = source
        self._room = room
        self._verifier = Verifier(source, keyring)
        self._bucket = Bucket(source.rate_per_second, source.burst)
        self._emitter = emitter
        self.prepared = False

    async def receive(self, request: Request) -> Response:
        """Verify, send, answer."""
        if not self._bucket.take():
            return self._answer("limited", 429, "too many requests", retry=1)
        length = request.headers.get("content-length", "")
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 12 else self.source.max_bytes
        if size > self.source.max_bytes:
            return self._too_long()
        if not self._room.take(size):
            return self._answer("unavailable", 503, "too many bodies at once", retry=RETRY_AFTER_SECONDS)
        try:
            return await self._received(request)
        finally:
            self._room.give(size)

    async def _received(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(request)
        except TooLong:
            return self._too_long()
        except ClientDisconnect:
            return self._answer("broken_off", 400, "the request broke off")
        except TimeoutError:
            return self._answer("too_slow", 408, f"the body did not come within {BODY_SECONDS:g} s")
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            self._verifier.verify(headers, body, time.time())
        except Refused as error:
            _log.warning("%s", error, extra={"action": "webhook_refused", "source": self.source.name})
            return self._answer("refused", 401, "the signature is not valid")
        if (wanted := challenge(self.source, body)) is not None:
            WEBHOOKS.add(source=self.source.name, result="challenge")
            return PlainTextResponse(wanted)
        return await self._send(request, headers, body)

    async def _send(self, request: Request, headers: dict[str, str], body: bytes) -> Response:
        if not self.prepared:
            return self._answer("unavailable", 503, "not ready yet", retry=RETRY_AFTER_SECONDS)
        found = delivery(self.source, headers, body)
        event = Produced(
            self.source.topic,
            found.key,
            {
                "source": self.source.name,
                "delivery": found.id,
                "event_type": found.event_type,
                "body": body,
                "content_type": headers.get("content-type", ""),
                "headers": kept_headers(self.source, headers),
                "path": request.url.path,
                "query": request.url.query,
                "received_at": dt.datetime.now(dt.UTC),
            },
            identity("webhook", self.source.name, found.id),
            # No time: the same delivery sent again tomorrow must still be known.
            None,
            event_type=found.event_type,
            schema=DEFAULT_TOPIC,
            traceparent=headers.get("traceparent"),
        )
        try:
            (future,) = self._emitter.start([event])
            await asyncio.wrap_future(future)
        except Outage as error:
            _log.warning("%s", error, extra={"action": "webhook_not_taken", "source": self.source.name})
            return self._answer("unavailable", 503, "the brokers are away", retry=RETRY_AFTER_SECONDS)
        except RowcallError as error:
            _log.error("%s", error, extra={"action": "webhook_not_taken", "source": self.source.name})
            return self._answer("failed", 500, "the event cannot be stored")
        WEBHOOKS.add(source=self.source.name, result="taken")
        return JSONResponse({"event": str(event.id), "delivery": found.id}, status_code=202)

    async def _body(self, request: Request) -> bytes:
        limit = self.source.max_bytes
        parts, length = [], 0
        async for part in request.stream():
            length += len(part)
            if length > limit:
                raise TooLong
            parts.append(part)
        return b"".join(parts)

    def _too_long(self) -> Response:
        return self._answer("too_long", 413, f"the body is longer than {self.source.max_bytes} bytes")

    def _answer(self, result: str, status: int, text: str, *, retry: int | None = None) -> Response:
        WEBHOOKS.add(source=self.source.name, result=result)
        headers = {} if retry is None else {"Retry-After": str(retry)}
        return JSONResponse({"error": text}, status_code=status, headers=headers)


def application(receivers: Sequence[Receiver]) -> Starlette:
    """POST /webhooks/<source> for each source, GET /healthz beside them."""
    routes = [
        Route(f"/webhooks/{receiver.source.name}", _limited(receiver), methods=["POST"]) for receiver in receivers
    ]
    return Starlette(routes=[*routes, Route("/healthz", _alive)])


async def prepare(receivers: Sequence[Receiver], emitter: Emitter, pause_seconds: float) -> None:
    """Make topics and register schemas; until then requests are answered 503.

    Raises:
        ConfigurationError: the registry or the brokers refuse it.
    """
    while not all(receiver.prepared for receiver in receivers):
        topics = sorted({receiver.source.topic for receiver in receivers})
        try:
            await asyncio.to_thread(emitter.prepare, [(topic, DEFAULT_TOPIC) for topic in topics])
        except ConfigurationError:
            raise
        except RowcallError as error:
            _log.warning("%s; trying again in %g s", error, pause_seconds, extra={"action": "waiting"})
            await asyncio.sleep(pause_seconds)
            continue
        for receiver in receivers:
            receiver.prepared = True


def _limited(receiver: Receiver) -> Callable[[Request], Awaitable[Response]]:
    return receiver.receive


async def _alive(request: Request) -> Response:
    return PlainTextResponse("ok")
