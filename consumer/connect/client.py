"""Kafka Connect's REST API, as far as connectors need it. Statuses become the error tree here and nowhere else.

Connect refuses while its workers rebalance, which a created or deleted connector causes: that is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import orjson

from consumer.connect.config import Config, Mask
from consumer.errors import ConfigurationError, OperatorError, Outage
from consumer.http import Response, SyncHttp, open_sync, without_secrets

REBALANCE_TRIES: Final = 40
REBALANCE_PAUSE_SECONDS: Final = 0.5
DELETE_SECONDS: Final = 30.0
DELETE_PAUSE_SECONDS: Final = 0.1
# Validation opens connections to the database from Connect, which may take Debezium's 10 s to fail.
READ_SECONDS: Final = 60.0
FAILED: Final = "FAILED"
TRACE_CHARACTERS: Final = 2000


@dataclass(frozen=True)
class Problem:
    """What Connect says about one setting, in its own words."""

    key: str
    messages: tuple[str, ...]


@dataclass(frozen=True)
class TaskStatus:
    """A task; `reason` is the first line of its stack trace, empty while it runs."""

    id: int
    state: str
    worker: str
    reason: str


@dataclass(frozen=True)
class ConnectorStatus:
    """A connector as Connect reports it: RUNNING, PAUSED, STOPPED, UNASSIGNED, RESTARTING or FAILED."""

    name: str
    state: str
    worker: str
    reason: str
    tasks: tuple[TaskStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether the connector runs with at least one task and all of them run."""
        return self.state == "RUNNING" and bool(self.tasks) and all(task.state == "RUNNING" for task in self.tasks)

    @property
    def failed(self) -> bool:
        """Whether the connector or one of its tasks has failed; Connect never restarts those by itself."""
        return FAILED in (self.state, *(task.state for task in self.tasks))


