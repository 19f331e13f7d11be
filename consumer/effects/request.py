"""An agent's request, checked and described before anything is planned: what is kept of it, and what leaves.

Secrets come in by name. What is kept (URL, digest, texts) holds the names; the values are read from the environment
when the request leaves, and are taken out of whatever comes back.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import json
import os
import re
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urljoin, urlsplit, urlunsplit

import orjson
from pydantic import BaseModel

from consumer.agents.effects import Reconcile, Secret
from consumer.errors import AgentError, ConfigurationError
from consumer.http.outward import read_url

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Final = SAFE | {"POST", "PUT", "PATCH", "DELETE"}
# What describes the connection or the framing is not an agent's.
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "expect"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# Names of headers and of query parameters whose values nobody should see, given as secrets or not.
_SECRET_NAME: Final = re.compile(
    r"auth|cookie|token|secret|passw|pwd|signature|credential|session|api[-_]?key|access[-_]?key|^(key|sig|code)$",
    re.IGNORECASE,
)
MASK: Final = "***"
# A shorter value is a placeholder, and masking it would only garble texts.
_SHORTEST_SECRET: Final = 6
_KEY_LIMIT: Final = 500
_URL_LIMIT: Final = 8_000
_MOST_REDIRECTS: Final = 20
Text = str | Secret


@dataclass(frozen=True, slots=True)
class Request:
    """A call as its agent asked for it. `digest` is of all that makes it this very request, secrets by name."""

    method: str
    url: str
    params: Sequence[tuple[str, Text]]
    headers: Mapping[str, Text]
    content: bytes
    key: str
    digest: bytes
    idempotent: bool
    key_header: str
    seconds: float | None
    accept: Container[int]
    redirects: int
    reconcile: Reconcile | None

    @property
    def safe(self) -> bool:
        """Whether it only reads."""
        return self.method in SAFE

    @property
    def shown(self) -> str:
        """The URL as it is kept."""
        return _address(self.url, [(name, _kept(name, value)) for name, value in [*_query(self.url), *self.params]])

    @property
    def endpoint(self) -> str:
        """The URL without its query, as call records have it."""
        return self.shown.partition("?")[0]

    def redirected(self, location: str) -> Request:
        """The same request to where the server sends it; to another origin without anything secret.

        Raises:
            AgentError: that is no address, or one without the encryption of the first.
        """
        try:
            url = urljoin(self.url, location)
        except ValueError:
            raise AgentError("a redirect leads to what is no address") from None
        here, there = read_url(self.url), read_url(url)
        if here.scheme == "https" and there.scheme == "http":
            raise AgentError("a redirect from https to http is not followed")
        headers = dict(self.headers)
        if (here.scheme, here.raw_host, here.port) != (there.scheme, there.raw_host, there.port):
            headers = {name: value for name, value in headers.items() if not _is_secret(name, value)}
        return replace(self, url=url, params=(), headers=headers)


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves, and how to take its secrets out of what comes back."""

    url: str
    headers: Mapping[str, str]
    secrets: Sequence[str]

    @property
    def forms(self) -> list[str]:
        """The secrets, longest first, in the forms they may be met in.

        Plain, in JSON, in a URL of either kind, and in Python's own notation, which errors have.
        """
        return [
            form
            for value in self.secrets
            for form in (
                value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value, safe="*[]"), _noted(value)
            )
        ]  # fmt: skip

    def masked(self, text: str) -> str:
        """`text` without the secrets."""
        for form in self.forms:
            text = text.replace(form, MASK)
        return text

    def masked_body(self, content: bytes, *, whole: bool) -> bytes:
        """`content` without the secrets; where it is not whole, without the part of one at its end."""
        forms = [form.encode() for form in self.forms]
        for form in forms:
            content = content.replace(form, MASK.encode())
        if whole:
            return content
        cut = max((_overlap(content, form) for form in forms), default=0)
        return content[: len(content) - cut]


def read(
    method: str,
    url: str,
    *,
    key: object = None,
    json: Any = None,
    content: bytes | str | None = None,
    headers: Mapping[str, Text] | None = None,
    params: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    key_header: str = "Idempotency-Key",
    timeout: float | None = None,
    accept: Container[int] = (),
    redirects: int = 0,
    reconcile: Reconcile | None = None,
) -> Request:
    """Check an agent's call and describe it.

    Raises:
        AgentError: it cannot be sent as it is; says what to change.
    """
    method = method.upper()
    if method not in _METHODS:
        raise AgentError(f"ctx.http knows no method {method[:20]!r}; it has {', '.join(sorted(_METHODS))}")
    if redirects and method not in SAFE:
        raise AgentError("redirects are followed for GET and HEAD only: an effect has one address")
    read_url(url)
    if len(url) > _URL_LIMIT:
        raise AgentError(f"a URL has at most {_URL_LIMIT} characters")
    if timeout is not None and not timeout > 0:
        raise AgentError("timeout is a number of seconds above 0")
    _check_answers(accept, redirects, reconcile)
    texts = _headers(headers)
    pairs = [(str(name), value if isinstance(value, Secret) else str(value)) for name, value in (params or {}).items()]
    body, kind = _body(json, content)
    if kind is not None:
        texts.setdefault("content-type", kind)
    if not _TOKEN.fullmatch(key_header):
        raise AgentError(f"{key_header!r} is no name of a header")
    return Request(
        method, url, pairs, texts, body, _key(key), _digest(method, url, pairs, texts, body), idempotent, key_header,
        timeout, accept, redirects, reconcile,
    )  # fmt: skip


