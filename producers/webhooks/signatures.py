"""Whether a request is its source's own, and which delivery it is. Pure but for the clock it is given.

Comparisons take the same time wherever they differ. The schemes are those the senders document: GitHub signs the body
(`X-Hub-Signature-256`), Stripe `<t>.<body>` (`Stripe-Signature`), Slack `v0:<t>:<body>` (`X-Slack-Signature`), Standard
Webhooks through its authors' library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from consumer.errors import ConfigurationError
from producers.webhooks.sources import Keyring, Source

Headers = Mapping[str, str]
"""Header names in lower case."""

# Where each scheme's senders put the delivery ID and the event type.
_PLACES: Final = {
    "standard": ("header:webhook-id", "json:type"),
    "github": ("header:x-github-delivery", "header:x-github-event"),
    "stripe": ("json:id", "json:type"),
    "slack": ("json:event_id", "json:event.type"),
    "hmac": ("digest", ""),
    "bearer": ("digest", ""),
}
_SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_SIGNATURES: Final = frozenset(
    {"webhook-signature", "x-hub-signature", "x-hub-signature-256", "stripe-signature", "x-slack-signature"}
)
_LONGEST_ID: Final = 300
_SECONDS: Final = re.compile(r"[0-9]{1,12}")


class Refused(Exception):
    """A request that is not its source's own; the message is for the log, not for the sender."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What identifies a verified request."""

    id: str
    event_type: str
    key: str


class Verifier:
    """Verifies one source's requests."""

    def __init__(self, source: Source, keyring: Keyring) -> None:
        self._source = source
        self._keys = [text.encode() for text in keyring.texts]
        self._standard: list[Webhook] = []
        if source.scheme == "standard":
            try:
                self._standard = [Webhook(_key_bytes(text)) for text in keyring.texts]
            except (binascii.Error, ValueError) as error:
                raise ConfigurationError(
                    f"source {source.name}: a secret of Standard Webhooks is base64, with or without whsec_"
                ) from error

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """Pass, or raise.

        Raises:
            Refused: saying what does not fit.
        """
        match self._source.scheme:
            case "standard":
                self._verify_standard(headers, body)
            case "github":
                self._match("sha256", [body], [_needed(headers, "x-hub-signature-256").removeprefix("sha256=")])
            case "stripe":
                stamp, given = _stripe_parts(_needed(headers, "stripe-signature"))
                self._fresh(stamp, now)
                self._match("sha256", [stamp.encode(), b".", body], given)
            case "slack":
                stamp = _needed(headers, "x-slack-request-timestamp")
                self._fresh(stamp, now)
                given = [_needed(headers, "x-slack-signature").removeprefix("v0=")]
                self._match("sha256", [b"v0:", stamp.encode(), b":", body], given)
            case "hmac":
                self._verify_hmac(headers, body, now)
            case "bearer":
                scheme, _, token = _needed(headers, "authorization").partition(" ")
                if scheme.lower() != "bearer" or not _any_equal([token.strip().encode()], self._keys):
                    raise Refused("the bearer token is another one")

    def _verify_standard(self, headers: Headers, body: bytes) -> None:
        reason = "no secret"
        for webhook in self._standard:
            try:
                webhook.verify(body, dict(headers), json_parse=False)
                return
            except WebhookVerificationError as error:
                reason = str(error)
            except ValueError as error:
                # Not base64, not two parts, or a body that is no text: nothing the library has a word for.
                reason = f"the signature cannot be read: {type(error).__name__}"
        raise Refused(reason)

    def _verify_hmac(self, headers: Headers, body: bytes, now: float) -> None:
        source = self._source
        parts = [body]
        if source.timestamp_header is not None:
            stamp = _needed(headers, source.timestamp_header.lower())
            self._fresh(stamp, now)
            parts = [stamp.encode(), b".", body]
        given = _needed(headers, source.header.lower())
        if not given.startswith(source.prefix):
            raise Refused(f"{source.header} does not begin with {source.prefix!r}")
        self._match(source.algorithm, parts, [given.removeprefix(source.prefix)], source.encoding)

    def _match(self, algorithm: str, parts: Iterable[bytes], given: Iterable[str], encoding: str = "hex") -> None:
        message = b"".join(parts)
        expected = [hmac.new(key, message, getattr(hashlib, algorithm)).digest() for key in self._keys]
        if not _any_equal([_decoded(text, encoding) for text in given], expected):
            raise Refused("the signature is another one")

    def _fresh(self, stamp: str, now: float) -> None:
        if not _SECONDS.fullmatch(stamp):
            raise Refused("the timestamp is no number of seconds")
        age = now - int(stamp)
        if abs(age) > self._source.tolerance_seconds:
            raise Refused(f"the timestamp is {abs(age):.0f} s {'old' if age > 0 else 'ahead'}")


def delivery(source: Source, headers: Headers, body: bytes) -> Delivery:
    """The delivery ID, event type and key of a verified request; the body's digest where its place holds nothing."""
    place, kind = _PLACES[source.scheme]
    places = (source.delivery or place, source.event_type or kind, source.key)
    document = _document(body) if any(item.startswith("json:") for item in places) else None
    identity, event_type, key = (_bounded(_at(item, headers, document)) for item in places)
    identity = identity or f"sha256:{hashlib.sha256(body).hexdigest()}"
    return Delivery(identity, event_type, key or identity)


def is_digested(source: Source) -> bool:
    """Whether the delivery ID is the body's digest by declaration, so that two requests with one body are one."""
    return (source.delivery or _PLACES[source.scheme][0]) == "digest"


def kept_headers(source: Source, headers: Headers) -> dict[str, str]:
    """The headers that may be stored: without signatures and secrets."""
    hidden = _SECRET_HEADERS | _SIGNATURES | {source.header.lower()}
    return {name: value for name, value in headers.items() if name not in hidden}


def challenge(source: Source, body: bytes) -> str | None:
    """What Slack wants to hear when an endpoint is registered; None for any other request."""
    if source.scheme != "slack":
        return None
    document = _document(body)
    if isinstance(document, dict) and document.get("type") == "url_verification":
        return str(document.get("challenge", ""))
    return None


def _key_bytes(text: str) -> bytes:
    # The library skips what is no base64, and would work with the rest.
    text = text.removeprefix("whsec_")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _any_equal(given: Iterable[bytes], expected: Iterable[bytes]) -> bool:
    known = list(expected)
    # All of them, always: the time must not tell which secret was nearly right.
    equal = [hmac.compare_digest(item, other) for item in given for other in known]
    return True in equal


def _needed(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if not value:
        raise Refused(f"the header {name} is missing")
    return value


def _decoded(text: str, encoding: str) -> bytes:
    try:
        return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _stripe_parts(text: str) -> tuple[str, list[str]]:
    pairs = [part.strip().partition("=") for part in text.split(",")]
    stamp = next((value for name, _, value in pairs if name == "t"), "")
    return stamp, [value for name, _, value in pairs if name == "v1"]


def _document(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _at(place: str, headers: Headers, document: Any) -> str:
    kind, _, path = place.partition(":")
    if kind == "header":
        return headers.get(path.lower(), "")
    if kind != "json":
        return ""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return str(document) if isinstance(document, str | int) and not isinstance(document, bool) else ""


def _bounded(text: str) -> str:
    """A text that can be shown and stored. What is lost of it stays in a digest: two IDs must not become one."""
    kept = "".join(character for character in text if character.isprintable())
    if kept == text and len(text) <= _LONGEST_ID:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{kept[: _LONGEST_ID - len(digest) - 1]}~{digest}"
