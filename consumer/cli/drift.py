"""`rowcall drift`: the detectors' process, a replay of history, and what they know."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from consumer import db, settings
from consumer.app import run_loop
from consumer.cli.opening import by_option, quiet_settings, reason_option, session
from consumer.cli.output import as_json, print_json, print_table
from consumer.cli.values import Moment
from consumer.errors import ConfigurationError, OperatorError
from consumer.kafka.history import History, Window
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings
from consumer.wire import Decoder
from producers.drift import check as history
from producers.drift import control, process
from producers.drift import monitors as declared
from producers.drift.engine import Engine
from producers.drift.messages import Messages
from producers.drift.monitors import Monitor

_PROGRESS_SECONDS = 2.0
_TOLD = ("row", "at", "monitor", "segment", "level", "turn", "episode", "baseline", "observed", "note")


@click.group()
def drift() -> None:
    """Watch topics and queries, and tell on two levels when values drift.

    Monitors stand in the TOML file ROWCALL_DRIFT:

    \b
      [monitor.order-amount]
      topic = "cdc.public.orders"
      value = "amount"
      segment = "country"

    Example: ROWCALL_DRIFT=drift.toml rowcall drift run
    """


@drift.command()
def run() -> None:
    """Watch until told to stop. Several processes share the sources; each source is watched by one.

    Example: ROWCALL_DRIFT=drift.toml rowcall drift run
    """
    click.get_current_context().exit(run_loop(settings.load(), "drift", process.run))


@drift.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", multiple=True, type=click.Path(path_type=Path), help="CSV file with history; several in order.")
@click.option("--sql", help="Query of the database that gives history, in its order.")
@click.option("--topic", "topics", is_flag=True, help="The messages that the monitors' topics hold.")
@click.option("--from", "since", type=Moment(), help="With --topic: messages written from this time on.")
@click.option("--to", "until", type=Moment(), help="With --topic: messages written before this time.")
@click.option("--last", type=click.IntRange(min=1), help="With --topic: the last messages of each partition.")
@click.option("--monitor", "names", multiple=True, help="Only these monitors.")
@as_json
def check(
    file: Path, data: tuple[Path, ...], sql: str | None, topics: bool, since: dt.datetime | None,
    until: dt.datetime | None, last: int | None, names: tuple[str, ...], json_output: bool,
) -> None:  # fmt: skip
    """Read monitors and show what they would have told about history. Without history, show the monitors.

    Nothing is written, sent or committed. A replay of topics ends at the end they have when it begins.

    \b
    Example: rowcall drift check drift.toml --data january.csv --data february.csv
    Example: rowcall drift check drift.toml --topic --from 2026-11-01 --monitor order-amount
    """
    quiet = quiet_settings()
    _, found = declared.load(file)
    chosen = history.chosen(found, names)
    if bool(data) + (sql is not None) + topics > 1:
        raise OperatorError("--data, --sql and --topic are different histories; name one")
    if not topics and (since or until or last):
        raise OperatorError("--from, --to and --last choose messages; they go with --topic")
    if topics:
        window = Window(_ms(since), _ms(until), last)
        told, engine = _topics(quiet, chosen, window, until)
    elif data:
        told, engine = history.replay(chosen, history.of_csv(data))
    elif sql is not None:
        with session(quiet) as opened, db.transaction(opened):
            opened.execute(b"SET TRANSACTION READ ONLY")
            told, engine = history.replay(chosen, opened.execute(sql.encode(), prepare=True))
    else:
        _show_monitors(chosen, json_output)
        return
    left_out = {f"{monitor} {word}": count for (monitor, word), count in sorted(engine.counted.items())}
    if json_output:
        print_json({"events": told, "values": left_out})
        return
    rows = [{**item, "at": dt.datetime.fromtimestamp(item["at"], dt.UTC) if topics else None} for item in told]
    print_table(rows, _TOLD, empty="nothing would have been told")
    click.echo(", ".join(f"{name}: {count}" for name, count in left_out.items()) or "the history held no value")


def _show_monitors(chosen: Sequence[Monitor], json_output: bool) -> None:
    rows = [item.model_dump(include={"name", "detector", "value", "segment", "warning", "critical", "learn"})
            | {"source": item.source} for item in chosen]  # fmt: skip
    if json_output:
        print_json(rows)
    else:
        print_table(rows, ("name", "source", "detector", "value", "segment", "warning", "critical", "learn"),
                    empty="no monitors")  # fmt: skip


def _topics(
    quiet: Settings, chosen: Sequence[Monitor], window: Window, until: dt.datetime | None
) -> tuple[list[dict[str, Any]], Engine]:
    monitors = [item for item in chosen if item.topic]
    if not monitors:
        raise ConfigurationError("none of the monitors watches a topic; --sql and --data replay other histories")
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            click.echo(f"{done:,} of about {total:,} messages", err=True)

    with SchemaRegistry(quiet.schema_registry_url) as registry:
        messages = Messages(Decoder(registry.schema, epoch=quiet.epoch), monitors)
        records = History(quiet, sorted({item.topic for item in monitors if item.topic}), window)
        return history.replay_topics(monitors, records, messages, until.timestamp() if until else time.time(), progress)


def _ms(moment: dt.datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


@drift.command("list")
@as_json
def list_(json_output: bool) -> None:
    """Monitors with the states of their segments, those that are retired, and why some see nothing.

    Example: rowcall drift list
    """
    with session() as opened:
        rows = control.listed(opened)
    if json_output:
        print_json(rows)
        return
    print_table(rows, ("monitor", "state", "status", "segments", "samples", "episodes", "updated_at", "error"),
                empty="no monitors; `rowcall drift run` watches")  # fmt: skip


@drift.command()
@click.argument("monitor")
@click.option("--limit", default=20, show_default=True, help="How many segments and events to show.")
@as_json
def show(monitor: str, limit: int, json_output: bool) -> None:
    """One monitor: its segments, those that drift first, its last events, and who gave up a baseline.

    Example: rowcall drift show order-amount
    """
    with session() as opened:
        rows, events, resets = control.shown(opened, monitor, limit)
    segments = [{**row, "left_out": orjson.loads(row["state"]).get("left_out", {})} for row in rows]
    told = [{**event, "message": orjson.loads(event["payload"])["message"]} for event in events]
    if json_output:
        print_json({"monitor": monitor, "segments": segments, "events": told, "resets": resets})
        return
    print_table(segments, ("segment", "status", "episode", "samples", "left_out", "updated_at"), empty="no segments")
    print_table(told, ("occurred_at", "topic", "event_type", "message", "sent_at"), empty="no events")
    print_table(resets, ("asked_at", "segment", "actor", "reason", "segments", "done_at"), empty="no resets")


@drift.command()
@click.argument("monitor")
@click.option("--segment", help="Only this one; without it, all segments of the monitor.")
@by_option
@reason_option
def reset(monitor: str, segment: str | None, by: str, reason: str | None) -> None:
    """Take what is now for the new normal: open episodes recover, and the baseline is learned anew.

    The process that watches the monitor does it within seconds; without one, it waits until one runs.

    Example: rowcall drift reset order-amount --segment DE --reason "new price list"
    """
    with session() as opened:
        control.reset(opened, monitor, segment, actor=by, reason=reason)
    click.echo(f"asked for; `rowcall drift show {monitor}` says when it is done")
