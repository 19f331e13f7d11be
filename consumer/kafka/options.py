"""librdkafka's properties: those of every client, and those of the group member, with the reason for each."""

from __future__ import annotations

from typing import Any

from consumer.settings import Settings


def options(settings: Settings) -> dict[str, Any]:
    """librdkafka's properties common to every client; the user's own come last and win."""
    values: dict[str, Any] = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "client.id": "rowcall",
        # Errors reach us through error_cb, classified and once; librdkafka's own lines repeat with each attempt.
        "log_level": 2,
        "reconnect.backoff.max.ms": 2000,
        **settings.kafka_options,
    }
    if settings.kafka_password is not None:
        values["sasl.password"] = settings.kafka_password.get_secret_value()
    return values


def member_options(settings: Settings) -> dict[str, Any]:
    """The properties of intake's group member."""
    return {
        "group.id": settings.kafka_group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "partition.assignment.strategy": "cooperative-sticky",
        # A member that was killed is given up after 10 s, not 45: the loop does milliseconds of work between two polls,
        # and heartbeats come from the library's own thread.
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 3_000,
        # A topic that does not exist yet is noticed within this time.
        "topic.metadata.refresh.interval.ms": 2000,
        # Low latency: the broker answers with the first byte; an idle connection asks twice a second.
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 200,
        # A full queue is looked at again after 10 ms (the default of 1 s starves a fast reader).
        "fetch.queue.backoff.ms": 10,
        # Memory: 32 MB queued, 8 MB on the way, whatever the number of partitions.
        "queued.max.messages.kbytes": 32_768,
        "queued.min.messages": 20_000,
        "fetch.max.bytes": 8 * 1024 * 1024,
        "message.max.bytes": 8 * 1024 * 1024,
        **options(settings),
    }