class ConnectClient:
    """Connect's REST API at CONNECT_URL. Every method raises Outage(dependency="connect") when Connect is away."""

    def __init__(self, url: str, http: SyncHttp | None = None) -> None:
        self._base = url.rstrip("/")
        self._shown = without_secrets(self._base)
        self._http = open_sync("connect", connect_seconds=5.0, read_seconds=READ_SECONDS) if http is None else http

    def names(self) -> list[str]:
        """The connectors there are, by name."""
        return sorted(self._json("GET", "/connectors"))

    def configs(self) -> dict[str, dict[str, str]]:
        """Name → running configuration, secrets in clear text."""
        every = self._json("GET", "/connectors?expand=info")
        return {name: dict(entry["info"]["config"]) for name, entry in every.items()}

    def config(self, name: str) -> dict[str, str] | None:
        """The running configuration, secrets in clear text; None when there is no such connector."""
        answer = self._send("GET", f"{_path(name)}/config")
        return None if answer.status == 404 else dict(self._body(answer))

    def validate(self, name: str, config: Config) -> list[Problem]:
        """Let Connect and the connector's own code check a configuration.

        Raises:
            ConfigurationError: when the worker has no such connector class.
        """
        plugin = config.get("connector.class", "")
        if not plugin:
            return [Problem("connector.class", ("is missing",))]
        body = orjson.dumps({**config, "name": name})
        answer = self._send("PUT", f"/connector-plugins/{quote(plugin, safe='')}/config/validate", body)
        if not answer.ok:
            raise ConfigurationError(f"connector {name}: Connect cannot validate it: {_message(answer)}")
        # An entry without a value is a setting of a transform that Connect knows only by its definition.
        values = (entry["value"] for entry in self._body(answer)["configs"] if entry["value"])
        return [Problem(value["name"], tuple(value["errors"])) for value in values if value["errors"]]

    def put(self, name: str, config: Config) -> None:
        """Create the connector or replace its configuration; the same again changes nothing.

        Raises:
            ConfigurationError: with Connect's message.
        """
        answer = self._send("PUT", f"{_path(name)}/config", orjson.dumps(dict(config)))
        if not answer.ok:
            raise ConfigurationError(f"connector {name}: Connect refuses it: {_message(answer)}")

    def status(self, name: str, mask: Mask | None = None) -> ConnectorStatus | None:
        """How the connector and its tasks do; None when there is no such connector."""
        answer = self._send("GET", f"{_path(name)}/status")
        if answer.status == 404:
            return None
        body, hide = self._body(answer), mask or Mask()
        connector = body["connector"]
        tasks = tuple(
            TaskStatus(task["id"], task["state"], task["worker_id"], _reason(task, hide)) for task in body["tasks"]
        )
        return ConnectorStatus(name, connector["state"], connector["worker_id"], _reason(connector, hide), tasks)

    def restart_failed(self, name: str) -> None:
        """Restart the connector and those of its tasks that have failed; what runs is left alone.

        Raises:
            OperatorError: when there is no such connector.
        """
        answer = self._send("POST", f"{_path(name)}/restart?includeTasks=true&onlyFailed=true")
        self._expect(answer, name, "restart")

    def delete(self, name: str) -> None:
        """Remove the connector and wait until it is gone. Its slot and publication stay in the database.

        Raises:
            OperatorError: when there is no such connector.
            Outage: when Connect still knows it after DELETE_SECONDS.
        """
        self._expect(self._send("DELETE", _path(name)), name, "delete")
        # Connect answers once the removal is written down; its tasks stop, and the slot is let go, a moment later.
        until = time.monotonic() + DELETE_SECONDS
        while self.status(name) is not None:
            if time.monotonic() > until:
                raise Outage(f"Connect has not stopped {name} yet", dependency="connect", code="connect_slow")
            time.sleep(DELETE_PAUSE_SECONDS)

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _expect(self, answer: Response, name: str, what: str) -> None:
        if answer.status == 404:
            known = ", ".join(self.names()) or "none"
            raise OperatorError(f"there is no connector {name} at {self._shown}; it knows: {known}")
        if not answer.ok:
            raise OperatorError(f"Connect did not {what} {name}: {_message(answer)}")

    def _json(self, method: str, path: str) -> Any:
        answer = self._send(method, path)
        if not answer.ok:
            raise Outage(f"Connect at {self._shown}: {_message(answer)}", dependency="connect", code="connect_answer")
        return self._body(answer)

    def _send(self, method: str, path: str, body: bytes | None = None) -> Response:
        headers = {"content-type": "application/json"} if body is not None else {}
        answer = self._http.request(method, self._base + path, content=body, headers=headers)
        for _ in range(REBALANCE_TRIES):
            # A worker that has just started knows its own routes before it knows the connectors: 404 is not retried.
            if not rebalancing(answer):
                break
            time.sleep(REBALANCE_PAUSE_SECONDS)
            answer = self._http.request(method, self._base + path, content=body, headers=headers)
        if (outage := outage_of(answer, self._shown)) is not None:
            raise outage
        return answer

    def _body(self, answer: Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            message = f"what answers at {self._shown} is not Kafka Connect"
            raise Outage(message, dependency="connect", code="connect_answer") from None


def describe(problems: Sequence[Problem]) -> str:
    """Problems as one text, a line each."""
    return "\n".join(f"  {problem.key}: {'; '.join(problem.messages)}" for problem in problems)


def _path(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def rebalancing(answer: Response) -> bool:
    """Whether Connect asks to try again: 409, or a 500 where it noticed the rebalance only inside the request."""
    return answer.status == 409 or (answer.status == 500 and "rebalance is expected" in _message(answer))


def outage_of(answer: Response, shown: str) -> Outage | None:
    """The outage an answer stands for, if it does; a class that Connect does not have is a 500 and none."""
    message = _message(answer)
    if answer.status < 500 and answer.status not in (401, 403, 408, 409, 429):
        return None
    if answer.status == 500 and "Failed to find any class" in message:
        return None
    text = f"Connect at {shown} answered {answer.status}: {message}"
    return Outage(text, dependency="connect", code=f"connect_{answer.status}")


def _message(answer: Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return answer.content[:TRACE_CHARACTERS].decode("utf-8", "replace")
    return str(body.get("message", body)) if isinstance(body, dict) else str(body)[:TRACE_CHARACTERS]


def _reason(part: Mapping[str, Any], mask: Mask) -> str:
    lines = str(part.get("trace") or "").strip().splitlines()
    if not lines:
        return ""
    # Debezium wraps the cause; the wrapper says only that the producer has failed.
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    text = f"{lines[0]} ({causes[-1]})" if causes else lines[0]
    return mask.text(text)[:TRACE_CHARACTERS]
