"""Each form of "ask again later" is understood, and nonsense counts as unsaid."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from consumer.llm.retry_after import asked_wait, duration, reset_wait, should_retry, worded_wait
from tests.unit.llm.asking import ask, error, good

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "12.5", "retry-after": "9"}, 0.0125),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True), "date": formatdate(NOW + 20, usegmt=True)}, 10.0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        *(({"retry-after": text}, None) for text in ("-1", "0", "nan", "inf", "soon", "", "1e999", "Mon, 99 Foo")),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, None),
        ({"retry-after-ms": "-5", "retry-after": "2"}, 2.0),
        ({}, None),
    ],
)
def test_retry_after_in_each_form(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012), ("6m0s", 360.0), ("1h2m3.5s", 3723.5), ("114h13m26.4s", 411_206.4), ("7us", 7e-6),
        ("0s", None), ("-1s", None), ("6", None), ("", None), ("6m0", None), ("1 s", None),
    ],
)  # fmt: skip
def test_go_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-reset-requests": "12ms", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "9"}, None),
        ({"x-ratelimit-reset": str(int((NOW + 5) * 1000))}, 5.0),
        ({"x-ratelimit-reset": str(int(NOW + 5))}, 5.0),
        ({"x-ratelimit-reset": "5"}, 5.0),
        *(({"x-ratelimit-reset": text}, None) for text in ("-1", "0", "nan", "soon", "")),
    ],
)
def test_rate_limit_resets(headers: dict[str, str], seconds: float | None) -> None:
    assert reset_wait(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 20s. Visit", 20.0),
        ("try again in 114h13m26.4s.", 411_206.4),
        ("Try again in 24 hours", 86_400.0),
        ("retry after 1.5 seconds", 1.5),
        ("try again later", None),
        ("try again in -5s", None),
    ],
)
def test_waits_in_words(text: str, seconds: float | None) -> None:
    assert worded_wait(text) == (None if seconds is None else pytest.approx(seconds))


def test_x_should_retry() -> None:
    assert [should_retry({"x-should-retry": text}) for text in ("true", "FALSE", "maybe")] == [True, False, None]


@pytest.mark.parametrize(
    "headers",
    [
        {"retry_after_ms": "300"},
        {"retry_after": "0.3"},
        {"retry_after": formatdate(NOW + 1, usegmt=True), "date": formatdate(NOW, usegmt=True)},
        {"x_ratelimit_reset_requests": "300ms"},
        {"x_ratelimit_reset": "0.3"},
    ],
    ids=str,
)
async def test_a_wait_that_is_asked_for_is_kept(headers: dict[str, str]) -> None:
    began = time.monotonic()
    outcome = await ask(error(429, **headers), good())
    assert outcome.answer is not None and len(outcome.calls) == 2
    assert 0.3 <= time.monotonic() - began < 3
    assert outcome.calls[1].at - outcome.calls[0].at >= 0.29


async def test_a_wait_beyond_the_deadline_is_left_to_the_caller() -> None:
    outcome = await ask(error(503, retry_after="60"), good())
    assert outcome.error is not None and outcome.error.code == "model_http_503"
    assert getattr(outcome.error, "retry_after_seconds", None) == 60.0
    assert len(outcome.calls) == 1


async def test_a_reset_beyond_the_cap_is_a_wait_and_not_a_quota() -> None:
    outcome = await ask(error(429, x_ratelimit_reset_tokens="6m0s"))
    assert outcome.error is not None and outcome.error.code == "model_rate_limited"
    assert getattr(outcome.error, "retry_after_seconds", None) == 120.0


async def test_x_should_retry_overrides_the_status() -> None:
    never = await ask(error(503, x_should_retry="false"), good())
    assert never.error is not None and never.error.code == "model_http_503" and len(never.calls) == 1
    always = await ask(error(400, x_should_retry="true"), good())
    assert always.answer is not None and always.record.codes == ["model_http_400", None]
