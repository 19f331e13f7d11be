"""Connector files: reading, placeholders, masking, comparison, and names that may be used only once. No requests.

A file is Connect's own JSON, either the flat configuration or `{"name": …, "config": {…}}`; the file's stem is the
connector's name unless it says another. `${NAME}` in a value is replaced by the environment's NAME, or by the content
of the file that NAME_FILE names. Only upper-case names are: `${routedByValue}` and `${file:…}` belong to Connect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from consumer.errors import ConfigurationError

MASKED: Final = "***"
_PLACEHOLDER: Final = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
_SECRET_NAME: Final = re.compile(
    r"passw|secret|token|credential|api[._-]?key|private[._-]?key|jaas|user\.info|passphrase|authorization",
    re.IGNORECASE,
)
_URL_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")

# Debezium's defaults: two connectors that leave them out clash as well.
_DEFAULTS: Final = {"slot.name": "debezium", "publication.name": "dbz_publication", "database.port": "5432"}
# What must be its own, and within what: a slot in a server, a publication in a database, a prefix in Kafka.
_UNIQUE: Final[dict[str, tuple[str, ...]]] = {
    "slot.name": ("database.hostname", "database.port"),
    "publication.name": ("database.hostname", "database.port", "database.dbname"),
    "topic.prefix": (),
}
_POSTGRES: Final = "io.debezium.connector.postgresql.PostgresConnector"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Config = Mapping[str, str]


@dataclass(frozen=True)
class Mask:
    """Hides secrets in what people see: values under a secret's name, and known secret values wherever they stand."""

    secrets: frozenset[str] = frozenset()

    def value(self, key: str, value: str) -> str:
        """`value` of setting `key`, as it may be shown."""
        return MASKED if value and _SECRET_NAME.search(key) else self.text(value)

    def text(self, text: str) -> str:
        """Any text, as it may be shown."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, MASKED)
        return _URL_LOGIN.sub(MASKED, text)

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.secrets | other.secrets)


@dataclass(frozen=True)
class ConnectorFile:
    """One connector as a file wants it; `config` has its placeholders filled and must not be shown but by `mask`."""

    name: str
    path: Path
    config: Config = field(repr=False)
    mask: Mask = field(default_factory=Mask, repr=False)


@dataclass(frozen=True)
class Difference:
    """A setting whose value in the file is not the running one; None where one side lacks it. Both masked."""

    key: str
    wanted: str | None
    running: str | None


def folder(configured: str) -> Path:
    """The folder of connector files that ROWCALL_CONNECTORS names; that of the shipped ones where it is empty."""
    return Path(configured or str(resources.files("debezium") / "connectors"))


def connector_names(directory: Path) -> list[str]:
    """The connectors that the directory's files describe. Needs no value for their placeholders.

    Raises:
        ConfigurationError: naming a file that cannot be read or is no connector.
    """
    return sorted(_read(path)[0] for path in directory.glob("*.json"))


def beat_seconds(directory: Path) -> dict[str, float]:
    """The pause between the rows that each connector writes to `rowcall.connector_heartbeats`; those that write some.

    Raises:
        ConfigurationError: naming a file that cannot be read or is no connector.
    """
    found = {}
    for name, raw in map(_read, sorted(directory.glob("*.json"))):
        query, pause = str(raw.get("heartbeat.action.query", "")), str(raw.get("heartbeat.interval.ms", ""))
        if "rowcall.connector_heartbeats" in query and f"'{name}'" in query and pause.isdecimal() and int(pause) > 0:
            found[name] = int(pause) / 1000
    return found


def load(directory: Path, environment: Mapping[str, str]) -> list[ConnectorFile]:
    """Every `*.json` of the directory, by name.

    Raises:
        ConfigurationError: naming the file, and the key and variable of a placeholder that has no value.
    """
    files = [_load(path, environment) for path in sorted(directory.glob("*.json"))]
    if not files:
        raise ConfigurationError(f"no connector files (*.json) in {directory}")
    names = [file.name for file in files]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"more than one connector file names itself {', '.join(twice)}")
    return sorted(files, key=lambda file: file.name)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Name and settings as they stand in the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"connector file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"connector file {path} is not JSON: {error}") from error
    name, raw = path.stem, content
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        name, raw = content.get("name", name), content["config"]
    if not isinstance(raw, dict) or not isinstance(name, str):
        raise ConfigurationError(f"connector file {path} holds no JSON object of settings")
    return name, raw


def _load(path: Path, environment: Mapping[str, str]) -> ConnectorFile:
    name, raw = _read(path)
    secrets: set[str] = set()
    config = {}
    for key, value in raw.items():
        text = _as_text(value, path, key)
        values = {name: _lookup(name, environment, path, key) for name in _PLACEHOLDER.findall(text)}
        config[key] = _filled(text, values)
        secrets |= {value for name, value in values.items() if _SECRET_NAME.search(name)}
        secrets |= {config[key]} if _SECRET_NAME.search(key) else set()
    return ConnectorFile(name, path, config, Mask(frozenset(filter(None, secrets))))


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _as_text(value: Any, path: Path, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ConfigurationError(f"connector file {path}: {key} must be a text, a number or true/false")


def _lookup(name: str, environment: Mapping[str, str], path: Path, key: str) -> str:
    if name in environment:
        return environment[name]
    if (file := environment.get(f"{name}_FILE")) is None:
        raise ConfigurationError(f"connector file {path}: {key} needs the variable {name}, which is not set")
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{name}_FILE names {file}, which cannot be read: {error.strerror}") from error


def database_variables(database_url: str) -> dict[str, str]:
    """DATABASE_HOST, _PORT, _USER, _PASSWORD and _NAME out of DATABASE_URL, for the placeholders of connector files.

    Raises:
        ConfigurationError: when it is not a postgresql:// URL with a host; its text is not shown.
    """
    try:
        parts = urlsplit(database_url)
        host, port = parts.hostname, parts.port or 5432
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("DATABASE_URL must be postgresql://user:password@host:port/name for Connect to use it")
    return {
        "DATABASE_HOST": host,
        "DATABASE_PORT": str(port),
        "DATABASE_USER": unquote(parts.username or "postgres"),
        "DATABASE_PASSWORD": unquote(parts.password or ""),
        "DATABASE_NAME": unquote(parts.path.lstrip("/")) or "postgres",
    }


def differences(wanted: Config, running: Config, mask: Mask) -> list[Difference]:
    """Setting by setting, in the order of their names; `name` is Connect's own addition and left out."""
    keys = sorted((wanted.keys() | running.keys()) - {"name"})
    return [
        Difference(key, _shown(wanted, key, mask), _shown(running, key, mask))
        for key in keys
        if wanted.get(key) != running.get(key)
    ]


