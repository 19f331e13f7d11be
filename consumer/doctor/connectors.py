"""Kafka Connect: reachable, its connectors running, their settings, and whether every topic has a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumer.agents.door import Agent
from consumer.connect import ConnectClient, lint
from consumer.connect.advice import is_outbox
from consumer.doctor.finding import Finding, refused
from consumer.errors import RowcallError
from consumer.settings import Settings

_AREA: Final = "connect"


@dataclass(frozen=True)
class Running:
    """What runs in Connect; `configs` is empty where Connect is away. Configurations hold secrets in clear text."""

    findings: list[Finding]
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def examine(settings: Settings, agents: Sequence[Agent]) -> Running:
    """Findings about CONNECT_URL and what runs there."""
    try:
        with ConnectClient(settings.connect_url) as client:
            configs = client.configs()
            return Running(list(_examine(client, configs, settings, agents)), configs)
    except RowcallError as error:
        return Running([refused(_AREA, error, "CONNECT_URL")])


def _examine(
    client: ConnectClient, configs: Mapping[str, Mapping[str, str]], settings: Settings, agents: Sequence[Agent]
) -> Iterator[Finding]:
    place = _place(settings)
    if not configs:
        advice = f"`rowcall connectors apply` (of {place})"
        yield Finding("fail", _AREA, "no connectors", "nothing is captured", advice)
    for name, config in configs.items():
        status = client.status(name)
        if status is not None and status.healthy:
            yield Finding("ok", _AREA, f"connector {name} runs")
        elif status is not None:
            reasons = [status.reason, *(task.reason for task in status.tasks)]
            why = "; ".join(filter(None, reasons)) or f"it is {status.state} with {len(status.tasks)} tasks"
            advice = (
                f"mend the cause (a wrong setting in {place}), then `rowcall connectors apply {name} --restart-failed`"
            )
            yield Finding("fail", _AREA, f"connector {name} does not run", why, advice)
        for item in lint(config):
            present = item.present or "(unset)"
            advice = f"set it to {item.wanted} in {place}, then `rowcall connectors apply {name}`"
            yield Finding("warn", _AREA, f"{name}: {item.setting} is {present}", item.cost, advice)
    yield from _sources(configs, settings, agents)


def _sources(
    configs: Mapping[str, Mapping[str, str]], settings: Settings, agents: Sequence[Agent]
) -> Iterator[Finding]:
    prefixes = {config.get("topic.prefix", "") for config in configs.values() if not is_outbox(config)}
    # Topics of the outbox have no prefix; whatever an agent emits may be its source.
    for prefix in sorted(set(settings.own_sources) - prefixes if configs else ()):
        readers = [agent.name for agent in agents if any(topic.startswith(f"{prefix}.") for topic in agent.topics)]
        if readers:
            why = f"no connector has topic.prefix {prefix}; {', '.join(readers)} will never be woken"
            advice = f"`rowcall connectors apply` of a file with this prefix, in {_place(settings)}"
            yield Finding("warn", _AREA, f"nothing feeds {prefix}.*", why, advice)


def _place(settings: Settings) -> str:
    """Where a person edits connectors."""
    if settings.connectors:
        return f"the folder {settings.connectors} (ROWCALL_CONNECTORS)"
    return "a folder of your own (copy the shipped files and set ROWCALL_CONNECTORS to it)"
