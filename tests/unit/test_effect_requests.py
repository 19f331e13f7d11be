"""An agent's request is checked and described before anything is planned; secrets never stand in what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from consumer import effects
from consumer.agents.door import Agent, HttpAnswer, Tier, happened, secret
from consumer.effects import Meaning, meaning
from consumer.errors import AgentError, ConfigurationError
from tests.agents.doing import Note

URL = "https://api.example.com/v1/charges"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"json": 1, "content": b"x"}, "not both"),
        ({"json": {1j}}, "cannot be written"),
        ({"headers": {"Host": "x"}}, "set by Rowcall"),
        ({"headers": {"Content-Length": "1"}}, "set by Rowcall"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "one line"),
        ({"headers": {"X A": "a"}}, "no name of a header"),
        ({"headers": {"X": 5}}, "one line"),
        ({"json": {"token": secret("CRM_TOKEN")}}, "secret cannot stand in a body"),
        ({"key": "x" * 501}, "at most 500"),
        ({"key": "\x00"}, "storable"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": float("nan")}, "above 0"),
        ({"redirects": 1}, "one address"),
        ({"key_header": "a b"}, "no name of a header"),
    ],
)
def test_a_call_that_cannot_be_sent_says_what_to_change(options: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError, match=says):
        effects.read("POST", URL, **options)


def test_a_method_there_is_not_is_refused() -> None:
    with pytest.raises(AgentError, match="CONNECT"):
        effects.read("CONNECT", URL)


def test_what_is_kept_of_a_url_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_TOKEN", "abcdef123")
    request = effects.read(
        "POST", f"{URL}?access_token=topsecret&page=2", params={"q": secret("CRM_TOKEN"), "sig": "verysecret", "n": 1},
        headers={"X-Auth": secret("CRM_TOKEN", "Token {}"), "X-Api-Key": "in-the-code"},
    )  # fmt: skip
    for text in (request.shown, request.endpoint, repr(request.headers["x-auth"])):
        assert "abcdef123" not in text and "topsecret" not in text and "verysecret" not in text
    assert "page=2" in request.shown and "n=1" in request.shown
    left = effects.departure(request, idempotency_key="k")
    assert left.headers == {
        "x-auth": "Token abcdef123", "x-api-key": "in-the-code", "idempotency-key": "k"
    }  # fmt: skip
    assert "q=abcdef123" in left.url and "access_token=topsecret" in left.url
    assert left.masked("abcdef123 in-the-code topsecret verysecret") == "*** *** *** ***"


def test_a_secret_cannot_be_written_into_a_text_and_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentError, match="Bearer"):
        f"Bearer {secret('CRM_TOKEN')}"
    with pytest.raises(AgentError, match="once"):
        secret("CRM_TOKEN", "Bearer")
    monkeypatch.delenv("CRM_TOKEN", raising=False)
    request = effects.read("POST", URL, headers={"Authorization": secret("CRM_TOKEN")})
    with pytest.raises(ConfigurationError, match="CRM_TOKEN_FILE"):
        effects.departure(request, idempotency_key=None)
    monkeypatch.setenv("CRM_TOKEN", "a\nb")
    with pytest.raises(AgentError, match="authorization") as caught:
        effects.departure(request, idempotency_key=None)
    assert "a\nb" not in str(caught.value)


def test_the_digest_is_of_all_that_makes_the_request_and_not_of_a_secrets_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digest(**options: Any) -> bytes:
        return effects.read("POST", URL, **options).digest

    digests = [
        digest(), digest(json={"a": 1}), digest(json={"a": 2}), digest(params={"a": 1}), digest(headers={"A": "b"}),
        digest(headers={"A": secret("B")}), digest(content="x"), effects.read("PUT", URL).digest,
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    monkeypatch.setenv("B", "one")
    assert digest(headers={"A": secret("B")}) == digests[5]
    assert digest(timeout=3, idempotent=True, key="x") == digests[0]


def test_an_effects_id_is_of_run_delivery_step_and_key() -> None:
    one = effects.effect_id(1, 1, "act:send", "order 7")
    assert one == effects.effect_id(1, 1, "act:send", "order 7")
    others = [(2, 1, "act:send", "order 7"), (1, 2, "act:send", "order 7"), (1, 1, "act:x", "order 7"),
              (1, 1, "act:send", "order 8"), (1, 1, "act:send", "")]  # fmt: skip
    assert len({effects.effect_id(*other) for other in others} | {one}) == 6


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (200, {}, Meaning.DONE), (204, {}, Meaning.DONE), (400, {}, Meaning.REFUSED), (404, {}, Meaning.REFUSED),
        (409, {}, Meaning.REFUSED), (307, {}, Meaning.REFUSED), (303, {}, Meaning.UNKNOWN), (408, {}, Meaning.LATER),
        (429, {}, Meaning.LATER), (503, {"retry-after": "1"}, Meaning.LATER), (503, {}, Meaning.UNKNOWN),
        (500, {}, Meaning.UNKNOWN), (502, {}, Meaning.UNKNOWN), (504, {"retry-after": "1"}, Meaning.UNKNOWN),
    ],
)  # fmt: skip
def test_a_status_says_what_is_sure_of_an_effect(status: int, headers: dict[str, str], says: Meaning) -> None:
    assert meaning(status, headers, ()) is says
    assert meaning(status, headers, (status,)) is Meaning.DONE


@pytest.mark.parametrize("content", [b"", b"text", "ü\x00".encode(), b"\xff\x00raw"])
def test_an_answer_comes_back_as_it_was_kept(content: bytes) -> None:
    answer = HttpAnswer(201, {"a": "b"}, content, truncated=True)
    assert effects.read_answer(effects.stored_answer(answer)) == answer


def test_a_reconciled_answer_may_be_any_json() -> None:
    said = happened({"id": 7})
    assert said.answer is not None and said.answer.json() == {"id": 7} and said.answer.ok


def test_effects_before_the_answer_and_a_tier_exclude_each_other() -> None:
    agent = Agent(name="a", version=1, answer=Note, effects_before_answer=True)

    @agent.run
    async def run(ctx: Any, message: Any) -> Note:
        return Note(title="x", score=1)

    agent.check()

    @agent.tier
    def tier(message: Any, answer: Any) -> Tier:
        return Tier.LOW

    with pytest.raises(ConfigurationError, match="effects_before_answer"):
        agent.check()


@pytest.mark.parametrize(
    "options", [{"accept": 404}, {"accept": "404"}, {"redirects": -1}, {"redirects": 10**9}, {"reconcile": "look"}]
)
def test_what_is_looked_at_after_a_call_is_checked_before_it(options: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match=next(iter(options))):
        effects.read("GET", "https://example.com/", **options)


@pytest.mark.parametrize("value", ["plain-secret", "a b*c/d+e", 'it\'s \\ "quoted"', "caf\u00e9-secret"])
def test_a_secret_is_taken_out_of_errors_in_every_notation(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CRM_TOKEN", value)
    left = effects.departure(
        effects.read("GET", "https://example.com/", params={"q": secret("CRM_TOKEN")}), idempotency_key=None
    )
    repeated = f"illegal status line: {bytearray(f'GET {left.url} {value}'.encode())!r}"
    assert left.masked(repeated).count("***") == 2


@pytest.mark.parametrize("value", ["s3cret-of-the-crm", 'with "quotes" in it', "geheimnis-äöü"])
def test_of_a_secret_that_a_cut_goes_through_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CRM_TOKEN", value)
    asked = effects.read("GET", "https://example.com/", params={"q": secret("CRM_TOKEN")})
    left = effects.departure(asked, idempotency_key=None)
    said = f"you sent {value}, ".encode()
    whole = effects.kept(left, 200, {}, said, whole=True).answer.content
    assert whole == b"you sent ***, "
    for size in range(len(said)):
        kept = effects.kept(left, 200, {}, said[:size], whole=False).answer.content
        assert whole.startswith(kept), "what a cut leaves is a beginning of what is kept of the whole"
    broken = effects.kept(left, 200, {}, b"\xff " + said, whole=True).answer.content
    assert value.encode() not in broken
