"""`rowcall model check` tells a fit endpoint from an unfit one, and sends nothing that identifies a person."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from consumer.llm.check import WRONG_KEY, WRONG_MODEL, Report, check
from consumer.llm.samples import SAMPLES, masked
from tests.scripted_model import Reply, serve
from tests.unit.llm.asking import KEY, error, settings_for

GOOD = Reply(answer={"priority": "low", "reason": "small"}, model="m-1", headers={"x-ratelimit-limit-requests": "60"})
NO_MODEL = error(404, {"error": {"code": "model_not_found", "message": "no such model"}})


def levels(report: Report) -> dict[str, str]:
    return {finding.name: finding.level for finding in report.findings}


async def run(*replies: Reply, rules: Sequence[tuple[str, Sequence[Reply]]] = (), **more: Any) -> Report:
    with serve(*replies, rules=rules) as endpoint:
        return await check(settings_for(endpoint), **more)


async def test_a_fit_endpoint_is_found_fit() -> None:
    slow = Reply(answer=GOOD.answer, model="m-1", delay_seconds=0.1, headers=GOOD.headers)
    report = await run(slow, rules=[(WRONG_MODEL, [NO_MODEL])])
    found = levels(report)
    assert report.fit and found.pop("wrong key") == "warn"
    assert set(found.values()) == {"ok"}, report
    assert {"reachable", "auth", "rate limits", "structure json_schema", "structure json_object", "structure prompt",
            "valid answers", "usage", "model", "latency", "wrong model name", "time-out"} == set(found)  # fmt: skip


async def test_what_an_endpoint_cannot_do_is_said() -> None:
    refused = error(400, {"error": "response_format is not supported"})
    poor = Reply(answer={"priority": "low", "reason": "small"}, usage=None, model="other")
    report = await run(poor, rules=[('"response_format"', [refused])])
    found = levels(report)
    assert report.fit
    assert [found[f"structure {mode}"] for mode in ("json_schema", "json_object", "prompt")] == ["warn", "warn", "ok"]
    assert [found[name] for name in ("usage", "model", "rate limits", "wrong model name")] == ["warn"] * 4


async def test_an_endpoint_that_answers_nonsense_is_unfit_and_its_codes_are_named() -> None:
    report = await run(Reply(answer="certainly!"))
    assert not report.fit and levels(report)["structure"] == levels(report)["valid answers"] == "fail"
    assert any("model_invalid_json 10x" in finding.detail for finding in report.findings)


async def test_a_refused_key_and_a_dead_address_end_the_check() -> None:
    refused = await run(error(401, {"error": {"message": f"key {KEY}"}}))
    assert not refused.fit and levels(refused)["auth"] == "fail" and KEY not in repr(refused)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = await check(settings_for(f"http://127.0.0.1:{unused.getsockname()[1]}/v1"))
    assert levels(dead) == {"reachable": "fail"}


async def test_the_wrong_key_is_sent_and_its_refusal_recognised() -> None:
    with serve(GOOD) as endpoint:
        await check(settings_for(endpoint))
        sent = [call.headers["authorization"] for call in endpoint.calls]
    assert sent.count(f"Bearer {WRONG_KEY}") == 1 and WRONG_MODEL.encode() in b"".join(c.body for c in endpoint.calls)


async def test_samples_leave_masked() -> None:
    sample = {
        "id": 123456789, "Name": "Ada Lovelace", "note": "ada@example.org or +49 170 1234567, ref 4929123412341234",
        "lines": [{"email": "x@y.org", "qty": 2}], "date": "2026-01-31", "total": "49.90",
    }  # fmt: skip
    with serve(GOOD) as endpoint:
        await check(settings_for(endpoint), [sample])
        bodies = b"".join(call.body for call in endpoint.calls).decode()
    assert not [text for text in ("Ada", "ada@", "1234567", "4929123", "x@y", "123456789") if text in bodies]
    assert masked(sample)["total"] == "49.90" and masked(sample)["date"] == "2026-01-31"
    assert masked({"city": "Rome"}, ["CITY"]) == {"city": "masked"}


def test_the_samples_of_the_check_need_no_mask() -> None:
    assert [masked(sample) for sample in SAMPLES] == list(SAMPLES)


@pytest.mark.timeout(60)
def test_a_megabyte_without_an_address_is_masked_in_one_go() -> None:
    assert masked({"text": "a" * 1_000_000 + " b.c+d@example.org"})["text"].endswith("a someone@example.com")
