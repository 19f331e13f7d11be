"""What commands open: settings, a database session, the person who acts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

import click

from consumer import db, settings, telemetry
from consumer.settings import Settings


def quiet_settings() -> Settings:
    """The settings of a command that runs once: warnings alone, as text, unless the environment says otherwise."""
    loaded = settings.load()
    wanted = {"log_level": "WARNING", "log_format": "text"}
    aliases = {"log_level": "ROWCALL_LOG_LEVEL", "log_format": "ROWCALL_LOG_FORMAT"}
    update = {name: value for name, value in wanted.items() if aliases[name] not in os.environ}
    telemetry.configure(loaded.model_copy(update=update))
    return loaded


@contextmanager
def session(loaded: Settings | None = None) -> Iterator[db.SyncSession]:
    """A session on DATABASE_URL, closed at the end.

    Raises:
        ConfigurationError, Outage: as `db.connect`.
    """
    loaded = loaded or quiet_settings()
    with db.connect(loaded.database_url.get_secret_value(), name="command") as opened:
        yield opened


def user() -> str:
    """Who acts where --by is not given."""
    if name := os.environ.get("USER") or os.environ.get("LOGNAME"):
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container that runs under a number
        return f"uid {os.getuid()}"


by_option = click.option("--by", default=user, show_default="your user name", help="Who does it; kept in the audit.")
reason_option = click.option("--reason", help="Why; kept in the audit.")
