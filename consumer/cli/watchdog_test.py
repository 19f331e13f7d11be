"""`rowcall watchdog test`: a harmless alert through the channels, and what each answered."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from consumer.cli.opening import quiet_settings
from consumer.cli.output import as_json, print_json, print_table
from consumer.errors import ConfigurationError, OperatorError, Outage
from consumer.telemetry import redact
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels import Route, load
from producers.overdue import OverdueTopics

_EXIT = {"delivered": 0, "outage": 69, "refused": 78}


@click.command()
@click.argument("channel", required=False)
@as_json
def test(channel: str | None, json_output: bool) -> None:
    """Send a test alert through each channel, or through one, and say what it answered.

    Its state is `test`, and whatever a channel's `only` says it is sent. Exit code: 0 when each channel has delivered
    it, 78 when one refuses it, 69 when one does not answer.

    Example: ROWCALL_WATCHDOG=watchdog.toml rowcall watchdog test pager
    """
    loaded = quiet_settings()
    if not loaded.watchdog:
        raise ConfigurationError("ROWCALL_WATCHDOG is empty; name a TOML file with a table [channel.NAME] a channel")
    with closing(OverdueTopics(loaded)) as topics:
        routes = load(Path(loaded.watchdog), loaded, topic=topics.channel)
        rows = [_tried(route) for route in _chosen(routes, channel)]
    if json_output:
        print_json(rows)
    else:
        print_table(rows, ("channel", "type", "outcome", "seconds", "said"), empty="no channels")
    click.get_current_context().exit(max(_EXIT[row["outcome"]] for row in rows))


def _chosen(routes: list[Route], name: str | None) -> list[Route]:
    chosen = [route for route in routes if name in (None, route.name)]
    if not chosen:
        raise OperatorError(f"there is no channel {name}; there are {', '.join(route.name for route in routes)}")
    return chosen


def _tried(route: Route) -> dict[str, Any]:
    begun, outcome, said = time.monotonic(), "delivered", ""
    try:
        route.channel.send(_alert(route.name))
    except Outage as error:
        outcome, said = "outage", redact(str(error))
    except ConfigurationError as error:
        outcome, said = "refused", redact(str(error))
    seconds = round(time.monotonic() - begun, 2)
    return {"channel": route.name, "type": route.type, "outcome": outcome, "seconds": seconds, "said": said}


def _alert(channel: str) -> Alert:
    now = dt.datetime.now(dt.UTC)
    return Alert(
        id=uuid.uuid4(),
        subject="watchdog:test",
        kind="watchdog",
        state="test",
        previous_state="test",
        due_at=None,
        last_beat_at=now,
        run_id=None,
        reminder=0,
        detected_at=now,
        message=f"This is a test of the channel {channel}. Nothing is wrong; there is nothing to do.",
    )
