"""The one table of model error codes: code → what is done about it → meaning. README prints it.

A code has exactly one decision. `model_http_N` stands for every status N; `decision_of` knows that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumer.errors import ModelError, ModelFatal, ModelInvalid, ModelRetryable, ModelUnavailable


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the table."""

    name: str
    error: type[ModelError]
    meaning: str


HTTP_FAMILY: Final = "model_http_N"

CODES: Final = (
    Code(HTTP_FAMILY, ModelRetryable, "the endpoint answered with status N (408, 409, 5xx, or `x-should-retry: true`)"),
    Code("model_timeout", ModelRetryable, "no whole answer within the deadline, keep-alives included"),
    Code("model_transport", ModelRetryable, "no connection, or it broke before the answer was whole"),
    Code("model_rate_limited", ModelRetryable, "429 with a wait not above MODEL_MAX_RETRY_AFTER_SECONDS"),
    Code("model_overloaded", ModelRetryable, "529, or an error of type overloaded"),
    Code("model_upstream_error", ModelRetryable, "an error object inside a 200, or finish_reason `error`"),
    Code("model_no_choices", ModelRetryable, "a 200 without a choice, or a choice without a message"),
    Code("model_bad_body", ModelRetryable, "a 200 whose body is not a chat completion"),
    Code("model_circuit_open", ModelRetryable, "not sent: the endpoint failed again and again and gets a pause"),
    Code("model_empty_content", ModelInvalid, "the answer holds no text, or only reasoning"),
    Code("model_invalid_json", ModelInvalid, "the answer is not exactly one JSON object"),
    Code("model_schema", ModelInvalid, "the JSON breaks the schema (type, extra or double key, NaN, NUL, depth)"),
    Code("model_rules", ModelInvalid, "the answer breaks a business rule of the agent"),
    Code("model_truncated", ModelFatal, "cut at max_tokens, also after it was doubled once"),
    Code("model_content_filter", ModelFatal, "the provider's filter refused question or answer"),
    Code("model_refusal", ModelFatal, "the model declined to answer"),
    Code("model_finish_reason", ModelFatal, "the answer ended for a reason this version does not know"),
    Code("model_input_too_long", ModelFatal, "413, or the context window is too small for this input"),
    Code("model_request_refused", ModelFatal, "400 or 422 for this input, while others of its shape were accepted"),
    Code("model_config", ModelUnavailable, "key, model name, address or request shape refused (3xx, other 4xx)"),
    Code("model_quota", ModelUnavailable, "402, a spent quota, or a 429 with a longer wait than allowed"),
    Code("model_format_refused", ModelUnavailable, "a parameter is not supported; `auto` goes on with its next form"),
    Code("model_wrong_endpoint", ModelUnavailable, "never a chat completion from this address, twice in a row"),
)  # fmt: skip

_BY_NAME: Final = {code.name: code for code in CODES}
_HTTP_PREFIX: Final = "model_http_"


def decision_of(code: str) -> type[ModelError]:
    """The error class of `code`.

    Raises:
        KeyError: when the table has no such code.
    """
    if code.startswith(_HTTP_PREFIX) and code.removeprefix(_HTTP_PREFIX).isdigit():
        code = HTTP_FAMILY
    return _BY_NAME[code].error


def http(status: int) -> str:
    """The code of a status in the family `model_http_N`."""
    return f"{_HTTP_PREFIX}{status}"
