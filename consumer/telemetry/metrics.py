"""The one table of metrics: name, kind, labels and meaning of everything a process counts.

A stage writes `telemetry.EVENTS.add(3, agent="order-triage", outcome="admitted")`; the same table prints the
documentation. The only module that imports prometheus_client, with `health`, which renders it. Labels whose values are
known beforehand exist from the start with 0, so that a rate over the first event is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, PlatformCollector
from prometheus_client.process_collector import ProcessCollector

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

Kind = Literal["counter", "gauge", "histogram"]
# Milliseconds of our own work up to a commit; and seconds with a model in between, up to the default run deadline.
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)

METRICS: Final[list[Metric]] = []


class Metric:
    """One row of the table. `labels` maps each label to its known values; () where they are open."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        meaning: str,
        labels: Mapping[str, Sequence[str]] | None = None,
        buckets: Sequence[float] = (),
    ) -> None:
        self.name = f"rowcall_{name}"
        self.kind = kind
        self.meaning = meaning
        self.labels = dict(labels or {})
        names = tuple(self.labels)
        self._metric: Counter | Gauge | Histogram
        if kind == "counter":
            self._metric = Counter(self.name, meaning, names, registry=REGISTRY)
        elif kind == "gauge":
            self._metric = Gauge(self.name, meaning, names, registry=REGISTRY)
        else:
            self._metric = Histogram(self.name, meaning, names, registry=REGISTRY, buckets=buckets)
        if names and all(self.labels.values()):
            for values in product(*self.labels.values()):
                self._metric.labels(*values)
        # Looking a labelled series up costs more than counting in it. Gauges alone are ever forgotten.
        self._known: dict[tuple[tuple[str, str], ...], Counter | Gauge | Histogram] = {}
        METRICS.append(self)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count `amount` (counters; gauges also take negative ones).

        Raises:
            ValueError: for labels other than the table's.
            TypeError: for a histogram.
        """
        child = self._child(labels)
        if isinstance(child, Histogram):
            raise TypeError(f"{self.name} is a histogram; observe it")
        child.inc(amount)

    def set(self, value: float, **labels: str) -> None:
        """Set a gauge.

        Raises:
            ValueError: for labels other than the table's.
            TypeError: for anything but a gauge.
        """
        child = self._child(labels)
        if not isinstance(child, Gauge):
            raise TypeError(f"{self.name} is a {self.kind}; it cannot be set")
        child.set(value)

    def observe(self, value: float, **labels: str) -> None:
        """Take one value into a histogram.

        Raises:
            ValueError: for labels other than the table's.
            TypeError: for anything but a histogram.
        """
        child = self._child(labels)
        if not isinstance(child, Histogram):
            raise TypeError(f"{self.name} is a {self.kind}; it cannot observe")
        child.observe(value)

    def forget(self, **labels: str) -> None:
        """Drop one labelled series, as of a partition that was revoked."""
        self._metric.remove_by_labels(labels)

    def _child(self, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        if not labels and not self.labels:
            return self._metric
        known = tuple(labels.items())
        child = self._known.get(known)
        if child is None:
            child = self._metric.labels(**labels)
            if self.kind != "gauge":
                self._known[known] = child
        return child


MESSAGES: Final = Metric(
    "messages",
    "counter",
    "messages read from Kafka",
    {"kind": ("change", "event", "tombstone", "heartbeat", "transaction", "undecodable")},
)
EVENTS: Final = Metric(
    "events",
    "counter",
    "decisions of intake, one for each event and subscribed agent. seen: offered to the agent; admitted: became a job; "
    "duplicate: this ID was seen before; filtered: the agent's columns or `when` said no; own_write: the agent wrote "
    "the row itself; snapshot: a snapshot row the agent skips; before_start: older than the agent's activation; "
    "coalesced: taken into a job that waits for its key; parked: older than the horizon, or a causation loop; "
    "dead_lettered: could not be handled",
    {
        "agent": (),
        "outcome": (
            "seen",
            "admitted",
            "duplicate",
            "filtered",
            "own_write",
            "snapshot",
            "before_start",
            "coalesced",
            "parked",
            "dead_lettered",
        ),
    },
)
NOT_ATTRIBUTABLE: Final = Metric(
    "not_attributable",
    "counter",
    "transactions of captured rows that the database does not have (source_ahead_of_database), so that it is unknown "
    "which run wrote them. lost: aborted here; pending: not seen in time",
    {"state": ("lost", "pending")},
)
CAUSATION_LOOPS: Final = Metric(
    "causation_loops", "counter", "jobs parked because of the runs that caused them, by agent", {"agent": ()}
)
DEAD_LETTERS: Final = Metric("dead_letters", "counter", "dead-letter rows written, by error code", {"code": ()})
BATCHES: Final = Metric(
    "intake_batches",
    "counter",
    "admission transactions. committed; conflict: run again after a deadlock; isolated: split to find a refused row; "
    "timeout: ended by transaction_timeout; outage: a dependency was away",
    {"result": ("committed", "conflict", "isolated", "timeout", "outage")},
)
BATCH_SECONDS: Final = Metric(
    "intake_batch_seconds", "histogram", "seconds from a polled batch to its committed admission", buckets=_FAST
)
LAG: Final = Metric(
    "lag_messages", "gauge", "messages of an assigned partition not yet admitted", {"topic": (), "partition": ()}
)
PARTITIONS: Final = Metric("assigned_partitions", "gauge", "partitions this process reads")
UNREAD_PARTITIONS: Final = Metric(
    "unread_partitions",
    "gauge",
    "partitions the group has given this process that it has not read for 30 s without a known cause",
)
TOPICS_PAUSED: Final = Metric(
    "paused_topics",
    "gauge",
    "topics intake has paused, by reason",
    {"reason": ("backlog", "outage", "missing_agent")},
)
BACKLOG: Final = Metric("backlog_jobs", "gauge", "jobs that wait to run, as intake last counted them")

PROMOTED: Final = Metric("promoted", "counter", "jobs given their place in a lane")
CLAIMED: Final = Metric("claimed", "counter", "runs claimed, by agent", {"agent": ()})
RUNS_IN_FLIGHT: Final = Metric("runs_in_flight", "gauge", "runs this worker holds")
CHECKPOINTS: Final = Metric("checkpoints", "counter", "step checkpoints committed")
BEATS: Final = Metric(
    "beats",
    "counter",
    "lease renewals: one for each round of the beat thread",
    {"result": ("renewed", "failed")},
)
LEASE_LOST: Final = Metric("lease_lost", "counter", "runs that found another owner and wrote nothing", {"agent": ()})
RECLAIMED: Final = Metric("reclaimed", "counter", "runs taken from owners whose lease or deadline was over")
JOBS: Final = Metric(
    "jobs",
    "counter",
    "how attempts ended. released: given back without burning an attempt, by a drain or for a bypass",
    {
        "agent": (),
        "outcome": ("succeeded", "retry", "review", "failed", "cancelled", "parked", "released", "rerun"),
    },
)
REVIEWS: Final = Metric("reviews_opened", "counter", "answers held for a person, by code", {"agent": (), "code": ()})
REVIEWS_OPEN: Final = Metric(
    "reviews_open",
    "gauge",
    "reviews that wait for a decision, by tier and by how long they have waited: less than an hour, a day, a week, or "
    "longer; every worker counts all of them",
    {"agent": (), "tier": (), "age": ()},
)
REVIEWS_ESCALATED: Final = Metric("reviews_escalated", "counter", "reviews that waited too long", {"agent": ()})
REVIEWS_DECIDED: Final = Metric(
    "reviews_decided",
    "gauge",
    "decisions of the last hour, by what became of the review; every worker counts all of them",
    {"agent": (), "decision": ()},
)
RUN_SECONDS: Final = Metric("run_seconds", "histogram", "seconds of one attempt", {"agent": ()}, _SLOW)
COMMIT_TO_RESULT_SECONDS: Final = Metric(
    "commit_to_result_seconds",
    "histogram",
    "seconds from the commit of the source row to the commit of its result",
    {"agent": ()},
    _SLOW,
)
OUTBOX_ROWS: Final = Metric("outbox_rows", "counter", "records written to the outbox, by topic", {"topic": ()})
SLOTS: Final = Metric(
    "schedule_slots",
    "counter",
    "slots of schedules by what became of them",
    {"outcome": ("queued", "sent", "coalesced", "skipped", "missed", "refused")},
)
DRIFT_VALUES: Final = Metric(
    "drift_values",
    "counter",
    "values that monitors met. fed: given to a detector; the others left it as it was",
    {"monitor": (), "outcome": ()},
)
WATCHDOG_PINGS: Final = Metric(
    "watchdog_pings", "counter", "pings of the switch outside", {"result": ("answered", "failed")}
)
WEBHOOKS: Final = Metric(
    "webhooks",
    "counter",
    "webhook requests by answer. taken: on the topic; refused: signature or timestamp; unavailable: brokers away",
    {
        "source": (),
        "result": (
            "taken",
            "refused",
            "challenge",
            "limited",
            "too_long",
            "too_slow",
            "broken_off",
            "unavailable",
            "failed",
        ),
    },
)
HEARTBEATS: Final = Metric(
    "heartbeats", "counter", "heartbeats of this process to the database", {"result": ("written", "failed")}
)
_WATCHED: Final = ("new", "up", "late", "overdue", "failed", "stuck", "no_output", "paused")
WATCH_SUBJECTS: Final = Metric("watch_subjects", "gauge", "subjects of the watchdog by state", {"state": _WATCHED})
WATCH_FLIPS: Final = Metric(
    "watch_flips", "counter", "changes of state this watchdog wrote, by the new state", {"state": (*_WATCHED, "gap")}
)
WATCH_ALERTS: Final = Metric(
    "watch_alerts",
    "counter",
    "tries to send an alert. failed: it is tried again; gave_up: it is not",
    {"channel": (), "result": ("sent", "failed", "gave_up")},
)
WATCH_ROUND_SECONDS: Final = Metric("watch_round_seconds", "histogram", "seconds of one look at everything", {}, _FAST)
EMITTED: Final = Metric(
    "emitted", "counter", "events that producers sent and brokers confirmed, by topic", {"topic": ()}
)

MODEL_CALLS: Final = Metric(
    "model_calls", "counter", "model calls by result code; `ok` for a usable answer", {"agent": (), "code": ()}
)
MODEL_SECONDS: Final = Metric("model_call_seconds", "histogram", "seconds of one model call", {"agent": ()}, _SLOW)
MODEL_TOKENS: Final = Metric(
    "model_tokens",
    "counter",
    "tokens the endpoint reported, by kind",
    {"agent": (), "kind": ("prompt", "completion")},
)
EFFECTS: Final = Metric(
    "effects",
    "counter",
    "moves of effects in the ledger, by the state they came to; a person's decisions are in the audit",
    {"agent": (), "state": ("planned", "sent", "confirmed", "unknown", "failed")},
)
CALLS_ADMITTED: Final = Metric(
    "calls_admitted",
    "counter",
    "model calls before they leave. go: sent; wait: for the endpoint's rate or pause, once a look; spent: a budget is, "
    "the run is parked; capped: the call, the run or its root event goes beyond its own limit; late: waited longer "
    "than ROWCALL_RATE_WAIT_SECONDS and was given back",
    {"agent": (), "verdict": ("go", "wait", "spent", "capped", "late")},
)
HOLDS: Final = Metric(
    "limit_holds",
    "counter",
    "times claims were held, and let go again, for a spent budget or a storm",
    {"reason": ("budget", "storm"), "event": ("began", "ended")},
)
AGENT_PAUSED: Final = Metric("agent_paused", "gauge", "1 while an agent is paused", {"agent": ()})

OUTAGES: Final = Metric(
    "outages",
    "counter",
    "times a dependency was found away",
    {"dependency": ("database", "broker", "registry", "connect", "model")},
)
CONNECTOR_RESTARTS: Final = Metric(
    "connector_restarts", "counter", "failed connectors that this process had restarted", {"connector": ()}
)
LOOP_BLOCKED_SECONDS: Final = Metric(
    "loop_blocked_seconds", "gauge", "how long the event loop has not turned, as the watchdog last saw it"
)
BUILD: Final = Metric("build_info", "gauge", "1, labelled with the version", {"version": ()})


def documentation() -> str:
    """The table as Markdown: name as scraped, kind, labels, meaning."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        scraped = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        rows.append(f"| `{scraped}` | {metric.kind} | {labels} | {metric.meaning} |")
    return "\n".join(rows)
