"""Decodes a batch and asks the agents' triggers: which message wakes whom.

Before: records from Kafka. After: `own_writes` and `jobs`. Writes nothing. Promises: a message that cannot be decoded
and a trigger that raises, whatever it raises, become dead letters and hold up nobody else; an agent is asked only about
messages at or after its start; what a trigger does to the rows it is shown reaches neither the job nor another agent.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from consumer import telemetry
from consumer.agents.door import Agent
from consumer.dead_letters import DeadLetter
from consumer.errors import AgentError, Poison
from consumer.kafka import Place, Record
from consumer.records import UNKNOWN_COLUMN, Change, Coordinates, Event
from consumer.records.jobs import storable
from consumer.wire import Decoder, Ignored

Subscriptions = Mapping[tuple[str, int], Sequence[tuple[Agent, int]]]
"""Partition (a `Place`) → its agents, each with the offset at which it starts."""

_IGNORED_KINDS = {"tombstone": "tombstone", "heartbeat": "heartbeat", "transaction_marker": "transaction"}


class Hit(NamedTuple):
    """A message that wakes agents; `number` is its place in the batch."""

    number: int
    record: Record
    message: Change | Event
    agents: list[Agent]


@dataclass(slots=True)
class Routed:
    """What a batch holds. `decisions` counts (agent, outcome), `kinds` the messages."""

    hits: list[Hit] = field(default_factory=list)
    letters: list[tuple[int, DeadLetter]] = field(default_factory=list)
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def count(self) -> None:
        """Add to the metrics, once the batch is committed."""
        for kind, number in self.kinds.items():
            telemetry.MESSAGES.add(number, kind=kind)
        for (agent, outcome), number in self.decisions.items():
            telemetry.EVENTS.add(number, agent=agent, outcome=outcome)


def subscriptions(
    places: Iterable[Place], by_topic: Mapping[str, Sequence[Agent]], starts: Mapping[Place, Mapping[str, int]]
) -> Subscriptions:
    """Who is subscribed to each partition, and from which offset."""
    return {
        place: [(agent, starts.get(place, {}).get(agent.name, 0)) for agent in by_topic.get(place.topic, ())]
        for place in places
    }


def route(records: Sequence[Record], decoder: Decoder, subscribed: Subscriptions) -> Routed:
    """Decode the records and ask their agents.

    Raises:
        Outage: a schema is needed and the registry is away; the whole batch is to be read again.
    """
    routed = Routed()
    kinds, decode = routed.kinds, decoder.decode
    for index, record in enumerate(records):
        topic, partition, offset, key, value, headers, _ = record
        try:
            message = decode(key, value, headers, Coordinates(topic, partition, offset))
            if not isinstance(message, Change):
                if isinstance(message, Ignored):
                    kinds[_IGNORED_KINDS.get(message.reason, "transaction")] += 1
                    continue
                _check_id(message.id)
        except Poison as error:
            kinds["undecodable"] += 1
            routed.letters.append((index, DeadLetter(record, error.code, str(error))))
            continue
        kinds["change" if isinstance(message, Change) else "event"] += 1
        agents = _woken(index, record, message, subscribed[topic, partition], routed)
        if agents:
            routed.hits.append(Hit(index, record, message, agents))
    return routed


def _woken(
    index: int,
    record: Record,
    message: Change | Event,
    subscribed: Sequence[tuple[Agent, int]],
    routed: Routed,
) -> list[Agent]:
    woken = []
    decisions = routed.decisions
    is_change = isinstance(message, Change)
    snapshot = isinstance(message, Change) and message.origin.snapshot
    shown: Change | Event | None = None
    for agent, start in subscribed:
        name = agent.name
        if record.offset < start:
            decisions[name, "before_start"] += 1
            continue
        decisions[name, "seen"] += 1
        if snapshot and agent.on_snapshot != "state":
            decisions[name, "snapshot"] += 1
            continue
        if shown is None or not is_change:
            shown = _shown(message)
        try:
            wants = agent.wants(shown)
        except KeyboardInterrupt:  # a person's, at a re-drive
            raise
        except BaseException as error:  # noqa: BLE001 - an agent's code may raise anything, sys.exit() included
            decisions[name, "dead_lettered"] += 1
            routed.letters.append((index, _refused(record, message, name, error)))
            continue
        if wants:
            woken.append(agent)
        else:
            decisions[name, "filtered"] += 1
    return woken


def _shown(message: Change | Event) -> Change | Event:
    """What a trigger is shown: rows it cannot write to. Values nested in them stay as they are.

    An event's data stays the dict that authors expect, so it is copied, for each agent anew.
    """
    if isinstance(message, Change):
        before, after, key = message.before, message.after, message.key
        return Change(
            message.id,
            message.operation,
            None if before is None else MappingProxyType(before),
            None if after is None else MappingProxyType(after),
            None if key is None else MappingProxyType(key),
            message.origin,
            message.coordinates,
        )
    data = message.data
    return Event(
        message.id,
        message.topic,
        message.key,
        data.copy() if isinstance(data, dict | list) else data,
        MappingProxyType(message.headers),
        message.occurred_at,
        message.coordinates,
    )


def _refused(record: Record, message: Change | Event, agent: str, error: BaseException) -> DeadLetter:
    """The dead letter of one agent whose trigger raised."""
    if isinstance(error, AgentError) and error.code == UNKNOWN_COLUMN:
        return DeadLetter(record, UNKNOWN_COLUMN, f"agent {agent}: {_text(error)}", agent, message.id)
    text = f"when of agent {agent} raised {type(error).__name__}: {_text(error)}\n{_innermost(error)}"
    return DeadLetter(record, "when_failed", text, agent, message.id)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - its __str__ is an agent's code too
        return f"(its text raised {type(second).__name__})"


def _innermost(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""


def _check_id(event_id: str) -> None:
    """An ID is a key: it is refused rather than cleaned where Postgres cannot hold it."""
    if storable(event_id) != event_id:
        raise Poison("the message's ID holds NUL, is not UTF-8, or is too long", code="missing_event_id")
