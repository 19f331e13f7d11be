"""Signatures of webhooks: each scheme takes its sender's requests and nobody else's."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from consumer.errors import ConfigurationError
from producers.webhooks.signatures import Refused, Verifier, challenge, delivery, kept_headers
from producers.webhooks.sources import Keyring, Source, load

OLD, NEW = "old-secret-0123456789", "It's a Secret to Everybody"
BODY = b'{"id": "evt_1", "type": "paid", "event_id": "Ev1", "event": {"type": "message"}}'
NOW = 1_800_000_000.0
STANDARD = "whsec_" + base64.b64encode(b"a secret of 24 bytes....").decode()


def source(scheme: str, **fields: Any) -> Source:
    return Source.model_validate({"name": "s", "scheme": scheme, "secrets": ["S"], **fields})


def verify(
    made: Source, headers: dict[str, str], body: bytes = BODY, now: float = NOW, secrets: Any = (OLD, NEW)
) -> None:
    Verifier(made, Keyring(list(secrets))).verify(headers, body, now)


def digest(text: bytes, secret: str = NEW, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), text, getattr(hashlib, algorithm)).hexdigest()


def signed(scheme: str, body: bytes = BODY, stamp: str = "1800000000", secret: str = NEW) -> dict[str, str]:
    match scheme:
        case "github":
            return {"x-hub-signature-256": "sha256=" + digest(body, secret)}
        case "stripe":
            return {"stripe-signature": f"t={stamp},v0=old,v1={digest(stamp.encode() + b'.' + body, secret)}"}
        case "slack":
            value = "v0=" + digest(b"v0:" + stamp.encode() + b":" + body, secret)
            return {"x-slack-signature": value, "x-slack-request-timestamp": stamp}
        case "bearer":
            return {"authorization": f"Bearer {secret}"}
    return {"x-signature": digest(body, secret)}


SCHEMES = ("github", "stripe", "slack", "bearer", "hmac")


def test_github_takes_the_example_of_its_documentation() -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    verify(source("github"), {"x-hub-signature-256": signature}, b"Hello, World!")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("secret", [OLD, NEW])
def test_either_secret_is_good_while_one_is_rotated(scheme: str, secret: str) -> None:
    verify(source(scheme), signed(scheme, secret=secret))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_secret_is_refused(scheme: str) -> None:
    with pytest.raises(Refused):
        verify(source(scheme), signed(scheme, secret="somebody else's secret"))


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "bearer"])
def test_altered_body_is_refused(scheme: str) -> None:
    with pytest.raises(Refused):
        verify(source(scheme), signed(scheme), BODY + b" ")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "change", [lambda value: "", lambda value: value[:-1], lambda value: "%", lambda value: "ü" * 9]
)
def test_missing_cut_or_senseless_signature_is_refused(scheme: str, change: Any) -> None:
    with pytest.raises(Refused):
        verify(source(scheme), {name: change(value) for name, value in signed(scheme).items()})
    with pytest.raises(Refused):
        verify(source(scheme), {})


@pytest.mark.parametrize("scheme", ["stripe", "slack"])
@pytest.mark.parametrize("stamp", ["1799999699", "1800000301", "", "now", "1e9", "-1", "9" * 400])
def test_stale_or_senseless_timestamp_is_refused_though_signed(scheme: str, stamp: str) -> None:
    with pytest.raises(Refused):
        verify(source(scheme), signed(scheme, stamp=stamp))


@pytest.mark.parametrize("scheme", ["stripe", "slack"])
def test_timestamp_inside_the_tolerance_is_good(scheme: str) -> None:
    verify(source(scheme), signed(scheme, stamp="1799999701"))
    verify(source(scheme, tolerance_seconds=1000), signed(scheme, stamp="1799999100"))


def test_standard_webhooks_are_verified_by_their_own_rules() -> None:
    now = dt.datetime.now(dt.UTC)
    signature = Webhook(STANDARD).sign("msg_1", now.replace(tzinfo=None), BODY.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    other = "whsec_" + base64.b64encode(b"another secret, 24 bytes").decode()
    verify(source("standard"), headers, secrets=(other, STANDARD))
    for broken in (
        headers | {"webhook-id": "msg_2"},
        headers | {"webhook-signature": "v1"},
        headers | {"webhook-signature": "v1,%%%"},
        headers | {"webhook-timestamp": str(int(now.timestamp()) - 400)},
        {},
    ):
        with pytest.raises(Refused):
            verify(source("standard"), broken, secrets=(other, STANDARD))
    with pytest.raises(Refused):
        verify(source("standard"), headers, b"\xff\xfe", secrets=(STANDARD,))


def test_hmac_has_the_form_that_is_configured() -> None:
    made = source("hmac", header="X-Sig", algorithm="sha512", encoding="base64", prefix="v2 ", timestamp_header="X-At")
    raw = hmac.new(NEW.encode(), b"1800000000." + BODY, hashlib.sha512).digest()
    headers = {"x-sig": "v2 " + base64.b64encode(raw).decode(), "x-at": "1800000000"}
    verify(made, headers)
    for broken in (headers | {"x-sig": base64.b64encode(raw).decode()}, headers | {"x-at": "1800000001"}):
        with pytest.raises(Refused):
            verify(made, broken)


@pytest.mark.parametrize(
    ("made", "headers", "expected"),
    [
        (source("github"), {"x-github-delivery": "g1", "x-github-event": "push"}, ("g1", "push", "g1")),
        (source("stripe"), {}, ("evt_1", "paid", "evt_1")),
        (source("slack"), {}, ("Ev1", "message", "Ev1")),
        (source("standard"), {"webhook-id": "m1"}, ("m1", "paid", "m1")),
        (source("hmac", delivery="header:X-Id", key="json:event.type"), {"x-id": "7"}, ("7", "", "message")),
        (source("bearer", delivery="json:id", event_type="json:type"), {}, ("evt_1", "paid", "evt_1")),
    ],
    ids=lambda value: getattr(value, "scheme", ""),
)
def test_delivery_stands_where_its_sender_puts_it(made: Source, headers: Any, expected: Any) -> None:
    found = delivery(made, headers, BODY)
    assert (found.id, found.event_type, found.key) == expected


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"id": {"a": 1}}', b'{"id": ""}'])
def test_delivery_without_an_id_is_known_by_its_body(body: bytes) -> None:
    assert delivery(source("stripe"), {}, body).id == "sha256:" + hashlib.sha256(body).hexdigest()


def test_signatures_and_secrets_are_not_kept() -> None:
    made = source("hmac", header="X-Sig")
    headers = {"x-sig": "1", "authorization": "2", "cookie": "3", "stripe-signature": "4", "user-agent": "kept"}
    assert kept_headers(made, headers) == {"user-agent": "kept"}


def test_slacks_challenge_is_answered_for_slack_alone() -> None:
    body = b'{"type": "url_verification", "challenge": "c1"}'
    assert challenge(source("slack"), body) == "c1"
    assert challenge(source("slack"), BODY) is None
    assert challenge(source("github"), body) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[source.a]\nscheme = 'github'", "a: secrets: Field required"),
        ("[source.a]\nscheme = 'githab'\nsecrets = ['S']", "scheme"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['S']\nheader = 'X'", "belong to the scheme hmac alone"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['MISSING']", "MISSING, which is not set"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['SHORT']", "shorter than 16 characters"),
        ("[source.'A b']\nscheme = 'github'\nsecrets = ['S']", "name"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['S']\ndelivery = 'body'", "delivery"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['S']\ndelivery = 'json:a..b'", "delivery"),
        ("[source.a]\nscheme = 'github'\nsecrets = ['S']\ntopic = 'a b'", "topic"),
        ("", r"\[source.NAME\]"),
        ("x", "is not TOML"),
    ],
)
def test_wrong_file_is_refused_without_printing_a_secret(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "webhooks.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as error:
        load(path, {"S": NEW, "SHORT": "tiny-secret"})
    assert NEW not in str(error.value)
    assert "tiny-secret" not in str(error.value)


def test_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(NEW + "\n")
    path = tmp_path / "webhooks.toml"
    path.write_text("[source.a]\nscheme = 'github'\nsecrets = ['S']\n")
    ((_, keyring),) = load(path, {"S_FILE": str(tmp_path / "secret")})
    assert keyring.texts == (NEW,)
    assert NEW not in repr(keyring)


def test_standard_secret_that_is_no_base64_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="base64"):
        Verifier(source("standard"), Keyring(["whsec_%%%not base64 at all%%%x"]))


@pytest.mark.parametrize(
    ("one", "other"), [("a" * 300 + "1", "a" * 300 + "2"), ("a\u200bb", "ab"), ("\u200b", "\u200d")]
)
def test_two_deliveries_stay_two_whatever_their_ids_look_like(one: str, other: str) -> None:
    made = source("hmac", delivery="json:id", key="json:id")
    found = [delivery(made, {}, json.dumps({"id": item}).encode()) for item in (one, other)]
    assert found[0].id != found[1].id and all(len(item.id) <= 300 and item.id.isprintable() for item in found)
