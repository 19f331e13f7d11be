"""Effects through a whole executor: the ledger's states, what is sent again and what is not, and who decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer import db, operate
from consumer.errors import DataRefused, OperatorError
from consumer.operate import Act
from tests.agents.doing import DONE
from tests.agents.harness import Records, running, settings
from tests.agents.shared import database, receiver, view
from tests.receiver import Receiver, receive

__all__ = ["database", "receiver", "view"]

ACT = Act("ada", "looked")


def outside(url: str, **changed: Any) -> Any:
    return settings(url, http_allow=("127.0.0.0/8",), **changed)


async def effect(view: Records) -> dict[str, Any]:
    return await view.one("SELECT *, response::text AS text FROM rowcall.effects")


async def test_an_effect_is_confirmed_with_its_step_and_carries_its_id(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("sender", {"n": 7, "url": f"{receiver.url}/act"})
        await view.wait(job_id, "SUCCEEDED")
    row = await effect(view)
    assert (row["state"], row["business_key"], row["attempts"], row["resolved_by"]) == ("CONFIRMED", "7", 1, "server")
    assert receiver.received == {str(row["id"]): 1} and receiver.acts == {"7": 1}
    steps = await view.all("SELECT name, output::text AS text FROM rowcall.job_steps ORDER BY number")
    assert [step["name"] for step in steps] == ["act:send", "act:after", "write_result"]
    assert steps[0]["text"] == row["text"]
    call = await view.one("SELECT * FROM rowcall.external_calls WHERE kind = 'http'")
    assert (call["state"], call["status_code"], call["idempotency_key"]) == ("done", 200, str(row["id"]))
    assert call["endpoint"] == f"POST {receiver.url}/act" and call["response"]


async def test_a_later_attempt_finds_the_step_and_sends_nothing(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("sender", {"n": 1, "url": f"{receiver.url}/act", "fail": 2})
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"1": 1} and DONE.count(("act", job_id)) == 3


async def test_another_attempt_from_the_start_does_not_repeat_a_confirmed_effect(
    view: Records, database: str, receiver: Receiver
) -> None:
    data = {"n": 1, "url": f"{receiver.url}/act", "fail": 1}
    async with running(outside(database)):
        job_id = await view.add("sender", data, attempts=1)
        await view.wait(job_id, "FAILED")
        with db.connect(database, name="test") as session:
            operate.retry(session, job_id, ACT, from_start=True)
        await view.execute("UPDATE rowcall.agent_jobs SET payload = payload::jsonb - 'fail' WHERE id = %s", job_id)
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"1": 1} and (await effect(view))["delivery"] == 1
    kept = await view.all("SELECT superseded FROM rowcall.job_steps WHERE name = 'act:send' ORDER BY 1")
    assert [row["superseded"] for row in kept] == [0, 1]


async def test_an_effect_that_was_confirmed_as_another_request_is_not_passed_off_as_this_one(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("careful", {"n": 1, "url": f"{receiver.url}/act", "tier": "low", "answer": True,
                                            "title": "first", "fail": 9}, attempts=1)  # fmt: skip
        await view.wait(job_id, "FAILED")
        with db.connect(database, name="test") as session:
            operate.retry(session, job_id, ACT, from_start=True)
        await view.execute(
            """UPDATE rowcall.agent_jobs SET payload = payload::jsonb || '{"title": "other"}' WHERE id = %s""", job_id
        )
        job = await view.wait(job_id, "FAILED")
    assert job["error_code"] == "effect_changed" and "key of its own" in job["last_error"]
    assert receiver.acts == {"1": 1}


@pytest.mark.parametrize("do", ["once-reset", "once-500", "once-hold"])
async def test_an_idempotent_effect_that_nobody_knows_is_sent_again_under_the_same_key(
    view: Records, database: str, receiver: Receiver, do: str
) -> None:
    data = {"n": 3, "url": f"{receiver.url}/act?dedup=1&do={do}", "mode": "idempotent", "options": {"timeout": 0.3}}
    async with running(outside(database)):
        await view.wait(await view.add("sender", data), "SUCCEEDED")
    row = await effect(view)
    assert (row["state"], row["attempts"]) == ("CONFIRMED", 2)
    assert receiver.received == {str(row["id"]): 2} and receiver.acts == {"3": 1}


@pytest.mark.parametrize("do", ["reset", "500", "hold", "302"])
async def test_an_effect_that_nobody_knows_holds_its_run_for_a_person_and_is_never_sent_again(
    view: Records, database: str, receiver: Receiver, do: str
) -> None:
    data = {"n": 3, "url": f"{receiver.url}/act?do={do}", "options": {"timeout": 0.3}}
    async with running(outside(database)):
        job_id = await view.add("sender", data)
        job = await view.wait(job_id, "WAITING_REVIEW")
        row = await effect(view)
        assert (job["error_code"], row["state"], row["resolved_by"]) == ("effect_unknown", "UNKNOWN", None)
        assert f"rowcall effects resolve {row['id']}" in job["last_error"]
        with db.connect(database, name="test") as session:
            (review,) = operate.list_reviews(session)
            with pytest.raises(OperatorError, match="effects resolve"):
                operate.approve(session, review["id"], ACT, answer={"title": "x", "score": 1})
            resolved = operate.resolve_effect(session, str(row["id"]), ACT, happened=True, answer={"did": "it"})
            assert (resolved.state, resolved.job_status) == ("CONFIRMED", "PENDING")
            with pytest.raises(OperatorError, match="ada said"):
                operate.resolve_effect(session, str(row["id"]), ACT, happened=False)
        await view.wait(job_id, "SUCCEEDED")
    assert sum(receiver.received.values()) == 1
    (after,) = await view.all("SELECT output::text AS text FROM rowcall.job_steps WHERE name = 'act:after'")
    assert json.loads(after["text"]) == {"did": "it"}
    done = await view.one(
        "SELECT actor, action, detail::text AS detail FROM rowcall.audit WHERE subject = %s", f"job {job_id}"
    )
    assert (done["actor"], json.loads(done["detail"])["happened"]) == ("ada", True)
    assert (await view.one("SELECT state, decided_by FROM rowcall.reviews")) == {"state": "CLOSED", "decided_by": "ada"}


async def test_what_a_person_says_did_not_happen_is_sent_when_the_run_goes_on(
    view: Records, database: str, receiver: Receiver
) -> None:
    data = {"n": 3, "url": f"{receiver.url}/act?do=once-500"}
    async with running(outside(database)):
        job_id = await view.add("sender", data)
        await view.wait(job_id, "WAITING_REVIEW")
        receiver.acts.clear()
        with db.connect(database, name="test") as session:
            operate.resolve_effect(session, str((await effect(view))["id"]), ACT, happened=False)
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"3": 1} and list(receiver.received.values()) == [2]


async def test_the_database_itself_lets_no_run_go_on_whose_effect_is_unknown(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("sender", {"n": 3, "url": f"{receiver.url}/act?do=500"})
        await view.wait(job_id, "WAITING_REVIEW")
    with db.connect(database, name="test") as session, pytest.raises(DataRefused, match="resolve"), db.translated():
        session.execute("UPDATE rowcall.agent_jobs SET status = 'PENDING' WHERE id = %s", (job_id,))
    with db.connect(database, name="test") as session, pytest.raises(DataRefused, match="cannot go"), db.translated():
        session.execute("UPDATE rowcall.effects SET state = 'SENT'")


async def test_an_agent_that_swallows_it_does_not_pass_over_an_unknown_effect(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("sender", {"n": 3, "url": f"{receiver.url}/act?do=500", "swallow": True})
        job = await view.wait(job_id, "WAITING_REVIEW", "SUCCEEDED")
    assert (job["status"], job["error_code"]) == ("WAITING_REVIEW", "effect_unknown")


@pytest.mark.parametrize("do", ["reset", "once-reset"])
async def test_the_agents_reconcile_function_is_asked_first(
    view: Records, database: str, receiver: Receiver, do: str
) -> None:
    data = {"n": 5, "url": f"{receiver.url}/act?do={do}", "base": receiver.url, "mode": "reconcile"}
    async with running(outside(database)):
        await view.wait(await view.add("sender", data), "SUCCEEDED")
    row = await effect(view)
    assert (row["state"], row["resolved_by"]) == ("CONFIRMED", "reconcile") and receiver.acts == {"5": 1}
    assert sum(receiver.received.values()) == 1


async def test_a_reconcile_function_that_finds_nothing_has_it_sent_and_one_that_cannot_tell_asks_a_person(
    view: Records, database: str, receiver: Receiver
) -> None:
    lost = {
        "n": 6,
        "url": f"{receiver.url}/act?do=once-500",
        "base": f"{receiver.url}/nobody?status=404#",
        "mode": "reconcile",
    }
    dark = {"n": 8, "url": f"{receiver.url}/act?do=500", "base": receiver.url, "mode": "reconcile", "says": "unknown"}
    async with running(outside(database)):
        await view.wait(await view.add("sender", lost), "SUCCEEDED")
        job = await view.wait(await view.add("sender", dark), "WAITING_REVIEW")
    assert job["error_code"] == "effect_unknown"
    assert sorted(receiver.received.values()) == [1, 2]


async def test_a_definite_refusal_fails_the_run_and_a_person_may_drive_it_again_under_a_new_key(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job_id = await view.add("sender", {"n": 1, "url": f"{receiver.url}/act?do=422"})
        job = await view.wait(job_id, "FAILED")
        row = await effect(view)
        assert (job["error_code"], row["state"], row["response_status"]) == ("http_422", "FAILED", 422)
        with db.connect(database, name="test") as session:
            operate.retry(session, job_id, ACT)
        await view.wait_for("SELECT FROM rowcall.effects WHERE delivery = 2 AND state = 'FAILED'")
    assert sorted(receiver.received.values()) == [1, 1] and not receiver.acts


async def test_a_refusal_can_be_handled_by_the_agent(view: Records, database: str, receiver: Receiver) -> None:
    async with running(outside(database)):
        data = {"n": 1, "url": f"{receiver.url}/act?do=409", "swallow": True}
        await view.wait(await view.add("sender", data), "SUCCEEDED")
        accepted = {"n": 2, "url": f"{receiver.url}/act?do=409", "options": {"accept": [409]}}
        await view.wait(await view.add("sender", accepted), "SUCCEEDED")
    states = await view.all("SELECT state FROM rowcall.effects ORDER BY business_key")
    assert [row["state"] for row in states] == ["FAILED", "CONFIRMED"]


async def test_a_server_that_asks_to_wait_is_asked_again_then_and_not_before(
    view: Records, database: str, receiver: Receiver
) -> None:
    data = {"n": 1, "url": f"{receiver.url}/act?do=once-503&after=1"}
    async with running(outside(database)):
        job_id = await view.add("sender", data)
        job = await view.wait(job_id, "WAITING_RETRY")
        assert job["error_code"] == "http_503"
        waits = await view.one("SELECT run_after - updated_at >= '0.9 s' AS waits FROM rowcall.agent_jobs")
        assert waits["waits"] and (await effect(view))["state"] == "FAILED"
        await view.wait(job_id, "SUCCEEDED")
    assert receiver.acts == {"1": 1} and len(receiver.received) == 1


@pytest.mark.parametrize(
    ("url", "code"), [("http://127.0.0.1:9/act", "http_connect"), ("http://nowhere.invalid/act", "http_dns")]
)
async def test_what_never_left_is_known_not_to_have_happened(
    view: Records, database: str, receiver: Receiver, url: str, code: str
) -> None:
    async with running(outside(database)):
        job = await view.wait(await view.add("sender", {"n": 1, "url": url}, attempts=2), "FAILED")
    row = await effect(view)
    assert (job["error_code"], row["state"], row["error_code"], row["attempts"]) == (code, "FAILED", code, 0)
    assert await view.all("SELECT FROM rowcall.external_calls") == []


async def test_a_whole_status_is_an_answer_even_where_the_body_is_cut(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        for do in ("cut", "big"):
            data = {"n": do, "url": f"{receiver.url}/act?do={do}"}
            await view.wait(await view.add("sender", data), "SUCCEEDED")
    rows = await view.all("SELECT state, response_truncated, length(response::text) AS n FROM rowcall.effects")
    assert [(row["state"], row["response_truncated"], row["n"] < 70_000) for row in rows] == [
        ("CONFIRMED", True, True)
    ] * 2


async def test_a_secret_is_read_when_the_request_leaves_and_stands_nowhere(
    view: Records, database: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    file = tmp_path / "token"
    file.write_text('s3cr3t/tok"en\n')
    async with running(outside(database)):
        data = {"n": 1, "url": f"{receiver.url}/act?api_key=inurl-secret&x=1", "secret": "CRM_TOKEN"}
        job_id = await view.add("sender", data, attempts=9)
        job = await view.wait(job_id, "WAITING_RETRY")
        assert "CRM_TOKEN" in job["last_error"] and not receiver.asked
        monkeypatch.setenv("CRM_TOKEN_FILE", str(file))
        await view.wait(job_id, "SUCCEEDED")
        refused = await view.add("sender", data | {"n": 2, "url": f"{receiver.url}/act?do=422&token=inurl-secret"})
        await view.wait(refused, "FAILED")
    assert receiver.asked[0][2]["authorization"] == 'Bearer s3cr3t/tok"en' and "inurl-secret" in receiver.asked[0][1]
    kept = ""
    for table in ("effects", "external_calls", "job_steps", "agent_jobs"):
        rows = await view.all(f"SELECT (to_jsonb(t) - 'payload')::text AS text FROM rowcall.{table} t")
        kept += "".join(row["text"] for row in rows)
    assert "s3cr3t" not in kept + caplog.text and "inurl" not in kept + caplog.text
    assert "***" in kept and "x=1" in kept


async def test_effects_of_a_high_tier_wait_for_approval_and_follow_it(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        for tier in ("high", "medium", "low"):
            job_id = await view.add("careful", {"n": tier, "url": f"{receiver.url}/act", "tier": tier})
            await view.wait(job_id, "SUCCEEDED" if tier == "low" else "WAITING_REVIEW")
        assert receiver.acts == {"low": 1}
        with db.connect(database, name="test") as session:
            for review in operate.list_reviews(session):
                operate.approve(session, review["id"], ACT)
        for job in await view.all("SELECT id FROM rowcall.agent_jobs"):
            await view.wait(job["id"], "SUCCEEDED")
    assert receiver.acts == {"low": 1, "medium": 1, "high": 1}


async def test_an_effect_in_run_is_refused_unless_it_is_declared(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database)):
        job = await view.wait(await view.add("early", {"n": 1, "url": f"{receiver.url}/act"}), "FAILED")
        await view.wait(await view.add("declared", {"n": 2, "url": f"{receiver.url}/act"}), "SUCCEEDED")
    assert job["error_code"] == "agent_error" and "@agent.act" in job["last_error"]
    assert receiver.acts == {"2": 1}


async def test_a_read_needs_no_ledger_and_its_failures_have_codes(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(outside(database, http_max_bytes=1000)):
        for path, status, code in (
            ("/x", "SUCCEEDED", None), ("/x?status=404", "FAILED", "http_404"), ("/x?status=500", "FAILED", "http_500"),
            ("/big?bytes=5000", "FAILED", "http_answer_cut"), (f"/redirect?to={receiver.url}/x", "FAILED", "http_302"),
        ):  # fmt: skip
            job = await view.wait(await view.add("sender", {"read": receiver.url + path}, attempts=1), status)
            assert job["error_code"] == code
    assert await view.all("SELECT FROM rowcall.effects") == []
    codes = await view.all("SELECT error_code FROM rowcall.external_calls ORDER BY id")
    assert [row["error_code"] for row in codes] == [None, "http_404", "http_500", None, "http_302"]


async def test_a_redirect_is_followed_where_asked_for_and_takes_nothing_secret_to_another_host(
    view: Records, database: str, receiver: Receiver
) -> None:
    with receive() as other:
        options = {"redirects": 1, "headers": {"X-Api-Key": "not-for-others", "X-Plain": "yes"}}
        async with running(outside(database)):
            data = {"read": f"{receiver.url}/redirect?to={other.url}/x", "options": options}
            await view.wait(await view.add("sender", data), "SUCCEEDED")
    assert receiver.asked[0][2]["x-api-key"] == "not-for-others"
    assert "x-api-key" not in other.asked[0][2] and other.asked[0][2]["x-plain"] == "yes"


async def test_a_private_address_is_blocked_before_anything_is_sent(
    view: Records, database: str, receiver: Receiver
) -> None:
    async with running(settings(database)):
        job = await view.wait(await view.add("sender", {"n": 1, "url": f"{receiver.url}/act"}), "FAILED")
    assert job["error_code"] == "http_blocked" and "ROWCALL_HTTP_ALLOW" in job["last_error"]
    assert (await effect(view))["state"] == "FAILED" and receiver.asked == []