def departure(request: Request, *, idempotency_key: str | None) -> Departure:
    """Put the secrets in, from the environment as it is now.

    Raises:
        ConfigurationError: a secret is not set; names the variable.
        AgentError: its value cannot stand in a header.
    """
    values = {name: _value(value) for name, value in request.headers.items()}
    query = [(name, _value(value)) for name, value in request.params]
    if idempotency_key is not None:
        values[request.key_header.lower()] = idempotency_key
    for name, value in values.items():
        if not _VALUE.fullmatch(value):
            raise AgentError(f"the value of header {name} cannot be sent over HTTP")
    found = list[str]()
    for name, given in [*request.headers.items(), *request.params, *_query(request.url)]:
        if isinstance(given, Secret):
            found.append(_environment(given.name))
        elif _is_secret(name, given):
            # The value alone too: an error seldom repeats the scheme before it.
            found += [given, given.partition(" ")[2]]
    secrets = sorted({text for text in found if len(text) >= _SHORTEST_SECRET}, key=len, reverse=True)
    url = _address(request.url, [*_query(request.url), *query]) if query else request.url
    return Departure(url, values, secrets)


def _check_answers(accept: object, redirects: object, reconcile: object) -> None:
    """What is looked at when the call has happened is checked before."""
    if isinstance(accept, str | bytes) or not isinstance(accept, Container):
        raise AgentError("accept is a collection of statuses, such as {404, 409}")
    if type(redirects) is not int or not 0 <= redirects <= _MOST_REDIRECTS:
        raise AgentError(f"redirects is a whole number from 0 to {_MOST_REDIRECTS}")
    if reconcile is not None and not callable(reconcile):
        raise AgentError("reconcile is a function of an Effect")


def _headers(headers: Mapping[str, Text] | None) -> dict[str, Text]:
    checked: dict[str, Text] = {}
    for name, value in (headers or {}).items():
        if not _TOKEN.fullmatch(name):
            raise AgentError(f"{name[:50]!r} is no name of a header")
        if name.lower() in _OURS:
            raise AgentError(f"header {name} is set by Rowcall")
        if not isinstance(value, Secret) and not (isinstance(value, str) and _VALUE.fullmatch(value)):
            raise AgentError(f"the value of header {name} must be one line of text, or a `secret`")
        checked[name.lower()] = value
    return checked


def _body(value: Any, content: bytes | str | None) -> tuple[bytes, str | None]:
    if content is not None and value is not None:
        raise AgentError("a call has json or content, not both")
    if content is not None:
        return (content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)), None
    if value is None:
        return b"", None
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    try:
        # Not orjson, which makes null of NaN.
        text = json.dumps(plain, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode(), "application/json"
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(f"json of the call cannot be written: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Secret):
        raise TypeError("a secret cannot stand in a body, which is part of the record")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal | uuid.UUID):
        # Exact, as text.
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def _key(key: object) -> str:
    text = "" if key is None else str(key)
    if len(text) > _KEY_LIMIT or "\x00" in text or text.encode("utf-8", "replace").decode() != text:
        raise AgentError(f"the key of a call has at most {_KEY_LIMIT} storable characters")
    return text


def _digest(
    method: str, url: str, params: Sequence[tuple[str, Text]], headers: Mapping[str, Text], body: bytes
) -> bytes:
    described = [method, url, [[name, str(value)] for name, value in params],
                 sorted([name, str(value)] for name, value in headers.items())]  # fmt: skip
    return hashlib.sha256(orjson.dumps(described) + b"\n" + body).digest()


def _value(value: Text) -> str:
    return value.form.replace("{}", _environment(value.name)) if isinstance(value, Secret) else value


def _overlap(content: bytes, form: bytes) -> int:
    """How many bytes at the end of `content` are a beginning of `form`."""
    return next((size for size in range(len(form) - 1, 0, -1) if content.endswith(form[:size])), 0)


def _noted(value: str) -> str:
    return repr(value.encode())[2:-1]


def _environment(name: str) -> str:
    path = os.environ.get(f"{name}_FILE")
    if path is None:
        if not os.environ.get(name):
            raise ConfigurationError(f"secret {name} is not set: give {name} or {name}_FILE to the worker")
        return os.environ[name]
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{name}_FILE cannot be read: {type(error).__name__}") from error


def _is_secret(name: str, value: Text) -> bool:
    return isinstance(value, Secret) or _SECRET_NAME.search(name) is not None


def _kept(name: str, value: Text) -> str:
    if isinstance(value, Secret):
        return value.shown
    return MASK if _SECRET_NAME.search(name) else value


def _query(url: str) -> list[tuple[str, str]]:
    return list(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _address(url: str, query: Sequence[tuple[str, Any]]) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query, safe="*[]"), ""))
