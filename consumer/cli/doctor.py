"""`rowcall doctor`: every dependency, and what to do."""

from __future__ import annotations

import dataclasses

import click

from consumer.cli.opening import quiet_settings
from consumer.cli.output import as_json, print_json, print_table
from consumer.doctor import examine
from consumer.telemetry import redact


@click.command()
@as_json
def doctor(json_output: bool) -> None:
    """Check every dependency and say what to do; changes nothing, makes no paid call. Exit code 1 if something fails.

    Example: rowcall doctor
    """
    findings = examine(quiet_settings())
    rows = [{key: redact(value) for key, value in dataclasses.asdict(finding).items()} for finding in findings]
    if json_output:
        print_json(rows)
    else:
        shown = [{**row, "what to do": row["advice"]} for row in rows]
        print_table(shown, ("level", "area", "what", "why", "what to do"), empty="nothing was found")
        bad = {level: sum(row["level"] == level for row in rows) for level in ("fail", "warn")}
        click.echo(f"{bad['fail']} failures, {bad['warn']} warnings")
    if any(finding.level == "fail" for finding in findings):
        click.get_current_context().exit(1)
