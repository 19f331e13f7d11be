"""What is recorded about each request, before it leaves and after it came back (M11's external call)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A request that is about to leave.

    Args:
        endpoint: URL without user, query and fragment.
        model: the model asked for.
        input_sha256: 32 bytes, of the exact body.
        input_bytes: length of that body.
        max_tokens: the most the answer may have.
        attempt: 1, 2, … within one question.
        idempotency_key: as sent.
    """

    endpoint: str
    model: str
    input_sha256: bytes
    input_bytes: int
    max_tokens: int
    attempt: int
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """What came of it. Absent parts are None: tokens an endpoint does not name are not 0.

    Args:
        status: HTTP status; None where no answer came.
        code: of the table in `codes`; None for a validated answer.
        duration_ms: from the first byte sent to the last byte read.
        model: the model named in the answer, which routers change.
        response_sha256: 32 bytes, of the whole body as received.
        response_text: its first 64 KiB, storable and without the key.
        validated: whether schema and rules hold; None where there was no answer to validate.
        reasons: why not, for people.
        pause_seconds: how long the endpoint asks everybody to wait (a 429, a Retry-After); None where it does not.
    """

    status: int | None
    code: str | None
    duration_ms: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    response_sha256: bytes | None = None
    response_text: str | None = None
    validated: bool | None = None
    reasons: tuple[str, ...] = ()
    pause_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A validated answer; `text` is its JSON object as the model wrote it, tokens are of the last request alone."""

    value: BaseModel
    text: str
    call_id: int
    requests: int
    model: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


OnSend = Callable[[CallStarted], Awaitable[int]]
OnDone = Callable[[int, CallFinished], Awaitable[None]]
