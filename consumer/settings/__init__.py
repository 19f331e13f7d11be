"""Configuration: one class, read once when a process starts, from the environment alone.

A secret NAME may be given as NAME_FILE, a path whose content is the value (trailing newline dropped); giving both is an
error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from consumer.errors import ConfigurationError
from consumer.settings.faults import faults, plain
from consumer.settings.fields import Settings

__all__ = ["Settings", "faults", "load", "plain", "variable"]


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Raises:
        ConfigurationError: one line for each setting that is wrong.
    """
    source = dict(os.environ if environment is None else environment)
    values = {}
    for field in Settings.model_fields.values():
        name = str(field.alias)
        if (text := variable(source, name)) is not None:
            values[name] = text
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'][:1]))}: {plain(item['msg'])}" for item in error.errors()]
        raise ConfigurationError("settings: " + "; ".join(lines)) from None
    settings.check()
    return settings


def variable(source: Mapping[str, str], name: str) -> str | None:
    """The value of NAME, or the content of the file that NAME_FILE names; None where neither is set.

    Raises:
        ConfigurationError: both are set, or the file cannot be read.
    """
    path = source.get(f"{name}_FILE")
    if path is None:
        return source.get(name)
    if name in source:
        raise ConfigurationError(f"{name} and {name}_FILE are both set; keep one")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{name}_FILE names {path}, which cannot be read: {error.strerror}") from error
