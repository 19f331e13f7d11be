"""Definitions of schedules: from the agents' modules and a TOML file into `rowcall.schedules`.

Before this stage nothing; after it the loop fires what stands in the table. Promises: a wrong definition stops the
start with one sentence; a changed expression counts from now on; a pause survives; a schedule that its source no longer
declares is retired, not deleted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from consumer import db
from consumer.agents.registry import imported
from consumer.agents.schedule import Schedule
from consumer.errors import ConfigurationError
from consumer.settings import Settings

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("schedules", "producers")
_DURATIONS: Final = frozenset({"catch_up_window", "grace", "jitter"})
_FIELDS: Final = {field.name: field for field in dataclasses.fields(Schedule)}


def declared(settings: Settings) -> dict[str, list[Schedule]]:
    """Source → its schedules: `code` for the modules of ROWCALL_AGENTS, `file` for ROWCALL_SCHEDULES.

    Raises:
        ConfigurationError: one sentence that names the source, the schedule and the field.
    """
    found = {"code": [schedule for module in settings.agents for schedule in _of_module(module)]}
    if settings.schedules:
        found["file"] = of_file(Path(settings.schedules))
    names: dict[str, str] = {}
    for source, schedules in found.items():
        for schedule in schedules:
            schedule.check()
            if schedule.name in names:
                raise ConfigurationError(
                    f"two schedules are called {schedule.name!r}: one in {names[schedule.name]}, one in {source}"
                )
            names[schedule.name] = source
    return found


def of_file(path: Path) -> list[Schedule]:
    """The schedules of a TOML file: a table `[schedule.NAME]` each, durations in seconds.

    Raises:
        ConfigurationError: the file cannot be read, or holds a field that schedules have not.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"ROWCALL_SCHEDULES names {path}, which cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    schedules = tables.pop("schedule", {})
    if tables or not isinstance(schedules, dict):
        raise ConfigurationError(f"{path}: write a table [schedule.NAME] for each schedule, and nothing else")
    return [_of_table(path, name, table) for name, table in schedules.items()]


def synchronise(session: db.SyncSession, found: Mapping[str, Iterable[Schedule]]) -> list[str]:
    """Bring the database to what is declared; one line for each change.

    Raises:
        Outage, TransactionConflict: nothing was written.
    """
    changes = []
    with db.transaction(session):
        session.execute(_SQL["lock_definitions"])
        now = now_of(session)
        for source, schedules in found.items():
            held = list(schedules)
            for schedule in held:
                row = {
                    "name": schedule.name,
                    "source": source,
                    "definition": to_json(schedule),
                    "next": next(schedule.after(now), None),
                }
                if session.execute(_SQL["put"], row).fetchone() is not None:
                    changes.append(f"{schedule.name}: declared in {source}")
            gone = session.execute(_SQL["retire"], {"source": source, "names": [item.name for item in held]})
            changes.extend(f"{row['name']}: retired, {source} no longer declares it" for row in gone)
    for line in changes:
        _log.info("schedule %s", line, extra={"action": "schedule_declared"})
    return changes


def now_of(session: db.SyncSession) -> dt.datetime:
    """The database's clock."""
    row = session.execute(_SQL["now"]).fetchone()
    assert row is not None
    now: dt.datetime = row["now"]
    return now


def to_json(schedule: Schedule) -> str:
    """A definition as it is stored; durations in seconds."""
    values = {name: getattr(schedule, name) for name in _FIELDS}
    try:
        # orjson makes null of NaN; this one refuses it, as Postgres would.
        if "\\u0000" in json.dumps(values, default=str, allow_nan=False):
            raise ValueError("it holds a NUL character, which Postgres cannot store")
        return orjson.dumps(values, default=_seconds).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"schedule {schedule.name}: the payload is no JSON that can be stored: {error}"
        ) from error


def from_json(values: Mapping[str, Any]) -> Schedule:
    """A stored definition. Fields this version does not know are of a newer one and ignored."""
    known: dict[str, Any] = {name: value for name, value in values.items() if name in _FIELDS}
    return Schedule(**(known | {name: _duration(known[name]) for name in _DURATIONS & known.keys()}))


def _seconds(value: Any) -> float:
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no place in a payload")


def _duration(value: Any) -> dt.timedelta:
    return dt.timedelta(seconds=float(value))


def _of_module(module: str) -> list[Schedule]:
    found = getattr(imported(module), "SCHEDULES", [])
    if not isinstance(found, list | tuple) or not all(isinstance(item, Schedule) for item in found):
        raise ConfigurationError(f"ROWCALL_AGENTS: SCHEDULES of module {module} must be a list of schedules")
    return list(found)


def _of_table(path: Path, name: str, table: object) -> Schedule:
    where = f"{path}: schedule {name}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} must be a table")
    unknown = sorted(set(table) - set(_FIELDS) | {"name"} & set(table))
    if unknown:
        raise ConfigurationError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(_FIELDS))}")
    if "cron" not in table:
        raise ConfigurationError(f"{where} has no cron")
    for field, value in table.items():
        if not isinstance(value, _kind(field)) or isinstance(value, bool):
            raise ConfigurationError(f"{where}: {field} must be {_word(field)}")
    try:
        return from_json({"name": name, **table})
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(
            f"{where}: {', '.join(sorted(_DURATIONS))} must be seconds that add up: {error}"
        ) from error


def _kind(field: str) -> tuple[type, ...]:
    if field in _DURATIONS:
        return (int, float)
    if field == "payload":
        return (dict,)
    return (int,) if field in ("catch_up_limit", "priority", "max_attempts") else (str,)


def _word(field: str) -> str:
    if field in _DURATIONS:
        return "a number of seconds"
    return {"dict": "a table", "int": "a whole number", "str": "a text"}[_kind(field)[0].__name__]
