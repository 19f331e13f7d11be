"""What one question costs, records, and never does."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
import traceback
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from consumer.errors import ConfigurationError, ModelInvalid, ModelRetryable
from consumer.llm import CallStarted, ModelClient
from consumer.llm.breaker import Breaker
from consumer.llm.trace_text import MASK, TEXT_LIMIT
from tests.scripted_model import Endpoint, Reply, serve
from tests.unit.llm.asking import (
    GOOD,
    KEY,
    Record,
    Triage,
    ask,
    client_for,
    completion,
    error,
    good,
    put,
    raw,
    request_for,
    settings_for,
    text_of,
)

BAD = completion({"content": '{"priority": "urgent", "note": ""}'})


async def received(endpoint: Endpoint, count: int) -> None:
    for _ in range(500):
        if len(endpoint.calls) < count:
            await asyncio.sleep(0.01)
    assert len(endpoint.calls) == count


async def test_a_call_is_recorded_before_its_bytes_leave_and_completed_after() -> None:
    with serve(good(model="m-1-turbo")) as endpoint:
        client, record, seen = client_for(endpoint), Record(), []

        async def on_send(call: CallStarted) -> int:
            await asyncio.sleep(0.05)
            seen.append(len(endpoint.calls))
            return await record.on_send(call)

        answer = await client.ask(request_for(), on_send=on_send, on_done=record.on_done)
    started, finished, call = record.started[0], record.finished[1], endpoint.calls[0]
    assert seen == [0]
    assert started.input_sha256 == hashlib.sha256(call.body).digest() and started.input_bytes == len(call.body)
    assert (started.endpoint, started.model, started.attempt) == (f"{endpoint.url}/chat/completions", "m-1", 1)
    assert started.idempotency_key == call.headers["idempotency-key"] == "run-7:ask"
    assert call.headers["authorization"] == f"Bearer {KEY}"
    assert (finished.status, finished.code, finished.validated) == (200, None, True)
    assert (finished.prompt_tokens, finished.completion_tokens) == (11, 7)
    assert (finished.model, finished.finish_reason) == ("m-1-turbo", "stop")
    assert finished.response_text is not None
    assert finished.response_sha256 == hashlib.sha256(finished.response_text.encode()).digest()
    assert (answer.call_id, answer.requests, answer.value) == (1, 1, Triage.model_validate(GOOD))


async def test_tokens_that_are_not_named_are_none_and_never_zero() -> None:
    for usage in (None, {}, {"prompt_tokens": None, "completion_tokens": "7"}, {"prompt_tokens": True}):
        outcome = await ask(good(usage=usage))
        assert (outcome.last.prompt_tokens, outcome.last.completion_tokens) == (None, None)
    assert (await ask(good(usage={"prompt_tokens": 0, "completion_tokens": 3}))).last.prompt_tokens == 0


async def test_a_cancelled_question_stays_sent() -> None:
    with serve(good(delay_seconds=30)) as endpoint:
        client, record = client_for(endpoint), Record()
        task = asyncio.create_task(client.ask(request_for(), on_send=record.on_send, on_done=record.on_done))
        await received(endpoint, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(record.started) == 1 and record.finished == {}


async def test_a_validator_that_raises_still_completes_the_record() -> None:
    def rules(answer: Any) -> list[str]:
        raise KeyError("customer")

    with serve(good()) as endpoint:
        client, record = client_for(endpoint), Record()
        with pytest.raises(KeyError):
            await client.ask(request_for(rules=rules), on_send=record.on_send, on_done=record.on_done)
    assert record.finished[1].validated is False and record.finished[1].reasons == ("validation raised KeyError",)


@pytest.mark.parametrize("count", [None, 1000])
async def test_a_keep_alive_that_never_ends_is_cut_by_the_deadline(count: int | None) -> None:
    began = time.monotonic()
    reply = good(keep_alive_seconds=0.02, keep_alive_count=count)
    outcome = await ask(reply, request=request_for(seconds=0.4))
    assert outcome.error is not None and outcome.error.code == "model_timeout" and len(outcome.calls) == 1
    assert 0.35 < time.monotonic() - began < 2
    assert outcome.last.code == "model_timeout" and outcome.last.status is None


async def test_keep_alives_before_an_answer_are_passed_over() -> None:
    outcome = await ask(good(keep_alive_seconds=0.01, keep_alive_count=5))
    assert outcome.answer is not None


async def test_the_deadline_is_for_all_attempts_together() -> None:
    began = time.monotonic()
    outcome = await ask(error(503, retry_after="0.2"), request=request_for(seconds=0.5), model_retries=100)
    assert outcome.error is not None and outcome.error.code == "model_http_503" and len(outcome.calls) <= 3
    assert time.monotonic() - began < 1


async def test_the_connection_of_a_timed_out_call_is_not_used_again() -> None:
    with serve(good(delay_seconds=0.4), good()) as endpoint:
        client = client_for(endpoint)
        first = await put(client, request_for(seconds=0.1), endpoint)
        second = await put(client, request_for(), endpoint)
    assert first.error is not None and first.error.code == "model_timeout"
    assert second.answer is not None


async def test_no_connection_is_transport() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client, record = client_for(f"http://127.0.0.1:{unused.getsockname()[1]}/v1"), Record()
        with pytest.raises(ModelRetryable) as raised:
            await client.ask(request_for(), on_send=record.on_send, on_done=record.on_done)
    assert raised.value.code == "model_transport" and record.codes == ["model_transport"] * 3


async def test_an_invalid_answer_is_asked_for_once_more_with_what_was_wrong() -> None:
    outcome = await ask(BAD, good())
    assert outcome.answer is not None and outcome.record.codes == ["model_schema", None]
    first, second = (call.json()["messages"] for call in outcome.calls)
    assert second[: len(first)] == first and [message["role"] for message in second[2:]] == ["assistant", "user"]
    assert "urgent" in second[2]["content"] and "priority:" in second[3]["content"]
    assert [call.headers["idempotency-key"] for call in outcome.calls] == ["run-7:ask", "run-7:ask-2"]


async def test_broken_rules_are_asked_about_once_and_then_go_to_a_person() -> None:
    def rules(answer: Any) -> list[str]:
        return ["score must be 1"] if answer.score != 1 else []

    fixed = await ask(good(), Reply(answer={**GOOD, "score": 1.0}), request=request_for(rules=rules))
    assert fixed.answer is not None and "score must be 1" in fixed.calls[1].json()["messages"][-1]["content"]
    broken = await ask(good(), request=request_for(rules=rules))
    assert isinstance(broken.error, ModelInvalid) and broken.error.code == "model_rules" and broken.error.parseable
    assert broken.error.reasons == ("score must be 1",) and broken.error.raw == text_of(GOOD)
    assert len(broken.calls) == 2 and broken.last.validated is False


async def test_a_repeat_sends_the_same_bytes_under_the_same_key() -> None:
    outcome = await ask(error(500), error(500), good())
    assert len({call.body for call in outcome.calls}) == 1 and len(outcome.calls) == 3
    assert {call.headers["idempotency-key"] for call in outcome.calls} == {"run-7:ask"}
    assert [call.attempt for call in outcome.record.started] == [1, 2, 3]


async def test_a_cut_answer_is_never_asked_for_with_the_same_budget() -> None:
    cut = completion({"content": '{"priority"'}, "length")
    outcome = await ask(cut, model_max_tokens=100)
    assert [call.json()["max_tokens"] for call in outcome.calls] == [100, 200]
    assert outcome.error is not None and outcome.error.code == "model_truncated"


async def test_one_question_never_costs_more_than_its_bound() -> None:
    cut = completion({"content": "{"}, "length")
    outcome = await ask(error(500), BAD, cut, error(500), BAD, good())
    assert outcome.error is not None and outcome.error.code == "model_schema" and len(outcome.calls) == 5


async def test_a_broken_endpoint_is_left_alone_and_then_probed_once() -> None:
    with serve(*[error(500)] * 6, good(delay_seconds=0.2), good()) as endpoint:
        client = client_for(endpoint, Breaker(failures=5, cool_down_seconds=0.3), model_retries=0)
        outcomes = [await put(client, request_for(), endpoint) for _ in range(50)]
        assert [item.error and item.error.code for item in outcomes] == ["model_http_500"] * 5 + [
            "model_circuit_open"
        ] * 45
        assert len(endpoint.calls) == 5
        assert all(isinstance(item.error, ModelRetryable) and item.error.retry_after_seconds for item in outcomes[5:])
        assert outcomes[-1].record.started == []
        await asyncio.sleep(0.31)
        failed = await asyncio.gather(*[put(client, request_for(), endpoint) for _ in range(20)])
        assert len(endpoint.calls) == 6 and all(item.error for item in failed)
        await asyncio.sleep(0.31)
        probed = await asyncio.gather(*[put(client, request_for(), endpoint) for _ in range(20)])
        assert len(endpoint.calls) == 7 and sum(item.answer is not None for item in probed) == 1
        assert (await put(client, request_for(), endpoint)).answer is not None


async def test_many_runs_at_once_make_no_storm_on_a_broken_endpoint() -> None:
    with serve(error(503)) as endpoint:
        client = client_for(endpoint, model_retries=5)
        for _ in range(10):
            outcomes = await asyncio.gather(*[put(client, request_for(), endpoint) for _ in range(50)])
            assert all(isinstance(item.error, ModelRetryable) for item in outcomes)
    # The fifty that were in flight when it opened, and repeats of the four failures before that.
    assert len(endpoint.calls) <= 54


async def test_a_cancelled_probe_lets_another_one_go() -> None:
    with serve(error(500), good(delay_seconds=30), good()) as endpoint:
        client = client_for(endpoint, Breaker(failures=1, cool_down_seconds=0.05), model_retries=0)
        await put(client, request_for(), endpoint)
        await asyncio.sleep(0.06)
        task = asyncio.create_task(put(client, request_for(), endpoint))
        await received(endpoint, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await put(client, request_for(), endpoint)).answer is not None


async def test_rate_limits_do_not_open_the_circuit() -> None:
    with serve(error(429)) as endpoint:
        client = client_for(endpoint, model_retries=0)
        outcomes = [await put(client, request_for(), endpoint) for _ in range(10)]
    assert {item.error and item.error.code for item in outcomes} == {"model_rate_limited"}


async def test_a_400_for_one_input_does_not_pause_the_agent_that_others_were_accepted_for() -> None:
    with serve(good(), error(400), good()) as endpoint:
        client = client_for(endpoint)
        outcomes = [await put(client, request_for(), endpoint) for _ in range(3)]
    assert [item.error and item.error.code for item in outcomes] == [None, "model_request_refused", None]


async def test_a_strange_body_from_a_proven_endpoint_is_no_wrong_address() -> None:
    with serve(good(), raw("<html>", "text/html")) as endpoint:
        client = client_for(endpoint)
        outcomes = [await put(client, request_for(), endpoint) for _ in range(2)]
    assert isinstance(outcomes[1].error, ModelRetryable) and outcomes[1].error.code == "model_bad_body"


ECHO = f"key {KEY} is wrong, header was Bearer {KEY}"


@pytest.mark.parametrize(
    "reply",
    [
        error(401, {"error": {"message": ECHO}}),
        error(500, {"error": ECHO}),
        raw(f"<html>{ECHO}</html>", "text/html", 502),
        Reply(body={"error": {"message": ECHO, "code": 503}}),
        completion({"content": ECHO}, model=ECHO),
        completion({"content": '{"priority": "' + KEY + '"}'}),
        completion({"content": '{"' + KEY + '": 1}'}),
        completion({"refusal": ECHO}),
        completion({"content": "x"}, ECHO),
        raw("x" * (TEXT_LIMIT - 10) + KEY, "text/html", 502),
        Reply(answer=GOOD, headers={"x-request-id": KEY}),
        Reply(answer=GOOD, cut_after=3),
    ],
)
async def test_the_key_never_appears_anywhere(reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve(reply) as endpoint:
        client = client_for(endpoint)
        outcome = await put(client, request_for(), endpoint)
        shown = [repr(client), str(client), repr(client._target), repr(settings_for(endpoint))]
    assert any(KEY in value for value in outcome.calls[0].headers.values())
    shown += [repr(outcome.record), repr(outcome.answer), caplog.text, *map(repr, caplog.records)]
    if (failure := outcome.error) is not None:
        shown += [repr(failure), repr(vars(failure)), *traceback.format_exception(failure)]
    assert not [text for text in shown if KEY in text or KEY[:12] in text]


async def test_a_key_echoed_in_an_error_is_masked() -> None:
    outcome = await ask(error(401, {"error": {"message": ECHO}}))
    assert outcome.last.response_text is not None and MASK in outcome.last.response_text and MASK in str(outcome.error)


@pytest.mark.parametrize("key", ["sk-1\nX-Evil: 1", "sk-ключ-0123", "sk-01234567 ", "sk-\x000123456"])
def test_a_key_no_header_can_carry_is_refused_without_naming_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ModelClient(settings_for("http://127.0.0.1:1", model_api_key=SecretStr(key)))
    assert "sk-" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "", "http://", "http://u:p@x/v1", "http://x:99999/"])
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        client_for(url)


async def test_how_the_key_is_sent_is_configuration() -> None:
    azure = await ask(good(), model_auth_header="api-key", model_auth_scheme="")
    assert azure.calls[0].headers["api-key"] == KEY and "authorization" not in azure.calls[0].headers
    none = await ask(good(), model_api_key=None)
    assert "authorization" not in none.calls[0].headers


async def test_a_query_of_the_base_url_is_kept_and_not_shown() -> None:
    with serve(good()) as endpoint:
        client, record = client_for(f"{endpoint.url}/?api-version=9&key=abc"), Record()
        await client.ask(request_for(), on_send=record.on_send, on_done=record.on_done)
        assert endpoint.calls[0].path == "/v1/chat/completions?api-version=9&key=abc"
    assert record.started[0].endpoint == f"{endpoint.url}/chat/completions"


async def test_trace_text_is_storable_and_bounded() -> None:
    body = '{"choices": [{"message": {"content": "a\\u0000b\\ud800c"}}]}'
    outcome = await ask(completion({"content": "a\x00b\ud800c"}), raw("\x00\ud800" + "é" * TEXT_LIMIT, "text/plain"))
    texts = [item.response_text or "" for item in outcome.record.finished.values()]
    assert all("\x00" not in text and len(text.encode()) <= TEXT_LIMIT for text in texts)
    assert texts[-1].startswith("��")
    broken = await ask(raw(body))
    assert isinstance(broken.error, ModelInvalid) and broken.error.raw == "a�b�c"
    broken.error.raw.encode()


async def test_what_an_endpoint_refuses_is_remembered_and_not_sent_again() -> None:
    refusals = [
        error(400, {"error": {"message": "response_format json_schema is not supported", "param": "response_format"}}),
        error(400, {"error": "'response_format.type' must be 'text'"}),
        good(),
    ]
    with serve(*refusals) as endpoint:
        client = client_for(endpoint)
        first = await put(client, request_for(), endpoint)
        second = await put(client, request_for(), endpoint)
    kinds = [call.json().get("response_format", {}).get("type") for call in [*first.calls, *second.calls]]
    assert kinds == ["json_schema", "json_object", None, None]
    assert first.record.codes == ["model_format_refused", "model_format_refused", None]
    assert first.answer is not None and second.answer is not None
    assert '"priority"' not in first.calls[0].json()["messages"][0]["content"]
    assert '"priority"' in first.calls[1].json()["messages"][0]["content"]


async def test_a_fixed_format_that_is_refused_pauses_the_agent() -> None:
    outcome = await ask(error(400, {"error": "response_format?"}), model_response_format="json_schema")
    assert outcome.error is not None and outcome.error.code == "model_format_refused" and len(outcome.calls) == 1


async def test_parameters_newer_models_refuse_are_replaced() -> None:
    outcome = await ask(
        error(400, {"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'"}}),
        error(400, {"error": {"message": "Only the default (1) is supported", "param": "temperature"}}),
        good(),
    )
    assert outcome.answer is not None
    bodies = [call.json() for call in outcome.calls]
    assert [("max_tokens" in body, "max_completion_tokens" in body, body.get("temperature")) for body in bodies] == [
        (True, False, 0), (False, True, 0), (False, True, None),
    ]  # fmt: skip


async def test_an_endpoint_that_refuses_everything_ends_the_question() -> None:
    outcome = await ask(error(400, {"error": "response_format"}), request=request_for())
    assert outcome.error is not None and outcome.error.code == "model_format_refused" and len(outcome.calls) == 3


async def test_each_agent_learns_for_itself() -> None:
    class Other(BaseModel):
        priority: str
        note: str
        score: float

    with serve(error(400, {"error": "invalid json_schema"}), good()) as endpoint:
        client = client_for(endpoint)
        await put(client, request_for(), endpoint)
        other = await put(client, request_for(Other), endpoint)
    assert other.calls[0].json()["response_format"]["type"] == "json_schema"
