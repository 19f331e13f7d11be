"""`rowcall webhooks`: the endpoint's process, and a look at its sources."""

from __future__ import annotations

from pathlib import Path

import click

from consumer import settings
from consumer.app import run_loop
from consumer.cli.opening import quiet_settings
from consumer.cli.output import print_table
from consumer.errors import ConfigurationError
from producers.webhooks import process
from producers.webhooks.signatures import Verifier, is_digested
from producers.webhooks.sources import load


@click.group()
def webhooks() -> None:
    """Receive webhooks and put them onto topics.

    Sources stand in the TOML file ROWCALL_WEBHOOKS; their secrets in the environment, by name.

    \b
      [source.github]
      scheme = "github"
      secrets = ["GITHUB_WEBHOOK_SECRET"]

    The sender's URL is /webhooks/<source>; agents subscribe to the topic webhooks.received.

    Example: ROWCALL_WEBHOOKS=webhooks.toml rowcall webhooks run
    """


@webhooks.command()
def run() -> None:
    """Listen on ROWCALL_WEBHOOK_HOST and ROWCALL_WEBHOOK_PORT until told to stop.

    A request is answered 202 when the brokers have it, and 503 with Retry-After when they cannot take it. Needs no
    database. Put a proxy with TLS in front.

    Example: ROWCALL_WEBHOOKS=webhooks.toml rowcall webhooks run
    """
    click.get_current_context().exit(run_loop(settings.load(), "webhooks", process.run, database=False))


@webhooks.command()
def check() -> None:
    """Read the sources and their secrets, and show them without the secrets. Warns where requests may be swallowed.

    Example: ROWCALL_WEBHOOKS=webhooks.toml rowcall webhooks check
    """
    loaded = quiet_settings()
    if not loaded.webhooks:
        raise ConfigurationError("ROWCALL_WEBHOOKS is empty; name a TOML file with a table [source.NAME] a sender")
    rows = []
    for source, keyring in load(Path(loaded.webhooks)):
        Verifier(source, keyring)
        rows.append(
            {
                "source": source.name,
                "path": f"/webhooks/{source.name}",
                "scheme": source.scheme,
                "topic": source.topic,
                "secrets": ", ".join(source.secrets),
                "max_bytes": source.max_bytes,
            }
        )
        if is_digested(source):
            click.echo(
                f"warning: source {source.name}: its delivery ID is the body's digest, so a second request with the "
                'same body wakes nobody; where the sender has an ID, name it: delivery = "header:NAME"',
                err=True,
            )
    print_table(rows, ("source", "path", "scheme", "topic", "secrets", "max_bytes"), empty="no sources")
