"""Structured logs: one record a line, each with an `action`, and never a secret.

Every record has time (UTC, ISO 8601), level, logger, action (`log` where none is given) and message; whatever a caller
gives in `extra` (job, event, agent, …) stands beside them. They go to stderr, because stdout is for what a command
prints. Secrets are masked in the finished line, so that neither a traceback nor a library can leak one.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

from consumer.settings import Settings

# Shorter values are words that stand in every other line; masking them would only make the log unreadable.
_SHORTEST_SECRET: Final = 8
_MASK: Final = "***"
# A password inside a URL or a libpq connection string, whichever it is and however it got there. An agent's error may
# be a megabyte without a space: none of these looks at the rest of the text again from each of its places.
_IN_URL: Final = re.compile(r"(://[^/\s:@\"']*:)[^/\s\"']+(@)")
_IN_CONNINFO: Final = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'\"]+)", re.IGNORECASE)
_BEARER: Final = re.compile(r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "action"}
_TEXT_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}

_secrets: list[str] = []


def configure(settings: Settings) -> None:
    """Send every logger of the process to stderr in the form the settings ask for; replaces earlier handlers."""
    _secrets[:] = _secret_values(settings)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.log_level)


def redact(text: str) -> str:
    """`text` with every known secret, and anything that has the form of one in a URL or header, masked."""
    for secret in _secrets:
        text = text.replace(secret, _MASK)
    text = _IN_URL.sub(rf"\1{_MASK}\2", text)
    text = _IN_CONNINFO.sub(rf"\1{_MASK}", text)
    return _BEARER.sub(rf"\1{_MASK}", text)


def _secret_values(settings: Settings) -> list[str]:
    forms = {
        form
        for value in settings.secrets()
        if len(value) >= _SHORTEST_SECRET
        for form in (value, json.dumps(value)[1:-1])
    }
    return sorted(forms, key=len, reverse=True)


class _JsonLines(JsonFormatter):
    """One JSON object a line; ASCII only, so that no lone surrogate can stop a record."""

    def __init__(self) -> None:
        super().__init__(json_ensure_ascii=True, json_default=str)

    def add_fields(self, log_record: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        log_record["time"] = _time(record)
        log_record["level"] = record.levelname
        log_record["logger"] = record.name
        log_record["action"] = getattr(record, "action", None) or "log"
        super().add_fields(log_record, record, message_dict)

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _TextLines(logging.Formatter):
    """For people: time, level, action, message, then what else the record carries."""

    def format(self, record: logging.LogRecord) -> str:
        level = _TEXT_LEVELS.get(record.levelname, record.levelname)
        action = getattr(record, "action", None) or "log"
        extras = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        line = f"{_time(record)} {level:<5} {record.name} [{action}] {record.getMessage()} {extras}".rstrip()
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redact(line)


def _time(record: logging.LogRecord) -> str:
    moment = dt.datetime.fromtimestamp(record.created, tz=dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
