"""The count at the end: in the database and on the topics, every order has exactly one result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.agents.order_triage import TOPIC, TRIAGED_TOPIC
from consumer.demo.acts import Kept
from consumer.demo.drift import Drifted
from consumer.demo.drift import faults_of as drift_faults
from consumer.demo.scene import Scene
from consumer.kafka import Record, read_topic
from consumer.records import Change, Coordinates
from consumer.schema_registry import SchemaRegistry
from consumer.wire import Decoder

_SQL = db.queries("demo")
# From the outcome's commit over Connect and the broker to the second agent's row: a second or two, longer after a kill.
_SETTLE_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was counted; `faults` is empty when all is well."""

    summary: str
    faults: list[str]


def await_results(scene: Scene) -> None:
    """Return when every triage has come out at the end of the path, or after _SETTLE_SECONDS as it stands then.

    A triage is on its topic after Connect has read the outbox, and a notice is there after the second agent's run.

    Raises:
        Outage: a worker has ended by itself.
    """
    give_up = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < give_up:
        row, results = _counted(scene)
        # A rejected answer stays one fault for ever; everything else may still come.
        if len(faults_of(row, results)) <= (1 if row["rejected"] else 0):
            return
        scene.check_workers()
        time.sleep(0.5)


def count(scene: Scene, kept: Kept, drifted: Drifted) -> Verdict:
    """Count results in the database and on the topics."""
    row, results = _counted(scene)
    sent, resent = _sent_again(scene)
    faults = faults_of(row, results)
    if kept.calls_after != kept.calls_before:
        faults.append(f"the resumed run {kept.run} made {kept.calls_after - kept.calls_before} more model calls")
    if kept.claims_after <= kept.claims_before:
        faults.append(f"run {kept.run} was not taken over after its worker was killed, so nothing was shown")
    if resent == 0:
        faults.append("killing Connect caused no re-sent event, so nothing was shown")
    faults += drift_faults(drifted)
    summary = (
        f"{row['orders']} orders, {row['runs']} runs, {sum(results.values())} results on {TRIAGED_TOPIC}, one each; "
        f"{row['notices']} notices by {row['notice_runs']} runs of the second agent; "
        f"{resent} of {sent} row changes sent twice and run once; run {kept.run} resumed after SIGKILL "
        "without a second model call; one drift told as warning and critical, "
        f"{drifted.reports} report and {drifted.actions} remediation written after a person's approval"
    )
    return Verdict(summary, faults)


def faults_of(row: Mapping[str, int], results: Mapping[Any, int]) -> list[str]:
    """What is not as it must be: `row` is one of the query `results`, `results` has the topic's records by key."""
    faults = []
    if row["rejected"]:
        faults.append(f"{row['rejected']} answers were rejected, so their orders have no result")
    for what in ("triaged", "runs", "notices", "emitted"):
        if row[what] != row["orders"] - (0 if what == "runs" else row["rejected"]):
            faults.append(f"{row['orders']} orders, but {row[what]} {what}")
    if len(results) != row["emitted"] or any(number != 1 for number in results.values()):
        faults.append(f"{TRIAGED_TOPIC} holds {sum(results.values())} records for {len(results)} orders")
    if row["dead_letters"]:
        faults.append(f"{row['dead_letters']} dead letters; see `rowcall dead-letters list`")
    return faults


def _counted(scene: Scene) -> tuple[Mapping[str, int], Counter[bytes | None]]:
    row = scene.session.execute(_SQL["results"]).fetchone() or {}
    return row, Counter(record.key for record in read_topic(scene.settings, TRIAGED_TOPIC))


def _sent_again(scene: Scene) -> tuple[int, int]:
    """How many row changes of orders stand on the topic, and how many more records than changes."""
    registry = SchemaRegistry(scene.settings.schema_registry_url)
    decoder = Decoder(registry.schema, epoch=scene.settings.epoch)
    ids = Counter(
        change.id for record in read_topic(scene.settings, TOPIC) if (change := _change(decoder, record)) is not None
    )
    return len(ids), sum(ids.values()) - len(ids)


def _change(decoder: Decoder, record: Record) -> Change | None:
    place = Coordinates(record.topic, record.partition, record.offset)
    decoded = decoder.decode(record.key, record.value, record.headers or [], place)
    return decoded if isinstance(decoded, Change) else None
