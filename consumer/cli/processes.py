"""`rowcall worker | intake | execute`: the processes that run until they are told to stop."""

from __future__ import annotations

import click

from consumer import settings
from consumer.app import Roles, run


@click.command()
def worker() -> None:
    """Read events and run agents, in one process.

    Stops on SIGTERM or Ctrl-C: it claims nothing more and lets runs finish for ROWCALL_DRAIN_SECONDS; a second signal
    ends it at once (exit code 130). Exit code 78 says that a setting or the schema must be changed first.

    Example: ROWCALL_AGENTS=my.agents rowcall worker
    """
    _run(intake=True, execute=True)


@click.command()
def intake() -> None:
    """Only read events from Kafka and queue runs.

    Example: ROWCALL_HEALTH_PORT=9101 rowcall intake
    """
    _run(intake=True, execute=False)


@click.command()
def execute() -> None:
    """Only run what is queued; start as many of these as the model can take.

    Example: ROWCALL_RUNS_IN_FLIGHT=64 rowcall execute
    """
    _run(intake=False, execute=True)


def _run(*, intake: bool, execute: bool) -> None:
    click.get_current_context().exit(run(settings.load(), Roles(intake=intake, execute=execute)))
