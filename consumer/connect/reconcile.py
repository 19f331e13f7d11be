"""From connector files to running connectors: check everything first, then change only what differs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from consumer.connect.advice import Advice, lint
from consumer.connect.client import ConnectClient, describe
from consumer.connect.config import ConnectorFile, Difference, clashes, differences, removed_tables
from consumer.errors import ConfigurationError, OperatorError

_log = logging.getLogger(__name__)

CREATED: Final = "created"
UPDATED: Final = "updated"
UNCHANGED: Final = "unchanged"


@dataclass(frozen=True)
class Applied:
    """What became of one connector, and what its settings cost."""

    name: str
    action: Literal["created", "updated", "unchanged"]
    changed: tuple[Difference, ...]
    advice: tuple[Advice, ...]


def apply(client: ConnectClient, files: Sequence[ConnectorFile]) -> list[Applied]:
    """Bring Connect to what the files say. Applying twice changes nothing the second time.

    Raises:
        ConfigurationError: when a file is refused; then no connector has been touched.
        Outage: when Connect is away; applying again later is safe.
    """
    check(client, files)
    applied = []
    for file in files:
        running = client.config(file.name)
        changed = () if running is None else tuple(differences(file.config, running, file.mask))
        action: Literal["created", "updated", "unchanged"] = CREATED
        if running is not None:
            action = UPDATED if changed else UNCHANGED
        if action != UNCHANGED:
            client.put(file.name, file.config)
        _log.info("connector applied", extra={"action": "connector_applied", "connector": file.name, "result": action})
        applied.append(Applied(file.name, action, changed, tuple(lint(file.config))))
    return applied


def check(client: ConnectClient, files: Sequence[ConnectorFile]) -> None:
    """Refuse names that clash, with each other or with what runs, and settings Connect finds wrong.

    Raises:
        ConfigurationError: with one line for each clash or for each setting, in Connect's own words, secrets masked.
    """
    wanted = {file.name: file.config for file in files}
    clashing = clashes(wanted, client.configs())
    if clashing:
        raise ConfigurationError("connectors clash:\n  " + "\n  ".join(clashing), code="connector_clash")
    refused = []
    for file in files:
        problems = client.validate(file.name, file.config)
        if problems:
            refused.append(f"connector {file.name} ({file.path.name}):\n{file.mask.text(describe(problems))}")
    if refused:
        raise ConfigurationError("Connect refuses\n" + "\n".join(refused), code="connector_invalid")


def refuse_removals(client: ConnectClient, files: Sequence[ConnectorFile]) -> None:
    """Refuse files that would end the capture of tables which a running connector captures.

    Raises:
        OperatorError: naming connectors, files and tables.
    """
    refused = []
    for file in files:
        running = client.config(file.name)
        if running is not None and (removed := removed_tables(file.config, running)):
            refused.append(f"{file.name}: {file.path} would stop the capture of {', '.join(removed)}")
    if refused:
        raise OperatorError("\n".join(refused) + "; name another folder, add the tables, or say --force")


def diff(client: ConnectClient, files: Sequence[ConnectorFile]) -> dict[str, list[Difference] | None]:
    """Name → differences between file and running connector; None where none runs under that name."""
    found: dict[str, list[Difference] | None] = {}
    for file in files:
        running = client.config(file.name)
        found[file.name] = None if running is None else differences(file.config, running, file.mask)
    return found
