"""The examination: all neighbours at once, then the findings in the order of an event's journey."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from consumer.agents import registry
from consumer.agents.door import Agent
from consumer.doctor import broker, connectors, endpoints, postgres
from consumer.doctor.finding import Finding
from consumer.errors import ConfigurationError
from consumer.settings import Settings


def examine(settings: Settings) -> list[Finding]:
    """Every finding. Takes as long as the slowest neighbour: about 15 s where one is away."""
    agents, findings = _agents(settings)
    with ThreadPoolExecutor(4, thread_name_prefix="rowcall-doctor") as threads:
        connect = threads.submit(connectors.examine, settings, agents)
        kafka = threads.submit(broker.examine, settings, agents)
        registries = threads.submit(endpoints.registry, settings)
        model = threads.submit(endpoints.model, settings)
        running = connect.result()
        findings += postgres.examine(settings, agents, running.configs)
        findings += [*running.findings, *registries.result(), *kafka.result(), *model.result()]
    return findings


def _agents(settings: Settings) -> tuple[Sequence[Agent], list[Finding]]:
    try:
        agents = registry.load(settings)
    except ConfigurationError as error:
        return [], [
            Finding("fail", "agents", "they cannot be loaded", str(error), "correct ROWCALL_AGENTS or the code")
        ]
    names = ", ".join(f"{agent.name} {agent.version}" for agent in agents)
    return agents, [Finding("ok", "agents", f"{len(agents)} in ROWCALL_AGENTS", names)]
