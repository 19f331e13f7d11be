"""A status or an error object → a `Failure` with its code. Reads every shape of error body seen in the wild.

`{"error": {…}}`, `{"error": "text"}`, flat `{"object": "error", "message": …}`, `{"detail": …}`, HTML and nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from consumer.errors import ModelRetryable
from consumer.llm import codes
from consumer.llm.retry_after import asked_wait, reset_wait, should_retry, worded_wait

# Characters of an endpoint's own words in a message.
_WORDS: Final = 300
_QUOTA: Final = frozenset({
    "insufficient_quota", "quota_exceeded", "billing_hard_limit_reached", "billing_not_active",
    "insufficient_credits", "insufficient_balance", "credit_balance_too_low",
})  # fmt: skip
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})
_FILTERED: Final = re.compile(r"content.?(?:filter|policy|management)|flagged|moderation", re.IGNORECASE)
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "string_above_max_length", "exceed_context_size_error"})
_TOO_LONG: Final = re.compile(r"context (?:length|window|size)|prompt is too long|input is too long", re.IGNORECASE)
_UNPARSED: Final = re.compile(r"\bpars(?:e|ing)\b.{0,80}(?:tool|argument|json|output|grammar)", re.IGNORECASE)
# What an error object names instead of a status.
_NAMED_STATUSES: Final = {
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "invalid_api_key": 401, "authentication_error": 401,
    "permission_error": 403, "model_not_found": 404, "not_found_error": 404, "invalid_request_error": 400,
} | dict.fromkeys(_FILTER_CODES | _TOO_LONG_CODES, 400)  # fmt: skip
_SHAPE_STATUSES: Final = frozenset({400, 422})
_REPEATABLE: Final = frozenset({408, 409})


@dataclass(frozen=True, slots=True)
class Limits:
    """What decides between two readings of a failure.

    `max_wait` in seconds: a longer Retry-After is a spent quota. `shape_accepted`: a request of this shape was answered
    before, so a 400 is this input's fault. `endpoint_proven`: this address has answered as a model before.
    """

    max_wait: float
    shape_accepted: bool = False
    endpoint_proven: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no answer.

    `wait` in seconds as the endpoint wishes; `repeatable` False forbids a repeat inside the call; `next_code` is the
    code of the same failure when it comes a second time; `raw` is the model's text where there is one.
    """

    code: str
    message: str
    wait: float | None = None
    repeatable: bool = True
    next_code: str | None = None
    raw: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error body says; absent parts are empty."""

    message: str = ""
    code: str = ""
    kind: str = ""
    parameter: str = ""
    status: int | None = None
    generation: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Code and type, lower case."""
        return frozenset({self.code.lower(), self.kind.lower()})


def load_json(content: bytes) -> Any:
    """The body as JSON, or None where it is not; a leading BOM and white space are allowed."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def read_error(content: bytes) -> ErrorBody:
    """What the body of an error answer says; its own words where it is not JSON."""
    document = load_json(content)
    if isinstance(document, Mapping):
        return error_of(document)
    return ErrorBody(message=_words(content.decode("utf-8", "replace")))


def error_of(document: Mapping[str, Any]) -> ErrorBody:
    """The error inside a JSON object, whichever shape it has."""
    error = document.get("error", document)
    if not isinstance(error, Mapping):
        return ErrorBody(message=_words(error))
    message = error.get("message") or error.get("detail") or error.get("msg") or ""
    code = error.get("code")
    kind = error.get("type")
    named = [_NAMED_STATUSES.get(str(name).lower()) for name in (code, kind)]
    status = next((value for value in (code, error.get("status"), *named) if _is_status(value)), None)
    return ErrorBody(
        message=_words(message if isinstance(message, str) else json.dumps(message)),
        code=str(code or ""),
        kind=str(kind or ""),
        parameter=str(error.get("param") or ""),
        status=None if status is None else int(status),
        generation=str(error.get("failed_generation") or ""),
    )


def failure_of(status: int, headers: Mapping[str, str], error: ErrorBody, limits: Limits) -> Failure:
    """The failure that `status` (not 2xx) with this body is."""
    now = time.time()
    wait = asked_wait(headers, now) or worded_wait(error.message)
    failure = _by_status(status, error, limits, wait)
    if failure.code == "model_rate_limited" and wait is None:
        reset = reset_wait(headers, now)
        failure = replace(failure, wait=None if reset is None else min(reset, limits.max_wait))
    return _overridden(failure, status, should_retry(headers))


def _by_status(status: int, error: ErrorBody, limits: Limits, wait: float | None) -> Failure:
    message = f"HTTP {status}: {error.message or 'no message'}"
    if status == 402 or error.names & _QUOTA:
        return Failure("model_quota", message)
    if status == 429:
        spent = wait is not None and wait > limits.max_wait
        return Failure("model_quota" if spent else "model_rate_limited", message, wait)
    if status == 529 or (status >= 500 and any(name.startswith("overloaded") for name in error.names)):
        return Failure("model_overloaded", message, wait)
    if status >= 500:
        unparsed = "model_invalid_json" if _UNPARSED.search(error.message) else None
        return Failure(codes.http(status), message, wait, next_code=unparsed, reasons=(message,))
    if status in _REPEATABLE:
        return Failure(codes.http(status), message, wait)
    return _refused(status, error, limits, message)


def _refused(status: int, error: ErrorBody, limits: Limits, message: str) -> Failure:
    if "json_validate_failed" in error.names or error.generation:
        return Failure("model_invalid_json", message, raw=error.generation, reasons=(error.message,))
    if status in (400, 403, 422) and (error.names & _FILTER_CODES or _FILTERED.search(error.message)):
        return Failure("model_content_filter", message)
    if status == 413 or error.names & _TOO_LONG_CODES or (status == 400 and _TOO_LONG.search(error.message)):
        return Failure("model_input_too_long", message)
    if status in _SHAPE_STATUSES and limits.shape_accepted:
        return Failure("model_request_refused", message)
    return Failure("model_config", message)


def _overridden(failure: Failure, status: int, wish: bool | None) -> Failure:
    retryable = issubclass(codes.decision_of(failure.code), ModelRetryable)
    if wish is False and retryable:
        return replace(failure, repeatable=False)
    if wish is True and not retryable and failure.code in ("model_config", "model_request_refused"):
        return replace(failure, code=codes.http(status))
    return failure


def _is_status(value: object) -> bool:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return text.isdigit() and 400 <= int(text[:4]) <= 599


def _words(value: object) -> str:
    return " ".join(str(value)[: 10 * _WORDS].split())[:_WORDS]
