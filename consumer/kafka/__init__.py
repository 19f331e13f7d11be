"""Kafka: the consumer that intake polls, and questions to the brokers.

The only package that imports confluent_kafka. Messages leave here as `Record`, partitions as `Place`, errors as ours.
The consumer never decides where to start: it owns what the group gives it, but reads a partition only after `place`
was called with an offset, and stops after `lift`; both work at any time, without leaving the group. `records` holds
the tuples, `options` the library's properties, `producer` what is sent without a transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from consumer.errors import ConfigurationError, Outage, RowcallError
from consumer.kafka.options import member_options, options
from consumer.kafka.records import Place, Polled, Record, Topic
from consumer.settings import Settings

__all__ = ["Brokers", "Consumer", "Place", "Polled", "Record", "Topic", "read_topic"]

_log = logging.getLogger(__name__)

ADMIN_SECONDS: Final = 10.0
"""How long a question to the brokers may take."""

_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_MOVING: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
_MOVING_TRIES: Final = 25
_MOVING_PAUSE: Final = 0.2
_UNKNOWN_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_LEADERLESS: Final = "broker_leaderless"
_OFFSET_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class Consumer:
    """The group member. Not safe to share between threads. A poll takes at most `batch` messages."""

    def __init__(self, settings: Settings) -> None:
        self._failure: RowcallError | None = None
        self._away_since: float | None = None
        self._seen_broker = False
        self._missing: set[str] = set()
        self.batch = settings.intake_batch
        self._linger = settings.intake_linger_ms / 1000
        self.flowing = False
        self.owned: set[Place] = set()
        self.placed: set[Place] = set()
        self._client = _client(
            {
                **member_options(settings),
                "error_cb": self._on_error,
                "on_commit": self._on_commit,
            }
        )

    def subscribe(self, topics: Iterable[str]) -> None:
        """Take part in the group for these topics; they need not exist yet."""
        names = sorted(topics)
        self._missing &= set(names)
        if names:
            self._client.subscribe(names, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        else:
            self._client.unsubscribe()

    def poll(self, idle_seconds: float) -> Polled:
        """The next messages: waits up to `idle_seconds` for the first one and takes what is there with it.

        Only while messages flow does a batch that is not full wait ROWCALL_INTAKE_LINGER_MS for more, so a lone event
        is never delayed.

        Raises:
            ConfigurationError: the brokers refuse us (credentials, authorization, TLS), or cannot be found at all.
            RowcallError: the client has failed for good (`kafka_fatal`).
        """
        first = self._client.consume(1, idle_seconds)
        if self._failure is not None:
            raise self._failure
        if not first:
            self.flowing = False
            return Polled([], [])
        rest = self._client.consume(self.batch - 1, 0) if self.batch > 1 else []
        if self.flowing and self._linger and len(rest) < self.batch - 1:
            rest += self._client.consume(self.batch - 1 - len(rest), self._linger)
        self.flowing = len(rest) >= min(32, self.batch - 1)
        return self._sorted(first + rest)

    def place(self, offsets: Mapping[Place, int]) -> None:
        """Start reading owned partitions at these offsets."""
        fresh = {place: offset for place, offset in offsets.items() if place in self.owned - self.placed}
        if fresh:
            self._client.incremental_assign(
                [TopicPartition(place.topic, place.partition, offset) for place, offset in fresh.items()]
            )
            self.placed |= fresh.keys()

    def lift(self, places: Iterable[Place]) -> None:
        """Stop reading partitions and forget what was fetched of them; they stay owned."""
        lifted = self.placed & set(places)
        if lifted:
            self.placed -= lifted
            self._client.incremental_unassign([TopicPartition(*place) for place in lifted])

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Tell the group how far we are, for lag tools only; in the background."""
        known = [TopicPartition(*place, offset) for place, offset in offsets.items() if place in self.placed]
        if not known:
            return
        try:
            self._client.commit(offsets=known, asynchronous=True)
        except KafkaException as error:
            _log.info("offsets not committed: %s", error, extra={"action": "offset_commit"})

    def lag(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Messages after each offset, by the last end the broker told us; asks nobody."""
        found = {}
        for place in self.placed & offsets.keys():
            _, high = self._client.get_watermark_offsets(TopicPartition(*place), cached=True)
            if high >= 0:
                found[place] = max(0, high - offsets[place])
        return found

    def close(self) -> None:
        """Leave the group."""
        self._client.close()
        self.owned.clear()
        self.placed.clear()

    def _sorted(self, messages: Sequence[Any]) -> Polled:
        records: list[Record] = []
        gone: list[Place] = []
        for message in messages:
            error = message.error()
            if error is None:
                self._seen_broker = True
                records.append(_record(message))
            elif error.code() in _OFFSET_GONE:
                gone.append(Place(message.topic(), message.partition()))
            else:
                self._note(error, message.topic())
        self._away_since = None if records else self._away_since
        return Polled(records, gone)

    def _note(self, error: KafkaError, topic: str | None) -> None:
        code = error.code()
        if code in _UNKNOWN_TOPIC and topic is not None:
            if topic not in self._missing:
                self._missing.add(topic)
                _log.info("topic %s does not exist yet", topic, extra={"action": "topic_missing", "topic": topic})
        elif code == KafkaError._MAX_POLL_EXCEEDED:
            # The group has taken our partitions away; the next poll joins again.
            _log.warning("polled too late: %s", error.str(), extra={"action": "poll_late"})
        elif code != KafkaError._PARTITION_EOF:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        code = error.code()
        if error.fatal():
            self._failure = RowcallError(f"the Kafka client has failed for good: {error.str()}", code="kafka_fatal")
        elif code in _REFUSED:
            self._failure = ConfigurationError(
                f"the Kafka brokers refuse us: {error.str()}. Check KAFKA_OPTIONS and KAFKA_PASSWORD"
            )
        elif self._away_since is None:
            self._away_since = time.monotonic()
            _log.warning("Kafka: %s", error.str(), extra={"action": "broker_away", "code": error.name()})
        else:
            _log.debug("Kafka: %s", error.str(), extra={"action": "broker_away", "code": error.name()})

    def _on_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        # A rebalance refuses commits of an earlier generation; our own positions are what counts.
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            _log.info("offsets not committed: %s", error.str(), extra={"action": "offset_commit"})

    def _on_assign(self, _: LibrdkafkaConsumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {Place(item.topic, item.partition) for item in partitions}
        self._missing -= {item.topic for item in partitions}
        self._away_since = None
        # Nothing is read yet: the loop places these partitions with offsets of its own, outside this callback.
        self._client.incremental_assign([])

    def _on_revoke(self, _: LibrdkafkaConsumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)

    def _on_lost(self, _: LibrdkafkaConsumer, partitions: list[TopicPartition]) -> None:
        _log.warning("partitions lost to the group", extra={"action": "partitions_lost", "count": len(partitions)})
        self._drop(partitions)

    def _drop(self, partitions: list[TopicPartition]) -> None:
        dropped = {Place(item.topic, item.partition) for item in partitions}
        reading = dropped & self.placed
        self.owned -= dropped
        self.placed -= dropped
        self._client.incremental_unassign([TopicPartition(*place) for place in reading])


class Brokers:
    """Questions to the cluster. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._servers = settings.kafka_bootstrap_servers
        try:
            values = {**options(settings), "error_cb": self._on_error}
            self._admin = AdminClient(values)
        except (KafkaException, ValueError) as error:
            raise ConfigurationError(f"KAFKA_OPTIONS cannot be used: {error}") from error
        self._last_error: KafkaError | None = None
        self._cluster: str | None = None

    def cluster_id(self) -> str:
        """The cluster's own ID, asked for once.

        Raises:
            Outage: no broker answers.
            ConfigurationError: the brokers refuse us, or their name cannot be resolved.
        """
        if self._cluster is None:
            described = self._answer(self._admin.describe_cluster(request_timeout=ADMIN_SECONDS))
            self._cluster = str(described.cluster_id)
        return self._cluster

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that exist.

        Raises:
            Outage, ConfigurationError: as `cluster_id`.
        """
        wanted = sorted(names)
        if not wanted:
            return {}
        found = {}
        asked = self._admin.describe_topics(TopicCollection(wanted), request_timeout=ADMIN_SECONDS)
        for name, future in asked.items():
            described = self._answer(future, missing=_UNKNOWN_TOPIC)
            if described is not None:
                found[name] = Topic(str(described.topic_id), tuple(sorted(item.id for item in described.partitions)))
        return found

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        """(first offset still kept, next offset to be written) of each partition.

        Raises:
            Outage, ConfigurationError: as `cluster_id`.
        """
        wanted = list(places)
        firsts = self._offsets(wanted, _spec("earliest"))
        ends = self._offsets(wanted, _spec("latest"))
        return {place: (first, ends[place]) for place, first in firsts.items() if place in ends}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The next offset to be written in each partition."""
        return self._offsets(places, _spec("latest"))

    def retention_ms(self, names: Iterable[str]) -> dict[str, int]:
        """How long each of these topics keeps a message, in milliseconds; -1 for ever.

        Raises:
            Outage, ConfigurationError: as `cluster_id`.
        """
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(names)]
        if not wanted:
            return {}
        found = {}
        for resource, future in self._admin.describe_configs(wanted, request_timeout=ADMIN_SECONDS).items():
            described = self._answer(future, missing=_UNKNOWN_TOPIC)
            if described is not None:
                found[resource.name] = int(described["retention.ms"].value)
        return found

    def _offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
        """Offsets by partition; waits a moment for partitions whose leader is just being chosen, as in a new topic."""
        wanted = {TopicPartition(*place): spec for place in places}
        found: dict[Place, int] = {}
        for _ in range(_MOVING_TRIES):
            if not wanted:
                break
            moving = {}
            for item, future in self._admin.list_offsets(wanted, request_timeout=ADMIN_SECONDS).items():
                try:
                    result = self._answer(future, missing=_UNKNOWN_TOPIC)
                except Outage as error:
                    if error.code != _LEADERLESS:
                        raise
                    moving[item] = spec
                    continue
                if result is not None:
                    found[Place(item.topic, item.partition)] = int(result.offset)
            wanted = moving
            if wanted:
                time.sleep(_MOVING_PAUSE)
        if wanted:
            raise Outage(f"{len(wanted)} Kafka partitions have no leader", dependency="broker", code=_LEADERLESS)
        return found

    def _answer(self, future: Future[Any], *, missing: frozenset[int] = frozenset()) -> Any:
        try:
            answer = future.result(ADMIN_SECONDS + 5)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() in missing:
                return None
            raise self._translated(reason) from error
        except TimeoutError as error:
            raise Outage(f"no Kafka broker at {self._servers} answers", dependency="broker") from error
        self._last_error = None
        return answer

    def _translated(self, reason: KafkaError) -> RowcallError:
        self._admin.poll(0)  # serves error_cb
        worst = self._last_error or reason
        if reason.code() in _MOVING:
            return Outage(f"a Kafka partition has no leader: {reason.str()}", dependency="broker", code=_LEADERLESS)
        if reason.code() in _REFUSED or worst.code() in _REFUSED:
            return ConfigurationError(
                f"the Kafka brokers refuse us: {worst.str()}. Check KAFKA_OPTIONS and KAFKA_PASSWORD"
            )
        if worst.code() == KafkaError._SSL and self._cluster is None:
            return ConfigurationError(f"TLS with the Kafka brokers fails: {worst.str()}. Check KAFKA_OPTIONS")
        if worst.code() == KafkaError._RESOLVE and self._cluster is None:
            return ConfigurationError(f"a host in KAFKA_BOOTSTRAP_SERVERS cannot be resolved: {worst.str()}")
        return Outage(f"no Kafka broker at {self._servers} answers: {reason.str()}", dependency="broker")

    def _on_error(self, error: KafkaError) -> None:
        # ALL_BROKERS_DOWN follows the reason and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error


