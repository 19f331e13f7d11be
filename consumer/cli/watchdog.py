"""`rowcall watchdog`: who tells when something is silent."""

from __future__ import annotations

import click

from consumer.cli.watchdog_test import test


@click.group()
def watchdog() -> None:
    """Tell when something that should be heard of is silent.

    Channels stand in the TOML file ROWCALL_WATCHDOG:

    \b
      [channel.agents]
      type = "topic"

    Example: ROWCALL_WATCHDOG=watchdog.toml rowcall watchdog test
    """


watchdog.add_command(test)
