"""The registry: which agents this process has the code of.

`ROWCALL_AGENTS` names importable modules; each has a list `AGENTS`. Everything that is wrong with them is said at
start, in one sentence that names the module.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from consumer.agents.door import Agent
from consumer.errors import ConfigurationError
from consumer.settings import Settings


def load(settings: Settings) -> list[Agent]:
    """The agents of the modules that ROWCALL_AGENTS names, in their order.

    Raises:
        ConfigurationError: a module does not import or has no AGENTS list, an agent cannot work, or a name is taken
            twice.
    """
    agents: dict[str, Agent] = {}
    origins: dict[str, str] = {}
    for module in settings.agents:
        for agent in _agents_of(module):
            agent.check()
            if agent.name in agents:
                raise ConfigurationError(
                    f"two agents are called {agent.name!r}: one in {origins[agent.name]}, one in {module}"
                )
            agents[agent.name] = agent
            origins[agent.name] = module
    if not agents:
        raise ConfigurationError(f"ROWCALL_AGENTS ({','.join(settings.agents)}) names no agent")
    return list(agents.values())


def _agents_of(module: str) -> Sequence[Agent]:
    found = imported(module)
    agents = getattr(found, "AGENTS", None)
    if not isinstance(agents, list | tuple) or not all(isinstance(agent, Agent) for agent in agents):
        raise ConfigurationError(f"ROWCALL_AGENTS: module {module} has no list AGENTS of agents")
    return agents


def imported(module: str) -> ModuleType:
    """A module of ROWCALL_AGENTS.

    Raises:
        ConfigurationError: it is not there, or its own code fails.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        what = f"{type(error).__name__}: {error}{_advice(module, error)}"
        raise ConfigurationError(f"ROWCALL_AGENTS: module {module} cannot be imported: {what}") from error


def _advice(module: str, error: Exception) -> str:
    """What to do when it is the module itself that Python does not find, and not something that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    itself = missing is not None and f"{module}.".startswith(f"{missing}.")
    return "; put its folder on PYTHONPATH" if itself else ""
