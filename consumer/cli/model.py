"""`rowcall model check`: is an endpoint fit to be switched to?"""

from __future__ import annotations

import asyncio
import dataclasses

import click

from consumer.cli.opening import quiet_settings
from consumer.cli.output import as_json, print_json, print_table
from consumer.cli.values import Given, JsonFile
from consumer.errors import Outage
from consumer.llm import check as checking
from consumer.llm.samples import SAMPLES


@click.group()
def model() -> None:
    """Check a model endpoint before switching to it.

    Example: rowcall model check
    """


@model.command()
@click.option("--samples", type=JsonFile(), help="File with a JSON list of orders to ask about, masked first.")
@as_json
def check(samples: Given | None, json_output: bool) -> None:
    """Send desensitised samples to MODEL_BASE_URL and report structure, error codes, time-outs and limits.

    Makes about ten small requests and one for each sample, some of them wrong on purpose. Exit code 1 if it is not fit,
    69 if it does not answer.

    Example: MODEL_BASE_URL=https://models.example/v1 MODEL_NAME=large rowcall model check
    """
    chosen = SAMPLES if samples is None else samples.value
    if not isinstance(chosen, list | tuple) or not chosen or not all(isinstance(item, dict) for item in chosen):
        raise click.BadParameter("it must hold a JSON list of objects", param_hint="'--samples'")
    report = asyncio.run(checking.check(quiet_settings(), chosen))
    if json_output:
        print_json(dataclasses.asdict(report) | {"fit": report.fit})
    else:
        click.echo(f"{report.model} at {report.endpoint}")
        print_table(map(dataclasses.asdict, report.findings), ("level", "name", "detail"), empty="nothing was found")
        click.echo("fit to be used" if report.fit else "not fit to be used")
    if not report.reached:
        raise Outage(f"the model endpoint {report.endpoint} does not answer", dependency="model")
    if not report.fit:
        click.get_current_context().exit(1)
