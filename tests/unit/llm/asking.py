"""One question to the scripted endpoint, with everything that was recorded about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from consumer.errors import ModelError
from consumer.llm import Answer, CallFinished, CallStarted, ModelClient, ModelRequest
from consumer.llm.breaker import Breaker
from consumer.settings import Settings
from tests.scripted_model import Call, Endpoint, Reply, serve

KEY = "sk-the-secret-key-0123456789"


class Triage(BaseModel):
    """The answer asked for in these tests; its config is as lax as an author can make it."""

    model_config = {"extra": "ignore", "strict": False}

    priority: Literal["low", "high"]
    note: str
    score: float = 0.0


OPENED: list[ModelClient] = []
GOOD = {"priority": "high", "note": "call back", "score": 0.5}


@dataclass
class Record:
    """What `on_send` and `on_done` were given."""

    started: list[CallStarted] = field(default_factory=list)
    finished: dict[int, CallFinished] = field(default_factory=dict)

    async def on_send(self, call: CallStarted) -> int:
        """Note the call; its ID is its place."""
        self.started.append(call)
        return len(self.started)

    async def on_done(self, call_id: int, call: CallFinished) -> None:
        """Note the end of a call that was started and not yet ended."""
        assert 1 <= call_id <= len(self.started)
        assert call_id not in self.finished
        self.finished[call_id] = call

    @property
    def codes(self) -> list[str | None]:
        """The code of each finished call, in order."""
        return [self.finished[call_id].code for call_id in sorted(self.finished)]


@dataclass
class Outcome:
    """An answer or an error, what was recorded, and what reached the endpoint."""

    answer: Answer | None
    error: ModelError | None
    record: Record
    calls: list[Call]

    @property
    def last(self) -> CallFinished:
        """The last finished call."""
        return self.record.finished[max(self.record.finished)]


def settings_for(endpoint: Endpoint | str, **changes: Any) -> Settings:
    """Settings that point at the endpoint, with a key."""
    url = endpoint if isinstance(endpoint, str) else endpoint.url
    return Settings(**{"model_base_url": url, "model_api_key": SecretStr(KEY), "model_name": "m-1", **changes})


def client_for(endpoint: Endpoint | str, breaker: Breaker | None = None, **changes: Any) -> ModelClient:
    """A client that does not make a test wait; closed when the test ends."""
    client = ModelClient(settings_for(endpoint, **changes), backoff_seconds=0.001, breaker=breaker)
    OPENED.append(client)
    return client


def request_for(
    answer: type[BaseModel] = Triage,
    rules: Callable[[Any], list[str]] | None = None,
    data: Any = None,
    seconds: float | None = 5.0,
) -> ModelRequest:
    """A question."""
    return ModelRequest("Triage the order.", {"id": 7} if data is None else data, answer, "run-7:ask", seconds, rules)


async def put(client: ModelClient, request: ModelRequest, endpoint: Endpoint) -> Outcome:
    """Ask with a client of one's own."""
    record, before = Record(), len(endpoint.calls)
    answer, error = None, None
    try:
        answer = await client.ask(request, on_send=record.on_send, on_done=record.on_done)
    except ModelError as raised:
        error = raised
    return Outcome(answer, error, record, endpoint.calls[before:])


async def ask(*replies: Reply, request: ModelRequest | None = None, **changes: Any) -> Outcome:
    """Ask an endpoint that gives `replies`."""
    with serve(*replies) as endpoint:
        return await put(client_for(endpoint, **changes), request or request_for(), endpoint)


def completion(message: Any, finish_reason: Any = "stop", **more: Any) -> Reply:
    """A chat completion with this message, as it is."""
    return Reply(body={"choices": [{"finish_reason": finish_reason, "message": message}], **more})


def good(**more: Any) -> Reply:
    """A valid answer."""
    return Reply(answer=GOOD, **more)


def raw(text: str, content_type: str = "application/json", status: int = 200) -> Reply:
    """A body as it is."""
    return Reply(body=text, status=status, headers={"content-type": content_type})


def error(status: int, body: Any = None, **headers: str) -> Reply:
    """An error answer; underscores in header names stand for hyphens."""
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body={"error": {"message": "no"}} if body is None else body, headers=names)


def text_of(value: Any) -> str:
    """JSON text."""
    return json.dumps(value)
