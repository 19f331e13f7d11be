"""What a connector's settings cost: known gaps between a user's configuration and what Rowcall's promises need.

Nothing here is refused; a connector that lacks a setting works, with the loss that is named. Sources: Debezium's
Postgres page, Apicurio's converter, and measurements of this project where a figure stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

Config = Mapping[str, str]

KEEP_NULL: Final = "io.rowcall.connect.KeepNull"
EVENT_ROUTER: Final = "io.debezium.transforms.outbox.EventRouter"
# Milliseconds. Measured: 15 ms from commit to consumer at 10, 451 ms at Debezium's default of 500.
SLOW_POLL_MS: Final = 100
DEFAULT_POLL_MS: Final = 500


@dataclass(frozen=True)
class Advice:
    """A setting, what it should be, and what its present value costs."""

    setting: str
    present: str
    wanted: str
    cost: str


def lint(config: Config) -> list[Advice]:
    """The advice for one connector's configuration, empty where there is none."""
    return [advice for check in _CHECKS for advice in check(config)]


def is_outbox(config: Config) -> bool:
    """Whether the connector routes an outbox table."""
    return EVENT_ROUTER in _transform_types(config)


def _transform_types(config: Config) -> list[str]:
    names = (name.strip() for name in config.get("transforms", "").split(","))
    return [config.get(f"transforms.{name}.type", "") for name in names if name]


def _differs(config: Config, setting: str, wanted: str, cost: str, *, default: str = "") -> Iterator[Advice]:
    present = config.get(setting, default)
    if present.lower() != wanted:
        yield Advice(setting, present, wanted, cost)


def _null(config: Config) -> Iterator[Advice]:
    converter = config.get("value.converter", "")
    if converter.endswith(".JsonConverter") and not is_outbox(config):
        cost = "a NULL in a column with a default arrives as the default"
        yield from _differs(config, "value.converter.replace.null.with.default", "false", cost, default="true")
    elif converter.endswith(".AvroConverter") and KEEP_NULL not in _transform_types(config):
        cost = "a NULL in a column with a default arrives as the default: the Avro converters cannot tell them apart"
        yield Advice("transforms", config.get("transforms", ""), f"a transform of type {KEEP_NULL}", cost)


def _heartbeat(config: Config) -> Iterator[Advice]:
    if config.get("heartbeat.interval.ms", "0") == "0":
        cost = "while the captured tables are idle, the slot keeps all other WAL until the disk is full"
        yield Advice("heartbeat.interval.ms", config.get("heartbeat.interval.ms", "0"), "10000", cost)
    if not config.get("heartbeat.action.query"):
        cost = "in a database where nothing is written, heartbeats do not move the slot on and WAL piles up"
        yield Advice("heartbeat.action.query", "", "an INSERT or UPDATE of a table of its own", cost)


def _latency(config: Config) -> Iterator[Advice]:
    present = config.get("poll.interval.ms", str(DEFAULT_POLL_MS))
    if not present.isdigit() or int(present) > SLOW_POLL_MS:
        cost = "each change waits for the next poll: about 450 ms more from commit to agent at the default of 500"
        yield Advice("poll.interval.ms", present, "10", cost)


def _tombstones(config: Config) -> Iterator[Advice]:
    if not is_outbox(config):
        cost = "a second, empty message after each delete; only compacted topics need it"
        yield from _differs(config, "tombstones.on.delete", "false", cost, default="true")


def _framing(config: Config) -> Iterator[Advice]:
    for side in ("key", "value"):
        converter = config.get(f"{side}.converter", "")
        if not converter.startswith("io.apicurio.") or not converter.endswith(".AvroConverter"):
            continue
        prefix = f"{side}.converter.apicurio.registry"
        cost = "the schema ID travels in a header and the body has none: every message is dead-lettered as not_framed"
        yield from _differs(config, f"{prefix}.headers.enabled", "false", cost, default="true")
        cost = "schema IDs take eight bytes in place of four: no message can be read"
        yield from _differs(config, f"{prefix}.as-confluent", "true", cost, default="false")
        cost = "the ID in a message is not the one the Confluent-compatible API knows: no message can be read"
        yield from _differs(config, f"{prefix}.use-id", "contentid", cost, default="globalid")


def _avro_names(config: Config) -> Iterator[Advice]:
    if config.get("value.converter", "").endswith(".AvroConverter") and not is_outbox(config):
        cost = "a table or column whose name is no Avro name stops the connector"
        yield from _differs(config, "schema.name.adjustment.mode", "avro", cost, default="none")


def _outbox(config: Config) -> Iterator[Advice]:
    if is_outbox(config):
        cost = "outbox rows written before the slot existed are never published"
        yield from _differs(config, "snapshot.mode", "initial", cost, default="initial")


def _partitions(config: Config) -> Iterator[Advice]:
    present = config.get("topic.creation.default.partitions", "")
    if not present.isdigit() or int(present) < 2:
        cost = "new topics have the broker's number of partitions, 1 by default: a second worker gets none to read"
        yield Advice("topic.creation.default.partitions", present, "6", cost)


def _transactions(config: Config) -> Iterator[Advice]:
    if not is_outbox(config):
        cost = "rows of tables without a primary key cannot be told apart and are dead-lettered as no_row_identity"
        yield from _differs(config, "provide.transaction.metadata", "true", cost, default="false")


def _publication(config: Config) -> Iterator[Advice]:
    mode = config.get("publication.autocreate.mode", "all_tables")
    if mode.lower() == "all_tables":
        cost = (
            "the publication covers every table of the database, needs a superuser, and every change crosses the slot"
        )
        yield Advice("publication.autocreate.mode", mode, "filtered", cost)
    for setting, default in (("slot.name", "debezium"), ("publication.name", "dbz_publication")):
        if setting not in config:
            cost = "the default is shared with every connector that leaves it out; their rows silently stop"
            yield Advice(setting, default, "a name of its own", cost)


_CHECKS: Final[tuple[Callable[[Config], Iterator[Advice]], ...]] = (
    _null,
    _heartbeat,
    _latency,
    _tombstones,
    _framing,
    _avro_names,
    _outbox,
    _partitions,
    _transactions,
    _publication,
)
