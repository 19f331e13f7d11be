"""The producer of events that do not come from a transaction: idempotent, all replicas, each delivery confirmed.

A message that was not confirmed may have arrived or not: sent again it is a duplicate that its `id` header tells. After
an error that librdkafka calls fatal the client is made anew by the next send.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumer.errors import ConfigurationError, Outage, Poison, RowcallError
from consumer.kafka.options import options
from consumer.kafka.records import Place
from consumer.settings import Settings

_log = logging.getLogger(__name__)

# Delivery reports wake the thread that serves them; it looks up by itself only to see whether it is to end.
_SERVE_SECONDS: Final = 1.0
_ADMIN_SECONDS: Final = 5.0
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class Message(NamedTuple):
    """One message to send; header values are text."""

    topic: str
    key: str | None
    value: bytes
    headers: dict[str, str]


class Producer:
    """Sends and waits. Safe to share between threads.

    Args:
        delivery_seconds: how long one message may wait for its confirmation before it counts as not delivered.
    """

    def __init__(self, settings: Settings, *, delivery_seconds: float = 30.0) -> None:
        self._common = options(settings)
        self._options = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "compression.type": "lz4",
            "delivery.timeout.ms": int(delivery_seconds * 1000),
            "request.timeout.ms": min(10_000, int(delivery_seconds * 1000)),
            # A retry waits little: a broker that restarts is back in seconds.
            "retry.backoff.max.ms": 500,
            "message.max.bytes": 8 * 1024 * 1024,
            **self._common,
        }
        self._servers = settings.kafka_bootstrap_servers
        self._partitions = settings.topic_partitions
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._client = self._open()
        self._server = threading.Thread(target=self._serve, name="rowcall-producer", daemon=True)
        self._server.start()

    def send(self, messages: Sequence[Message]) -> list[Future[Place]]:
        """Hand messages over, in order; each future gives the partition or raises.

        The futures raise Outage (not confirmed in time: may have arrived), Poison (`message_too_large`) or
        ConfigurationError (the brokers refuse us).
        """
        with self._lock:
            return [self._send(message) for message in messages]

    def ensure_topics(self, names: Iterable[str]) -> None:
        """Create those of the topics that do not exist, with ROWCALL_TOPIC_PARTITIONS partitions.

        Raises:
            Outage: no broker answers.
            ConfigurationError: the brokers refuse it; create the topics by hand then.
        """
        wanted = [NewTopic(name, num_partitions=self._partitions) for name in sorted(set(names))]
        if not wanted:
            return
        admin = AdminClient(self._common)
        for name, future in admin.create_topics(wanted, request_timeout=_ADMIN_SECONDS).items():
            try:
                future.result(_ADMIN_SECONDS + 5)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                raise self._translated(reason, f"topic {name} cannot be created") from error
            except TimeoutError as error:
                raise Outage(f"no Kafka broker at {self._servers} answers", dependency="broker") from error
            _log.info("topic %s created", name, extra={"action": "topic_created", "topic": name})

    def close(self) -> None:
        """Send what is still queued for a moment, then end; what is not confirmed by then fails its future."""
        self._client.flush(5.0)
        self._ended.set()
        self._server.join()
        with self._lock:
            self._client.purge()
            self._client.flush(1.0)

    def _open(self) -> LibrdkafkaProducer:
        try:
            return LibrdkafkaProducer(self._options)
        except (KafkaException, ValueError) as error:
            raise ConfigurationError(f"KAFKA_OPTIONS cannot be used: {error}") from error

    def _send(self, message: Message) -> Future[Place]:
        future: Future[Place] = Future()

        def report(error: KafkaError | None, sent: Any) -> None:
            if error is None:
                future.set_result(Place(sent.topic(), sent.partition()))
            else:
                future.set_exception(self._translated(error, f"a message for {message.topic} was not confirmed"))

        try:
            self._client.produce(
                message.topic,
                key=message.key,
                value=message.value,
                headers=[(name, value.encode()) for name, value in message.headers.items()],
                on_delivery=report,
            )
        except BufferError:
            future.set_exception(
                Outage(f"100,000 messages wait for the brokers at {self._servers}", dependency="broker", code="full")
            )
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            future.set_exception(self._translated(reason, f"a message for {message.topic} was not sent"))
            if reason.fatal() or reason.code() == KafkaError._FATAL:
                self._renew(reason)
        return future

    def _renew(self, reason: KafkaError) -> None:
        _log.error("the producer is made anew: %s", reason.str(), extra={"action": "producer_fatal"})
        failed, self._client = self._client, self._open()
        # Its messages fail their futures; whoever waits for them sends them again under the same IDs.
        failed.purge()
        failed.flush(1.0)

    def _serve(self) -> None:
        while not self._ended.is_set():
            self._client.poll(_SERVE_SECONDS)

    def _translated(self, reason: KafkaError, what: str) -> RowcallError:
        if reason.code() in _TOO_LARGE:
            return Poison(f"{what}: {reason.str()}", code="message_too_large")
        if reason.code() in _REFUSED:
            return ConfigurationError(f"{what}: the brokers refuse it: {reason.str()}. Check KAFKA_OPTIONS")
        return Outage(f"{what} by {self._servers}: {reason.str()}", dependency="broker")
