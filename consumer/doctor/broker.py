"""Kafka: reachable, the agents' topics there, and kept for less than the dedup horizon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from consumer.agents.door import Agent
from consumer.doctor.finding import Finding, refused
from consumer.errors import RowcallError
from consumer.kafka import Brokers
from consumer.settings import Settings

_AREA: Final = "kafka"
_DAY_MS: Final = 86_400_000


def examine(settings: Settings, agents: Sequence[Agent]) -> list[Finding]:
    """Findings about KAFKA_BOOTSTRAP_SERVERS."""
    try:
        brokers = Brokers(settings)
        return list(_examine(brokers, settings, {topic for agent in agents for topic in agent.topics}))
    except RowcallError as error:
        return [refused(_AREA, error, "KAFKA_BOOTSTRAP_SERVERS")]


def _examine(brokers: Brokers, settings: Settings, wanted: set[str]) -> Iterator[Finding]:
    yield Finding("ok", _AREA, f"cluster {brokers.cluster_id()} answers")
    found = brokers.topics(wanted)
    for name in sorted(wanted - found.keys()):
        why = "an agent reads it; it appears with the first message"
        yield Finding("warn", _AREA, f"topic {name} does not exist yet", why, "commit a row, or check its connector")
    for name, topic in sorted(found.items()):
        count = len(topic.partitions)
        if count == 1:
            why = "one partition: only one intake can read it"
            yield Finding("warn", _AREA, f"topic {name}", why, "raise its partitions if one process is too slow")
        else:
            yield Finding("ok", _AREA, f"topic {name}", f"{count} partitions")
    for name, kept_ms in sorted(brokers.retention_ms(found).items()):
        if kept_ms < 0 or kept_ms > settings.dedup_days * _DAY_MS:
            kept = "for ever" if kept_ms < 0 else f"{kept_ms / _DAY_MS:.1f} days"
            why = (
                f"{name} keeps messages {kept}, the dedup horizon is {settings.dedup_days} days: "
                "an older message that comes again is parked for a person"
            )
            advice = "raise ROWCALL_DEDUP_DAYS, or lower the topic's retention.ms"
            yield Finding("warn", _AREA, "messages outlive the dedup horizon", why, advice)
