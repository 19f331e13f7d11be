"""Avro schemas of the topics that agents emit to: one file `<topic>.avsc` each. A topic without a file carries JSON.

Read by `consumer.outbox`, which registers them under `<topic>-value`. A file changes only in ways that readers of the
older one survive (new fields have defaults); the registry refuses anything else.
"""

from __future__ import annotations

from importlib import resources


def load(topic: str) -> str | None:
    """The text of the topic's schema; None where it has none."""
    if "/" in topic or "\\" in topic:
        return None
    file = resources.files(__name__).joinpath(f"{topic}.avsc")
    return file.read_text(encoding="utf-8") if file.is_file() else None


def topics() -> list[str]:
    """Every topic that has a schema, in alphabetical order."""
    names = (item.name for item in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".avsc") for name in names if name.endswith(".avsc"))
