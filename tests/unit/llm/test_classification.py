"""Every response seen in the wild gets one code, one class, and one number of requests."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any

import pytest

from consumer.errors import ModelError, ModelFatal, ModelInvalid, ModelRetryable, ModelUnavailable
from consumer.llm import decision_of
from tests.scripted_model import Reply
from tests.unit.llm.asking import GOOD, Triage, ask, completion, error, good, raw, text_of

SSE = "text/event-stream"


@dataclass
class Case:
    """`replies` are met with `code` after `requests` requests (retries are 1); `code` None means a valid answer."""

    name: str
    replies: tuple[Reply, ...]
    code: str | None
    requests: int


# The classes as the reference has them, apart from the table that is tested.
RETRIED = frozenset({
    "model_timeout", "model_transport", "model_rate_limited", "model_overloaded", "model_upstream_error",
    "model_no_choices", "model_bad_body",
})  # fmt: skip
ASKED_AGAIN = frozenset({"model_empty_content", "model_invalid_json", "model_schema", "model_rules"})
PAUSING = frozenset({"model_config", "model_quota", "model_format_refused", "model_wrong_endpoint"})


def class_of(code: str) -> type[ModelError]:
    if code in RETRIED or code.startswith("model_http_"):
        return ModelRetryable
    return ModelInvalid if code in ASKED_AGAIN else ModelUnavailable if code in PAUSING else ModelFatal


def case(name: str, *replies: Reply, code: str | None = None, requests: int | None = None) -> Any:
    twice = (code is not None and class_of(code) in (ModelRetryable, ModelInvalid)) or code in (CUT_OFF, NEVER)
    return pytest.param(Case(name, replies, code, requests or (2 if twice else 1)), id=name)


def said(content: Any, finish_reason: Any = "stop") -> Reply:
    return completion({"content": content}, finish_reason)


def chunks(*frames: Any, done: bool = True) -> Reply:
    lines = [frame if isinstance(frame, str) else f"data: {text_of(frame)}" for frame in frames]
    return raw("\n\n".join([*lines, "data: [DONE]"] if done else lines) + "\n\n", SSE)


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def tool(name: str, arguments: Any) -> Reply:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


ANSWER = text_of(GOOD)
NEVER = "model_wrong_endpoint"
CUT_OFF = "model_truncated"
CUT = completion({"role": "assistant", "content": ANSWER[:20]}, "length")

CASES = [
    case("1 error object in a 200, passing", Reply(body={"error": {"code": 502, "message": "x"}}), good(), requests=2),
    case("1 error object in a 200", Reply(body={"error": {"code": 502}}), code="model_upstream_error"),
    case("1 error object in a 200, credits", Reply(body={"error": {"code": 402}}), code="model_quota"),
    case("1 error object in a 200, key", Reply(body={"error": {"code": 401}}), code="model_config"),
    case("1 error object in a 200, rate", Reply(body={"error": {"code": 429}}), code="model_rate_limited"),
    case("1 error in a 200, named", Reply(body={"error": {"type": "content_filter"}}), code="model_content_filter"),
    case("2 choices null", Reply(body={"choices": None}), code="model_no_choices"),
    case("3 choices empty", Reply(body={"choices": []}), code="model_no_choices"),
    case("3 choices empty, then good", Reply(body={"choices": []}), good(), requests=2),
    case("3 choice without content", completion({"role": "assistant"}, None), code="model_no_choices"),
    case("3 choice without message", Reply(body={"choices": [{}]}), code="model_no_choices"),
    case("3 safety", completion({"role": "assistant"}, "SAFETY"), code="model_content_filter"),
    case(
        "3 blocked prompt",
        Reply(body={"choices": [], "promptFeedback": {"blockReason": "SAFETY"}}),
        code="model_content_filter",
    ),
    case("4 finish_reason error", said(ANSWER, "error"), code="model_upstream_error"),
    case("4 error in a choice", Reply(body={"choices": [{"error": {"code": 503}}]}), code="model_upstream_error"),
    case("5 error in a stream", chunks(delta('{"pri'), {"error": {"code": 502}}), code="model_upstream_error"),
    case("5 key refused in a stream", chunks({"error": {"code": 401}}), code="model_config"),
    case("6 flat error", error(400, {"object": "error", "message": "bad", "code": 400}), code="model_config"),
    case("6 flat error in a 200", Reply(body={"object": "error", "message": "x"}), code="model_upstream_error"),
    case("7 error is a string", error(500, {"error": "boom"}), code="model_http_500"),
    case("8 HTML 502", raw("<html>502</html>", "text/html", 502), code="model_http_502"),
    case("8 HTML 520", raw("<html></html>", "text/html", 520), code="model_http_520"),
    case("8 HTML 524, then good", raw("<html></html>", "text/html", 524), good(), requests=2),
    case("9 HTML 200", raw("<html>shop</html>", "text/html"), code=NEVER),
    case("9 text 200", raw("hello", "text/plain"), code=NEVER),
    case("9 text 200, then good", raw("hello", "text/plain"), good(), requests=2),
    case("9 list 200", raw("[]"), code=NEVER),
    case("9 JSON nested without end", raw("[" * 100_000), code=NEVER),
    case("9 empty 204", Reply(status=204, body=""), code=NEVER),
    case("10 blank lines first", raw("\n\n \n" + text_of({"choices": [{"message": {"content": ANSWER}}]}))),
    case("10 comments in a stream", chunks(": keep-alive", delta(ANSWER), ": keep-alive", delta("", "stop"))),
    case("11 OPENROUTER PROCESSING", chunks(": OPENROUTER PROCESSING", delta(ANSWER, "stop"))),
    case("12 frames without choices", chunks({"object": "ping"}, delta(ANSWER[:9]), {}, delta(ANSWER[9:], "stop"))),
    case("13 BOM", raw("\ufeff" + text_of({"choices": [{"message": {"content": "\ufeff" + ANSWER}}]}))),
    case("14 cut in the body", Reply(answer=GOOD, cut_after=30), code="model_transport"),
    case("14 cut before the head", Reply(answer=GOOD, cut_after=0), good(), requests=2),
    case("14 stream without its end", chunks(delta(ANSWER[:9]), done=False), code="model_transport"),
    case("14 broken gzip", Reply(body="no gzip", headers={"content-encoding": "gzip"}), code="model_transport"),
    case("16 429", error(429), code="model_rate_limited"),
    case("16 429, then good", error(429, retry_after="0.01"), good(), requests=2),
    case("18 insufficient_quota", error(429, {"error": {"code": "insufficient_quota"}}), code="model_quota"),
    case("19 try again in 114h", error(429, {"error": {"message": "Please try again in 114h"}}), code="model_quota"),
    case("19 Retry-After over the cap", error(429, retry_after="3600"), code="model_quota"),
    case("21 402", error(402), code="model_quota"),
    case("22 529", error(529), code="model_overloaded"),
    case("22 overloaded_error", error(503, {"error": {"type": "overloaded_error"}}), code="model_overloaded"),
    case("23 408", error(408), code="model_http_408"),
    case("23 409", error(409), code="model_http_409"),
    case("23 503, then good", error(503), good(), requests=2),
    *(case(f"24 {status}", error(status), code="model_config") for status in (400, 401, 403, 404, 405, 422)),
    case("24 301", error(301, location="http://127.0.0.1:9/"), code="model_config"),
    case("24 detail", error(422, {"detail": [{"msg": "bad"}]}), code="model_config"),
    case("25 400 content_filter", error(400, {"error": {"code": "content_filter"}}), code="model_content_filter"),
    case("26 200 content_filter", completion({"role": "assistant"}, "content_filter"), code="model_content_filter"),
    case(
        "27 json_validate_failed",
        error(400, {"error": {"code": "json_validate_failed", "failed_generation": "{oops"}}),
        code="model_invalid_json",
    ),
    case("27 json_validate_failed, then good", error(400, {"error": {"failed_generation": "{"}}), good(), requests=2),
    case("28 refusal", completion({"content": None, "refusal": "I cannot"}), code="model_refusal"),
    case("29 cut", CUT, code="model_truncated"),
    case("29 cut, then good", CUT, good(), requests=2),
    case("29 whole object, and cut", said(ANSWER, "length"), code="model_truncated"),
    case("30 cut tool call", completion({"tool_calls": [{}]}, "length"), code="model_truncated"),
    case("31 white space without end", completion({"content": "{" + " " * 50_000}, "length"), code="model_truncated"),
    case("32 only spaces", said("   \n"), code="model_empty_content"),
    case("32 null", said(None), good(), requests=2),
    case("33 reasoning_content", completion({"content": "", "reasoning_content": ANSWER}), code="model_empty_content"),
    case("33 reasoning", completion({"content": None, "reasoning": ANSWER}, None), code="model_empty_content"),
    case("34 think block", said(f"<think>{{}} or [1]?</think>\n{ANSWER}")),
    case("34 open think block", said(f"<think>is it {ANSWER}"), code="model_truncated"),
    case("35 fence", said(f"```json\n{ANSWER}\n```")),
    case("35 prose", said(f"Here is the answer:\n{ANSWER}\nAnything else?")),
    case("35 the same object twice", said(f"{ANSWER}\n{ANSWER}")),
    case("35 two objects", said(f'{ANSWER}\n{{"priority": "low", "note": ""}}'), code="model_invalid_json"),
    case("37 tool call", tool("Triage", ANSWER)),
    case("37 tool call with an object", tool("Triage", GOOD)),
    case("37 another tool", tool("transfer", ANSWER), code="model_invalid_json"),
    case(
        "38 tool call as text",
        said(f"<tool_call>{ANSWER}</tool_call>"),
        code="model_invalid_json",
    ),
    case(
        "39 arguments the server cannot parse",
        error(500, {"error": {"message": "Failed to parse tool call arguments as JSON"}}),
        code="model_invalid_json",
        requests=3,
    ),
    case("40 schema not enforced", said('{"answer": 42}'), code="model_schema"),
    case("43 finish_reason null", said(ANSWER, None)),
    case("43 finish_reason unknown", said(ANSWER, "paused"), code="model_finish_reason"),
    case("44 usage null", completion({"content": ANSWER}, usage=None)),
    case("45 nothing but choices", Reply(body={"choices": [{"message": {"content": ANSWER}}]})),
    *(
        case(f"46 {number}", said(ANSWER.replace("0.5", number)), code="model_schema")
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
    ),
    case("49 nested 100k", completion({"content": '{"note":' + "[" * 100_000}), code="model_schema"),
    case("49 list nested 100k", said("[" * 100_000), code="model_schema"),
    case("49 longer than the limit", completion({"content": '{"note":"' + "x" * 1_100_000}), code="model_schema"),
    case("52 NUL", said('{"priority":"low","note":"a\\u0000b"}'), code="model_schema"),
    case("52 lone surrogate", said('{"priority":"low","note":"a\\ud800b"}'), code="model_schema"),
    case("53 number as text", said('{"priority":"low","note":"","score":"1"}'), code="model_schema"),
    case("54 extra key", said(text_of({**GOOD, "more": 1})), code="model_schema"),
    case("54 double key", said('{"priority":"low","note":"a","note":"b"}'), code="model_schema"),
    case("55 trailing comma", completion({"content": ANSWER[:-1] + ",}"}), code="model_invalid_json"),
    case("55 comment", completion({"content": "{/* */" + ANSWER[1:]}), code="model_invalid_json"),
    case("55 single quotes", said(ANSWER.replace('"', "'")), code="model_invalid_json"),
    case("55 Python's None", said(ANSWER.replace("0.5", "None")), code="model_invalid_json"),
    case("a list around the object", said(f"[{ANSWER}]"), code="model_schema"),
    case("no JSON at all", said("It is urgent."), code="model_invalid_json"),
    case("413", error(413), code="model_input_too_long"),
    case("context length", error(400, {"error": {"code": "context_length_exceeded"}}), code="model_input_too_long"),
    case("gzip", Reply(body=gzip.compress(b"x").decode("latin-1"), status=502), code="model_http_502"),
]


@pytest.mark.parametrize("case", CASES)
async def test_each_response_has_one_code_one_class_and_one_number_of_requests(case: Case) -> None:
    outcome = await ask(*case.replies, model_retries=1)
    assert (outcome.error and outcome.error.code, len(outcome.calls)) == (case.code, case.requests), outcome.error
    assert len(outcome.record.started) == len(outcome.record.finished) == case.requests
    if case.code is None:
        assert outcome.answer is not None and outcome.answer.value == Triage.model_validate(GOOD)
        assert outcome.last.validated is True and outcome.last.code is None
    else:
        assert type(outcome.error) is class_of(case.code)


async def test_each_class_says_what_its_catcher_needs() -> None:
    retryable = (await ask(error(503, retry_after="7"), model_retries=0)).error
    assert isinstance(retryable, ModelRetryable) and retryable.retry_after_seconds == 7.0
    invalid = (await ask(said('{"priority": "urgent"}'))).error
    assert isinstance(invalid, ModelInvalid) and invalid.parseable and invalid.raw == '{"priority": "urgent"}'
    assert any(reason.startswith("note:") for reason in invalid.reasons)
    empty = (await ask(said(""))).error
    assert isinstance(empty, ModelInvalid) and not empty.parseable
    fatal = (await ask(CUT)).error
    assert isinstance(fatal, ModelFatal) and "m-1" in str(fatal) and "Triage the order." in str(fatal)
    assert isinstance((await ask(error(401))).error, ModelUnavailable)


def test_the_table_gives_each_code_one_class() -> None:
    from consumer.llm.codes import CODES

    assert len({code.name for code in CODES}) == len(CODES)
    assert all(issubclass(code.error, ModelError) and code.error is not ModelError for code in CODES)
    assert decision_of("model_http_599") is ModelRetryable
    with pytest.raises(KeyError):
        decision_of("model_http_N1")
