"""Channels as a file declares them: a table `[channel.NAME]` each; wrong ones stop the start.

What each kind of channel needs is one class here; `load` reads the file, finds the secrets and makes the channels.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from consumer.watchdog.channels import request

State = Literal["late", "overdue", "failed", "stuck", "no_output", "gap", "recovered"]
Kind = Literal[
    "agent", "run", "result", "output", "queue", "fleet", "process", "schedule", "connector", "observer", "watchdog"
]
_Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,99}$")]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
# Nothing that could end a header or an SMTP command.
_Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}$")]
_Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:_-]{1,255}$")]
LONGEST_SECONDS: Final = 100.0
"""What a channel may take for one alert: below the time after which another watchdog sends it."""
_PORTS: Final = {"starttls": 587, "tls": 465, "plain": 25}


class Declared(BaseModel):
    """What every channel has.

    Args:
        only: states it tells of; a recovery is told where the state before it is one of them. Empty for all.
        kinds: kinds of subjects it tells of; empty for all.
        reminders: whether it repeats what goes on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    only: frozenset[State] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    reminders: bool = True


class WebhookChannel(Declared):
    """A webhook. `secret` and `url_from` are names of environment variables; NAME_FILE works too."""

    type: Literal["webhook"]
    url: str = ""
    url_from: _Variable | None = None
    secret: _Variable
    timeout_seconds: float = Field(10.0, gt=0, le=LONGEST_SECONDS)

    @model_validator(mode="after")
    def _one_address(self) -> WebhookChannel:
        if bool(self.url) == bool(self.url_from):
            raise ValueError("give url, or url_from with the name of an environment variable where the URL is a secret")
        if self.url and (wrong := request.usable(self.url)):
            raise ValueError(f"url: {wrong}")
        return self


class EmailChannel(Declared):
    """Mails. `password` is the name of an environment variable; NAME_FILE works too."""

    type: Literal["email"]
    host: _Host
    port: int | None = Field(None, gt=0, le=65535)
    security: Literal["starttls", "tls", "plain"] = "starttls"
    user: str = ""
    password: _Variable | None = None
    sender: _Address
    to: Annotated[list[_Address], Field(min_length=1, max_length=50)]
    ca_file: str = ""
    timeout_seconds: float = Field(30.0, gt=0, le=LONGEST_SECONDS)

    @property
    def port_in_force(self) -> int:
        """The one given, or the usual one of `security`."""
        return self.port or _PORTS[self.security]

    @model_validator(mode="after")
    def _password_stays_secret(self) -> EmailChannel:
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password belong together; password names an environment variable")
        if self.password and self.security == "plain":
            raise ValueError('a password would cross the network readable: set security to "starttls" or "tls"')
        return self


class CommandChannel(Declared):
    """A command: a list, the program first. `environment` names variables that it may see."""

    type: Literal["command"]
    command: Annotated[list[_Text], Field(min_length=1, max_length=100)]
    environment: Annotated[list[_Variable], Field(max_length=50)] = []
    timeout_seconds: float = Field(30.0, gt=0, le=LONGEST_SECONDS)

    @field_validator("command")
    @classmethod
    def _there(cls, value: list[str]) -> list[str]:
        program = value[0]
        if "/" in program and not os.path.isabs(program):
            raise ValueError(f"{program} must be an absolute path or a name that PATH finds")
        if shutil.which(program) is None:
            raise ValueError(f"{program} is not there or cannot be run; no shell is used, so give the program alone "
                             "and its arguments as further items")  # fmt: skip
        return value


class TopicChannel(Declared):
    """A topic."""

    type: Literal["topic"]
    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = "agents.overdue"


AnyChannel = Annotated[
    WebhookChannel | EmailChannel | CommandChannel | TopicChannel,
    Field(discriminator="type"),
]
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
