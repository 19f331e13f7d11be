"""The ways out of the watchdog's alerts: webhook, email, command and topic, as the file ROWCALL_WATCHDOG declares them.

Before it, the watchdog has recorded a flip; after it, people and agents know. Each channel sends one alert at a time
and raises where it could not; trying again is its caller's. `ping` is the switch outside that rings when nobody calls.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from consumer.errors import ConfigurationError
from consumer.settings import Settings, plain, variable
from consumer.watchdog.alert import Alert, Channel
from consumer.watchdog.channels import request
from consumer.watchdog.channels.command import Command
from consumer.watchdog.channels.declared import (
    NAME,
    AnyChannel,
    CommandChannel,
    Declared,
    EmailChannel,
    TopicChannel,
    WebhookChannel,
)
from consumer.watchdog.channels.email import Email, Server
from consumer.watchdog.channels.ping import Ping
from consumer.watchdog.channels.webhook import Webhook

__all__ = ["Ping", "Route", "TopicFactory", "load", "ping"]

TopicFactory = Callable[[str, str], Channel]
"""Makes a topic's channel from the channel's name and the topic's."""

_TABLES: Final[TypeAdapter[Any]] = TypeAdapter(AnyChannel)
_RECOVERED: Final = frozenset({"up", "recovered"})


@dataclass(slots=True)
class Route:
    """A channel and what it is told of; itself a channel."""

    name: str
    type: str
    declared: Declared
    channel: Channel

    def wants(self, alert: Alert) -> bool:
        """Whether the file lets this alert through."""
        told = self.declared
        if told.kinds and alert.kind not in told.kinds:
            return False
        if alert.reminder and not told.reminders:
            return False
        if not told.only:
            return True
        state = "recovered" if alert.state in _RECOVERED else alert.state
        return state in told.only or (state == "recovered" and alert.previous_state in told.only)

    def send(self, alert: Alert) -> None:
        """Deliver it; see `Channel.send`. What is not wanted was never written down for it."""
        self.channel.send(alert)


def load(
    path: Path, settings: Settings, *, topic: TopicFactory, environment: Mapping[str, str] | None = None
) -> list[Route]:
    """The channels of a TOML file, a table `[channel.NAME]` each, with their secrets from the environment.

    Raises:
        ConfigurationError: the file cannot be read, a key is wrong, or a secret is missing; names file, table and key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"ROWCALL_WATCHDOG names {path}, which cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    found = tables.pop("channel", {})
    if tables or not isinstance(found, dict) or not found:
        raise ConfigurationError(f"{path}: write a table [channel.NAME] for each channel, and nothing else")
    values = os.environ if environment is None else environment
    return [_route(path, name, table, values, topic) for name, table in found.items()]


def ping(settings: Settings) -> Ping | None:
    """The switch outside, its thread started; None where no URL is set.

    Raises:
        ConfigurationError: ROWCALL_WATCHDOG_PING_URL is no http or https URL.
    """
    url = settings.watchdog_ping_url
    if url is None or not url.get_secret_value():
        return None
    if wrong := request.usable(url.get_secret_value()):
        raise ConfigurationError(f"ROWCALL_WATCHDOG_PING_URL: {wrong}")
    return Ping(url.get_secret_value(), every_seconds=settings.watchdog_ping_seconds)


def _route(path: Path, name: str, table: Any, environment: Mapping[str, str], topic: TopicFactory) -> Route:
    where = f"{path}: channel {name}"
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{where}: a name has small letters, digits, - and _, up to 64")
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: write a table [channel.{name}]; {name} is none")
    try:
        declared: AnyChannel = _TABLES.validate_python(table)
    except ValidationError as error:
        wrong = "; ".join(_fault(item["loc"], item["msg"]) for item in error.errors(include_input=False))
        raise ConfigurationError(f"{where}: {wrong}") from None

    def secret(key: str, variable_name: str) -> str:
        return _secret(f"{where}: {key}", variable_name, environment)

    match declared:
        case WebhookChannel():
            channel: Channel = _webhook(name, declared, secret)
        case EmailChannel():
            channel = _email(name, declared, secret)
        case CommandChannel():
            given = {item: secret("environment", item) for item in declared.environment}
            channel = Command(name, declared.command, seconds=declared.timeout_seconds, environment=given)
        case TopicChannel():
            channel = topic(name, declared.topic)
    return Route(name, declared.type, declared, channel)


def _webhook(name: str, declared: WebhookChannel, secret: Callable[[str, str], str]) -> Webhook:
    url = declared.url or secret("url_from", declared.url_from or "")
    if wrong := request.usable(url):
        raise ConfigurationError(f"channel {name}: the URL in {declared.url_from}: {wrong}")
    return Webhook(name, url, secret("secret", declared.secret), seconds=declared.timeout_seconds)


def _email(name: str, declared: EmailChannel, secret: Callable[[str, str], str]) -> Email:
    password = secret("password", declared.password) if declared.password else ""
    if declared.ca_file and not Path(declared.ca_file).is_file():
        raise ConfigurationError(f"channel {name}: ca_file names {declared.ca_file}, which is no file")
    server = Server(declared.host, declared.port_in_force, declared.security, declared.user, password, declared.ca_file)
    return Email(name, server, declared.sender, declared.to, seconds=declared.timeout_seconds)


def _secret(where: str, name: str, environment: Mapping[str, str]) -> str:
    text = variable(environment, name)
    if not text:
        raise ConfigurationError(
            f"{where} names the environment variable {name}, which is not set. Set it, or {name}_FILE"
        )
    return text


def _fault(place: tuple[int | str, ...], said: str) -> str:
    """Key and fault; pydantic puts the kind of channel first."""
    if "union_tag" in said or "tag" in said.split("'", 1)[0]:
        return 'type: write "webhook", "email", "command" or "topic"'
    key = ".".join(map(str, place[1:]))
    text = plain(said, "docs/watchdog-channels.md")
    return f"{key}: {text}" if key else text