def _record(message: Any) -> Record:
    kind, moment = message.timestamp()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers(),
        moment if kind else None,
    )


def _spec(name: Literal["earliest", "latest"]) -> OffsetSpec:
    # The class methods carry no types.
    spec: OffsetSpec = getattr(OffsetSpec, name)()
    return spec


def _client(values: dict[str, Any]) -> LibrdkafkaConsumer:
    try:
        return LibrdkafkaConsumer(values)
    except (KafkaException, ValueError) as error:
        raise ConfigurationError(f"KAFKA_OPTIONS cannot be used: {error}") from error


def read_topic(settings: Settings, topic: str) -> list[Record]:
    """Everything that stands on a topic now, read outside any group; for checks, not for work.

    Raises:
        Outage: the brokers do not answer.
    """
    brokers = Brokers(settings)
    found = brokers.topics([topic]).get(topic)
    if found is None:
        return []
    bounds = brokers.bounds(Place(topic, partition) for partition in found.partitions)
    wanted = {place: ends for place, ends in bounds.items() if ends[1] > ends[0]}
    client = _client({"group.id": f"{settings.kafka_group}-reader", "enable.auto.commit": False, **options(settings)})
    records: list[Record] = []
    try:
        client.assign([TopicPartition(place.topic, place.partition, ends[0]) for place, ends in wanted.items()])
        while wanted:
            for message in client.consume(1000, 1.0):
                if message.error() is not None:
                    raise Outage(f"{topic} cannot be read: {message.error()}", dependency="broker")
                record = _record(message)
                records.append(record)
                place = Place(record.topic, record.partition)
                if place in wanted and record.offset >= wanted[place][1] - 1:
                    del wanted[place]
    finally:
        client.close()
    return records
