"""`rowcall drift`: the detectors' process, a replay of history, and what they know."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from consumer import db, settings
from consumer.app import run_loop
from consumer.cli.opening import quiet_settings, session
from consumer.cli.output import as_json, print_json, print_table
from consumer.errors import OperatorError
from producers.drift import check as history
from producers.drift import monitors as declared
from producers.drift import process

_TOLD = ("row", "monitor", "segment", "level", "turn", "episode", "baseline", "observed", "note")


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
@click.option("--monitor", "names", multiple=True, help="Only these monitors.")
@as_json
def check(file: Path, data: tuple[Path, ...], sql: str | None, names: tuple[str, ...], json_output: bool) -> None:
    """Read monitors and show what they would have told about history. Without history, show the monitors.

    Example: rowcall drift check drift.toml --data january.csv --data february.csv
    """
    quiet = quiet_settings()
    _, found = declared.load(file)
    chosen = history.chosen(found, names)
    if not data and sql is None:
        rows = [item.model_dump(include={"name", "detector", "value", "segment", "warning", "critical", "learn"})
                | {"source": item.source} for item in chosen]  # fmt: skip
        if json_output:
            print_json(rows)
        else:
            print_table(rows, ("name", "source", "detector", "value", "segment", "warning", "critical", "learn"),
                        empty="no monitors")  # fmt: skip
        return
    if data and sql is not None:
        raise OperatorError("--data and --sql are two histories; name one")
    if sql is None:
        told, engine = history.replay(chosen, history.of_csv(data))
    else:
        with session(quiet) as opened, db.transaction(opened):
            opened.execute(b"SET TRANSACTION READ ONLY")
            told, engine = history.replay(chosen, opened.execute(sql.encode(), prepare=True))
    left_out = {f"{monitor} {word}": count for (monitor, word), count in sorted(engine.counted.items())}
    if json_output:
        print_json({"events": told, "values": left_out})
        return
    print_table(told, _TOLD, empty="nothing would have been told")
    click.echo(", ".join(f"{name}: {count}" for name, count in left_out.items()))


@drift.command("list")
@as_json
def list_(json_output: bool) -> None:
    """Monitors with the states of their segments.

    Example: rowcall drift list
    """
    with session() as opened:
        rows = opened.execute(db.queries("drift", "producers")["list"]).fetchall()
    if json_output:
        print_json(rows)
        return
    print_table(rows, ("monitor", "status", "segments", "samples", "episodes", "updated_at"),
                empty="no segments; `rowcall drift run` watches")  # fmt: skip


@drift.command()
@click.argument("monitor")
@click.option("--limit", default=20, show_default=True, help="How many segments and events to show.")
@as_json
def show(monitor: str, limit: int, json_output: bool) -> None:
    """One monitor: its segments, those that drift first, and its last events.

    Example: rowcall drift show order-amount
    """
    queries = db.queries("drift", "producers")
    with session() as opened:
        rows = opened.execute(queries["show"], (monitor, limit)).fetchall()
        events = opened.execute(queries["events"], (monitor, monitor, limit)).fetchall()
    if not rows and not events:
        raise OperatorError(f"no segment of a monitor {monitor} is known; `rowcall drift list` names those that are")
    segments = [row | {"left_out": orjson.loads(row["state"]).get("left_out", {})} for row in rows]
    told = [event | {"message": orjson.loads(event["payload"])["message"]} for event in events]
    if json_output:
        print_json({"monitor": monitor, "segments": segments, "events": told})
        return
    print_table(segments, ("segment", "status", "episode", "samples", "left_out", "updated_at"), empty="no segments")
    print_table(told, ("occurred_at", "topic", "event_type", "message", "sent_at"), empty="no events")
