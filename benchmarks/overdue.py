"""overdue_alert_ms_after_due: from the moment something is overdue, its grace over, to the alert on its topic.

Many processes have beaten once and fall silent; their beats were to come again at moments that lie apart, as at a site
with many of them. The watchdog is a process of its own, with the channel of the topic. The moment is the one that the
record itself names, computed by the database's clock; the end is when the broker appended the record. All on one
machine, so the clocks are one.
"""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path
from typing import Any, Final

import fastavro
import orjson
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import schemas
from benchmarks.figures import Measured, NotMeasured, percentile, summary
from benchmarks.services import Child, Services, rowcall, running, until
from consumer import db
from consumer.kafka import read_topic
from consumer.settings import load

TOPIC: Final = "bench.overdue"
MISSES: Final = 2
# Beats come before the look that finds them: none is due sooner.
FIRST_SECONDS: Final = 8.0
_BEATS: Final = """
INSERT INTO rowcall.heartbeats (subject, instance, expected_next)
SELECT 'bench-' || n, 'one', rowcall.now() + make_interval(secs => s)
FROM unnest(%s::integer[], %s::double precision[]) AS x (n, s)
"""


def measure(services: Services) -> Measured:
    """One round of many subjects."""
    subjects, seconds = (30, 4.0) if services.quick else (500, 40.0)
    info = services.stack()
    _topic(info.kafka_bootstrap_servers)
    file = Path(services.directory) / "watchdog.toml"
    file.write_text(f"[channel.agents]\ntype = 'topic'\ntopic = '{TOPIC}'\nonly = ['overdue']\nkinds = ['process']\n")
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": info.kafka_bootstrap_servers})
    chance = random.Random(1)
    # Overdue after MISSES intervals.
    intervals = [(FIRST_SECONDS + chance.uniform(0, seconds)) / MISSES for _ in range(subjects)]
    with services.database() as url, contextlib.closing(db.connect(url, name="bench")) as session:
        environment = info.environment() | {
            "DATABASE_URL": url,
            "ROWCALL_WATCHDOG": str(file),
            "ROWCALL_WATCHDOG_MISSES": str(MISSES),
            "ROWCALL_HEALTH_PORT": "0",
            "ROWCALL_LOG_LEVEL": "WARNING",
        }
        watchdog = Child(rowcall("watchdog", "run"), environment, Path(services.directory) / "watchdog.log")
        with running([watchdog]):
            looked = "SELECT 1 AS one FROM rowcall.watch_rounds"
            until(lambda: session.execute(looked).fetchone(), "the watchdog looks", seconds=60)
            session.execute(_BEATS, (list(range(subjects)), intervals))
            until(
                lambda: len(_spans(settings)) >= subjects, "every alert", seconds=FIRST_SECONDS + seconds + 60, every=1
            )
            watchdog.check()
    spans = _spans(settings)
    if len(spans) != subjects:
        raise NotMeasured(f"{subjects} subjects fell silent and {len(spans)} were told of")
    return Measured(
        {"overdue_alert_ms_after_due": percentile(list(spans.values()), 0.99)},
        {"subjects": subjects, "over_seconds": seconds, "ms": summary(list(spans.values()))},
    )


def _topic(servers: str) -> None:
    """With the broker's time of appending in each record, not the sender's."""
    topic = NewTopic(TOPIC, num_partitions=1, replication_factor=1, config={"message.timestamp.type": "LogAppendTime"})
    # The client ends what it does when it is collected.
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic])[TOPIC].result(30)


def _spans(settings: Any) -> dict[str, float]:
    """Milliseconds of each subject that is on the topic."""
    parsed = fastavro.parse_schema(orjson.loads(schemas.load("agents.overdue") or ""))
    spans = {}
    for record in read_topic(settings, TOPIC):
        told: Any = fastavro.schemaless_reader(io.BytesIO((record.value or b"")[5:]), parsed, None)
        spans[told["subject"]] = float(record.timestamp_ms or 0) - told["due_at"].timestamp() * 1000
    return spans
