"""librdkafka's properties: what Rowcall sets by itself, and that the user's own win."""

from __future__ import annotations

from consumer import settings
from consumer.kafka.options import member_options


def test_a_killed_worker_is_given_up_after_ten_seconds_unless_kafka_options_say_otherwise() -> None:
    given = member_options(settings.load({}))
    assert (given["session.timeout.ms"], given["heartbeat.interval.ms"]) == (10_000, 3_000)
    given = member_options(settings.load({"KAFKA_OPTIONS": "session.timeout.ms=45000"}))
    assert given["session.timeout.ms"] == "45000"
