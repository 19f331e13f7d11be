"""The command line: `rowcall`. One file a group of commands; this one only names them.

A command's module is imported when it is called, so that `rowcall --help` is quick and a missing extra hurts only the
command that needs it. Exit codes: 0 done, 1 it cannot be done, 2 wrong usage, 69 a dependency is away, 78 a setting,
a schema or the installed code must be changed; a process of loops adds 130 when it is told twice to stop.
"""

from __future__ import annotations

import click

from consumer.cli.lazy import LazyGroup

__all__ = ["main"]

COMMANDS = {
    "worker": ("consumer.cli.processes:worker", "Read events and run agents, in one process."),
    "intake": ("consumer.cli.processes:intake", "Only read events and queue runs."),
    "execute": ("consumer.cli.processes:execute", "Only run what is queued."),
    "enqueue": ("consumer.cli.enqueue:enqueue", "Queue one run of an agent by hand."),
    "jobs": ("consumer.cli.jobs:jobs", "List, show, retry and cancel runs."),
    "reviews": (
        "consumer.cli.reviews:reviews",
        "Answers that wait for a person: show, approve, reject, again, bypass.",
    ),
    "effects": ("consumer.cli.effects:effects", "What agents did outside: list, show, resolve what nobody knows."),
    "dead-letters": ("consumer.cli.dead_letters:dead_letters", "Messages that could not be handled."),
    "agents": ("consumer.cli.agents:agents", "List, activate, pause, resume and retire agents."),
    "limits": ("consumer.cli.limits:limits", "Concurrency, rate, priority and storm limits of agents."),
    "budgets": ("consumer.cli.budgets:budgets", "What agents and tenants may spend on the model."),
    "example-tables": ("consumer.cli.example_tables:example_tables", "Create the tables of the example agents."),
    "schedule": ("consumer.cli.schedule:schedule", "Queue runs by the clock: run, list, pause, backfill."),
    "drift": ("consumer.cli.drift:drift", "Watch values for drift: run, check history, list, show."),
    "webhooks": ("consumer.cli.webhooks:webhooks", "Receive webhooks: run the endpoint, check its sources."),
    "watchdog": (
        "consumer.cli.watchdog:watchdog",
        "Find silence and tell of it: run, test, list, flips, pause, resume, forget.",
    ),
    "connectors": ("consumer.cli.connectors:connectors", "Apply and inspect Debezium connectors."),
    "model": ("consumer.cli.model:model", "Check a model endpoint before switching to it."),
    "migrate": ("consumer.cli.setup:migrate", "Bring the database to this version's schema."),
    "config": ("consumer.cli.setup:config", "Print the settings in force, secrets masked."),
    "doctor": ("consumer.cli.doctor:doctor", "Check every dependency and say what to do."),
    "dev": ("debezium.cli:dev", "The local stack: Postgres, Kafka, Connect, registry, model."),
    "demo": ("consumer.cli.demo:demo", "Play the main job end to end on a fresh local stack."),
    "version": ("consumer.cli.setup:version", "Print the version."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rowcall: row changes call agents.

    Settings come from the environment; `rowcall config` shows them. Example, with everything on this machine:

    \b
      rowcall dev up --model && eval "$(rowcall dev status --env)"
      rowcall migrate && rowcall example-tables && rowcall connectors apply
      rowcall worker
    """