def _shown(config: Config, key: str, mask: Mask) -> str | None:
    return mask.value(key, config[key]) if key in config else None


def clashes(wanted: Mapping[str, Config], running: Mapping[str, Config]) -> list[str]:
    """One sentence for each slot, publication or topic prefix that two connectors would share.

    Connectors are given by name; one that is in both counts as wanted, since it will be replaced. With a shared
    publication the connector applied last rewrites it, and the other's rows silently stop.
    """
    return [clash for setting, scope in _UNIQUE.items() for clash in _clashes(setting, scope, dict(running), wanted)]


def _clashes(
    setting: str, scope: Collection[str], running: Mapping[str, Config], wanted: Mapping[str, Config]
) -> Iterable[str]:
    users: dict[tuple[str, ...], list[str]] = {}
    for name, config in ({**running, **wanted}).items():
        value = _setting(config, setting)
        if config.get("connector.class") == _POSTGRES and value:
            users.setdefault((value, *(_setting(config, key) for key in scope)), []).append(name)
    for (value, *_), names in users.items():
        if len(names) > 1 and not wanted.keys().isdisjoint(names):
            yield f"{setting} {value!r} is used by {' and '.join(sorted(names))}; each needs its own"


def _setting(config: Config, key: str) -> str:
    value = config.get(key, _DEFAULTS.get(key, ""))
    return "localhost" if key == "database.hostname" and value.lower() in _LOOPBACK else value


def removed_tables(wanted: Config, running: Config) -> tuple[str, ...]:
    """The entries of the running table.include.list that the wanted one no longer covers.

    A connector without the list captures every table, so a list that takes its place removes `every other table`.
    """
    kept, had = tables_of(wanted), tables_of(running)
    if not had and kept and running.get("connector.class") == _POSTGRES:
        return ("every other table",)
    return tuple(table for table in had if kept and not any(covers(entry, table) for entry in kept))


def covers(entry: str, table: str) -> bool:
    """Whether an entry of `tables_of`, a name or a regular expression, means this `schema.table`."""
    try:
        return entry.lower() == table.lower() or re.fullmatch(entry, table, re.IGNORECASE) is not None
    except re.error:
        return False


def tables_of(config: Config) -> tuple[str, ...]:
    """The `schema.table` entries of table.include.list, escaped dots made plain; an entry may be a regular expression.

    Empty means that the connector captures every table.
    """
    entries = (entry.strip() for entry in config.get("table.include.list", "").split(","))
    return tuple(entry.replace("\\.", ".") for entry in entries if entry)
