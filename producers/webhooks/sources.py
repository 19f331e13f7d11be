"""Sources of webhooks: a TOML file that ROWCALL_WEBHOOKS names, read once, with secrets from the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from consumer.errors import ConfigurationError
from consumer.settings import faults

DEFAULT_TOPIC: Final = "webhooks.received"
# header:NAME, or the path of a field.
_PLACE: Final = r"header:[A-Za-z0-9-]+|json:[^\s.]+(?:\.[^\s.]+)*"
_Name = Annotated[str, StringConstraints(pattern=r"^(?:[a-z0-9][a-z0-9_-]{0,63})$")]
_Header = Annotated[str, StringConstraints(pattern=r"^(?:[A-Za-z0-9-]{1,100})$")]


class Source(BaseModel):
    """One sender.

    Args:
        scheme: how its requests are signed: `standard` (Standard Webhooks), `github`, `stripe`, `slack`, `hmac` (any
            header with the body's HMAC) or `bearer` (a token in Authorization).
        secrets: names of environment variables, each with one secret; NAME_FILE works too. Two while a secret is
            rotated: a request signed with either is good.
        topic: where its events go.
        delivery: where the delivery ID stands: `header:NAME`, `json:field.field`, or `digest` for the body's SHA-256;
            empty for the scheme's own place.
        event_type: the same for the event type; empty for the scheme's own place.
        key: the same for the message key, by which events are kept in order; empty for the delivery ID.
        header, algorithm, encoding, prefix: of `hmac`: the header that holds the signature, what stands before it.
        timestamp_header: of `hmac`: a header with the seconds since 1970; then `<timestamp>.<body>` is what is signed.
        tolerance_seconds: how old or new a timestamp may be; `standard` has five minutes of its own.
        max_bytes: of a body.
        rate_per_second, burst: requests of this source; more get 429.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    scheme: Literal["standard", "github", "stripe", "slack", "hmac", "bearer"]
    secrets: Annotated[list[str], Field(min_length=1, max_length=5)]
    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = DEFAULT_TOPIC
    delivery: Annotated[str, StringConstraints(pattern=rf"^(?:{_PLACE}|digest|)$")] = ""
    event_type: Annotated[str, StringConstraints(pattern=rf"^(?:{_PLACE}|)$")] = ""
    key: Annotated[str, StringConstraints(pattern=rf"^(?:{_PLACE}|)$")] = ""
    header: _Header = "X-Signature"
    algorithm: Literal["sha256", "sha512", "sha1"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    timestamp_header: _Header | None = None
    tolerance_seconds: float = Field(300.0, gt=0)
    max_bytes: int = Field(1024 * 1024, gt=0, le=6 * 1024 * 1024)
    rate_per_second: float = Field(500.0, gt=0)
    burst: int = Field(1000, gt=0)

    @model_validator(mode="after")
    def _only_hmac_is_shaped(self) -> Source:
        given = {"header", "algorithm", "encoding", "prefix", "timestamp_header"} & self.model_fields_set
        if self.scheme != "hmac" and given:
            raise ValueError(f"{', '.join(sorted(given))} belong to the scheme hmac alone")
        if self.scheme == "standard" and "tolerance_seconds" in self.model_fields_set:
            raise ValueError("standard has a tolerance of its own, five minutes")
        return self


class Keyring:
    """A source's secrets in force; never printed."""

    def __init__(self, secrets: list[str]) -> None:
        self._secrets = tuple(secrets)

    def __repr__(self) -> str:
        return f"{len(self._secrets)} secrets"

    @property
    def texts(self) -> tuple[str, ...]:
        """Each secret as it was given."""
        return self._secrets


def load(path: Path, environment: Mapping[str, str] | None = None) -> list[tuple[Source, Keyring]]:
    """The sources of a TOML file, a table `[source.NAME]` each, with their secrets.

    Raises:
        ConfigurationError: the file cannot be read, a field is wrong, or a secret is missing or too short.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"ROWCALL_WEBHOOKS names {path}, which cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    sources = tables.pop("source", {})
    if tables or not isinstance(sources, dict) or not sources:
        raise ConfigurationError(f"{path}: write a table [source.NAME] for each sender, and nothing else")
    values = os.environ if environment is None else environment
    return [_loaded(path, name, table, values) for name, table in sources.items()]


def _loaded(path: Path, name: str, table: Any, environment: Mapping[str, str]) -> tuple[Source, Keyring]:
    try:
        source = Source.model_validate({"name": name, **table} if isinstance(table, dict) else table)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: source {name}: {faults(error, 'table', 'docs/webhooks.md')}") from None
    return source, Keyring([_secret(path, name, variable, environment) for variable in source.secrets])


def _secret(path: Path, source: str, variable: str, environment: Mapping[str, str]) -> str:
    text = environment.get(variable)
    file = environment.get(f"{variable}_FILE")
    if text is None and file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(f"{variable}_FILE names {file}, which cannot be read: {error.strerror}") from error
    where = f"{path}: source {source}: secrets names the environment variable {variable}"
    if not text:
        raise ConfigurationError(f"{where}, which is not set. Set it, or {variable}_FILE")
    if len(text) < 16:
        raise ConfigurationError(f"{where}, whose value is shorter than 16 characters and can be guessed")
    return text
