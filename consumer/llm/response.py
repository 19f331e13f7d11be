"""An HTTP answer → the model's text, or a `Failure`. Before it: the request; after it: `answer`, which validates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumer.http import Response
from consumer.llm import sse
from consumer.llm.error_body import ErrorBody, Failure, Limits, error_of, failure_of, load_json, read_error

# Reasons to end, in the words of the providers seen; anything else is a failure with a code, never a success.
_COMPLETE: Final = frozenset({"", "stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "eos"})
_CUT: Final = frozenset({"length", "max_tokens", "model_length"})
_FILTER: Final = frozenset({
    "content_filter", "safety", "prohibited_content", "blocklist", "recitation", "spii", "image_safety",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer holds. Tokens are None where the endpoint names none, never 0."""

    text: str = ""
    failure: Failure | None = None
    model: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_response(response: Response, function: str, limits: Limits) -> Reading:
    """Read an answer; `function` is the name a tool call must have to be taken for one."""
    if not response.ok:
        return Reading(failure=failure_of(response.status, response.headers, read_error(response.content), limits))
    document = _document(response)
    if isinstance(document, Failure):
        return Reading(failure=document)
    if not isinstance(document, Mapping):
        return Reading(failure=_bad_body(response, limits))
    if (error := _error_inside(document)) is not None:
        return Reading(failure=_inner(error, response, limits), **_facts(document, {}))
    choice = _choice(document)
    if choice is None:
        return Reading(failure=_without_choice(document), **_facts(document, {}))
    facts = _facts(document, choice)
    outcome = _outcome(choice, function, response, limits)
    return Reading(failure=outcome, **facts) if isinstance(outcome, Failure) else Reading(outcome, **facts)


def _document(response: Response) -> Any:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return load_json(response.content)
    document = sse.assemble(response.content)
    return Failure("model_transport", "the stream ended before the answer") if document is None else document


def _bad_body(response: Response, limits: Limits) -> Failure:
    kind = response.headers.get("content-type", "no content type")
    message = f"HTTP {response.status} with a body that is no chat completion ({kind}, {len(response.content)} bytes)"
    return Failure("model_bad_body", message, next_code=None if limits.endpoint_proven else "model_wrong_endpoint")


def _error_inside(document: Mapping[str, Any]) -> ErrorBody | None:
    if document.get("error") or (document.get("object") == "error" and not document.get("choices")):
        return error_of(document)
    choice = _choice(document)
    if choice is not None and choice.get("error"):
        return error_of(choice)
    if choice is not None and str(choice.get("finish_reason")).lower() == "error":
        return ErrorBody(message="finish_reason is error")
    return None


def _inner(error: ErrorBody, response: Response, limits: Limits) -> Failure:
    """An error inside a 200: its own status decides, and one that may pass is the upstream's."""
    if error.status is None or error.status >= 500 or error.status in (408, 409):
        found = failure_of(502, response.headers, error, limits)
        if found.code.startswith("model_http_"):
            return Failure("model_upstream_error", f"an error inside a 200: {error.message}", found.wait)
        return found
    return failure_of(error.status, response.headers, error, limits)


def _choice(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return None


def _without_choice(document: Mapping[str, Any]) -> Failure:
    feedback = document.get("prompt_feedback") or document.get("promptFeedback") or {}
    if isinstance(feedback, Mapping) and (feedback.get("block_reason") or feedback.get("blockReason")):
        return Failure("model_content_filter", "the provider's filter blocked the question")
    return Failure("model_no_choices", "a 200 without choices")


def _facts(document: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    usage = document.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    model, finish = document.get("model"), choice.get("finish_reason")
    return {
        "model": model if isinstance(model, str) else None,
        "finish_reason": finish if isinstance(finish, str) else None,
        "prompt_tokens": _count(usage.get("prompt_tokens")),
        "completion_tokens": _count(usage.get("completion_tokens")),
    }


def _count(value: object) -> int | None:
    # int8 is what the record can hold; a count beyond it is as good as none.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _outcome(choice: Mapping[str, Any], function: str, response: Response, limits: Limits) -> str | Failure:
    finish = str(choice.get("finish_reason") or "").lower()
    message = choice.get("message")
    if finish in _FILTER:
        return Failure("model_content_filter", f"finish_reason is {finish}")
    if finish in _CUT:
        return Failure("model_truncated", "the answer was cut at max_tokens", raw=_partial(message))
    if not isinstance(message, Mapping) or ("content" not in message and not finish and len(message) <= 1):
        return Failure("model_no_choices", "a choice without a message")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return Failure("model_refusal", f"the model declined: {refusal[:300]}", raw=refusal)
    if finish not in _COMPLETE:
        return Failure("model_finish_reason", f"finish_reason is {finish[:60]!r}", raw=_partial(message))
    return _text(message, function)


def _text(message: Mapping[str, Any], function: str) -> str | Failure:
    text = _content(message.get("content"))
    if text.strip():
        return text
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return _tool_call(calls, function)
    thought = any(message.get(name) for name in ("reasoning_content", "reasoning"))
    reason = "the answer holds only reasoning and no text" if thought else "the answer holds no text"
    return Failure("model_empty_content", reason, reasons=(reason,))


def _content(content: object) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping) and part.get("type") in ("text", "output_text")]
        return "".join(str(part.get("text") or "") for part in parts)
    return content if isinstance(content, str) else ""


def _tool_call(calls: list[Any], function: str) -> str | Failure:
    call = calls[0].get("function") if isinstance(calls[0], Mapping) else None
    if len(calls) == 1 and isinstance(call, Mapping) and call.get("name") == function:
        arguments = call.get("arguments")
        return arguments if isinstance(arguments, str) else json.dumps(arguments)
    reason = f"a tool call other than one of {function}; the answer belongs in the message's content"
    return Failure("model_invalid_json", reason, raw=json.dumps(calls), reasons=(reason,))


def _partial(message: object) -> str:
    return _content(message.get("content")) if isinstance(message, Mapping) else ""
