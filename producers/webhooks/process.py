"""The process of the webhook endpoint: it listens at once, and takes events as soon as topics and schemas are there."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path
from typing import Final

import uvicorn
import uvloop

from consumer import telemetry
from consumer.errors import ConfigurationError
from consumer.settings import Settings
from producers.emit import Emitter
from producers.webhooks.endpoint import Receiver, Room, application, prepare
from producers.webhooks.sources import load

_log = logging.getLogger(__name__)
# A sender waits no longer; what is not confirmed by then is sent again by it, under the same ID.
_DELIVERY_SECONDS: Final = 8.0
_PAUSE_SECONDS: Final = 2.0
_BEAT_SECONDS: Final = 1.0


def run(settings: Settings, stop: threading.Event) -> None:
    """Listen until told to stop.

    Raises:
        ConfigurationError: the file of sources is wrong, the port is taken, or brokers or registry refuse us.
    """
    if not settings.webhooks:
        raise ConfigurationError("ROWCALL_WEBHOOKS is empty; name a TOML file with a table [source.NAME] a sender")
    sources = load(Path(settings.webhooks))
    emitter, room = Emitter(settings, delivery_seconds=_DELIVERY_SECONDS), Room()
    receivers = [Receiver(source, keys, emitter, room) for source, keys in sources]
    try:
        uvloop.run(_serve(settings, receivers, emitter, stop))
    finally:
        emitter.close()


async def _serve(settings: Settings, receivers: list[Receiver], emitter: Emitter, stop: threading.Event) -> None:
    config = uvicorn.Config(
        application(receivers),
        host=settings.webhook_host,
        port=settings.webhook_port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Beyond this many at once a sender gets 503, and memory stays bounded: each may hold a body.
        limit_concurrency=2000,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
    )
    listener = _listen(settings)
    server = uvicorn.Server(config)
    names = ", ".join(receiver.source.name for receiver in receivers)
    serving = asyncio.create_task(server.serve([listener]), name="webhook server")
    preparing = asyncio.create_task(prepare(receivers, emitter, _PAUSE_SECONDS), name="webhook topics")
    pulse = telemetry.HEALTH.loop("webhooks")
    try:
        while not stop.is_set() and not serving.done():
            pulse.beat()
            ready = preparing.done()
            if ready:
                preparing.result()
            telemetry.HEALTH.report("webhooks", ready=ready, detail=f"sources: {names}" if ready else "topics are made")
            await asyncio.sleep(_BEAT_SECONDS if ready else 0.1)
    finally:
        pulse.end()
        preparing.cancel()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.webhook_host, settings.webhook_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on: {error.strerror} (ROWCALL_WEBHOOK_HOST, ROWCALL_WEBHOOK_PORT)"
        ) from error
    _log.info("webhooks on port %d", listener.getsockname()[1],
              extra={"action": "webhooks_listen", "port": listener.getsockname()[1]})  # fmt: skip
    return listener
