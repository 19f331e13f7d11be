"""HTTP, for the model client, the schema registry and Kafka Connect; agents' calls have `outward` and its `addresses`.

The only package that imports httpx. It gives them an asynchronous and a synchronous client which never follow redirects
(a redirect would carry the key to another host), bound the size of every answer, and turn every failure below HTTP into
`Outage`. A status is never an error here: the callers know what theirs mean.

The environment is not trusted for more than certificates: `SSL_CERT_FILE` and `SSL_CERT_DIR` hold, `*_PROXY` and
`.netrc` do not, because a line in either could send the key, or another one, elsewhere without any setting saying so.
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import ModuleType, TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit, urlunsplit

import httpx
import orjson

from consumer.errors import ConfigurationError, Outage

# Bytes of one answer after decompression: a thousand times a usual one, and small against a worker's memory.
BODY_LIMIT: Final = 8 * 1024 * 1024
# Seconds an idle connection is kept; below the 60 s at which common load balancers drop theirs.
IDLE_SECONDS: Final = 30.0
USER_AGENT: Final = "rowcall"

# httpx writes one line for each request, and httpcore's debug lines hold the headers of each answer.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

# httpcore tries to import sniffio, which it does not need, for each of its locks; where it is not installed, each try
# searches the whole path: 300 µs of a call's 1,000. None is Python's own mark for "known to be absent".
if importlib.util.find_spec("sniffio") is None:
    cast("dict[str, ModuleType | None]", sys.modules)["sniffio"] = None


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: status, headers by lower-case name (repeated ones joined by a comma), the decompressed body."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: when it is not JSON.
        """
        return orjson.loads(self.content)


class AsyncHttp:
    """An asynchronous client of one dependency; keeps its connections until `aclose`."""

    def __init__(self, client: httpx.AsyncClient, dependency: str) -> None:
        self._client = client
        self._dependency = dependency

    async def request(
        self, method: str, url: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send one request and read its whole answer.

        Raises:
            Outage: code `timeout` or `transport`, also when the answer is longer than BODY_LIMIT.
            ConfigurationError: when URL or headers cannot be sent at all.
        """
        with _mapped(self._dependency, url):
            request = httpx.Request(method, url, headers=_headers(headers), content=content, extensions=self._timeouts)
            response = await self._client.send(request, stream=True)
            try:
                chunks, size = [], 0
                async for chunk in response.aiter_bytes():
                    size = _bounded(size + len(chunk), self._dependency)
                    chunks.append(chunk)
            finally:
                await response.aclose()
        return _response(response, b"".join(chunks))

    @property
    def _timeouts(self) -> dict[str, Any]:
        return {"timeout": self._client.timeout.as_dict()}

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class SyncHttp:
    """The same, blocking; for threads and commands. Safe to share between threads."""

    def __init__(self, client: httpx.Client, dependency: str) -> None:
        self._client = client
        self._dependency = dependency

    def request(
        self, method: str, url: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """As `AsyncHttp.request`."""
        with _mapped(self._dependency, url):
            request = httpx.Request(method, url, headers=_headers(headers), content=content, extensions=self._timeouts)
            response = self._client.send(request, stream=True)
            try:
                chunks, size = [], 0
                for chunk in response.iter_bytes():
                    size = _bounded(size + len(chunk), self._dependency)
                    chunks.append(chunk)
            finally:
                response.close()
        return _response(response, b"".join(chunks))

    @property
    def _timeouts(self) -> dict[str, Any]:
        return {"timeout": self._client.timeout.as_dict()}

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_async(
    dependency: str,
    *,
    connect_seconds: float = 10.0,
    read_seconds: float | None = 30.0,
    idle_connections: int = 256,
) -> AsyncHttp:
    """A client for `dependency` (model, registry, connect).

    `read_seconds` bounds the silence between two reads, not the call; pass None where the caller keeps a total
    deadline. There is no bound on connections in use: the number of runs in flight is one already.
    """
    timeout = httpx.Timeout(read_seconds, connect=connect_seconds)
    client = httpx.AsyncClient(
        transport=_Lanes(idle_connections),
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
        cookies=_no_cookies(),
    )
    return AsyncHttp(client, dependency)


def open_sync(dependency: str, *, connect_seconds: float = 10.0, read_seconds: float | None = 30.0) -> SyncHttp:
    """The blocking client for `dependency`."""
    timeout = httpx.Timeout(read_seconds, connect=connect_seconds)
    client = httpx.Client(
        timeout=timeout, follow_redirects=False, trust_env=False, verify=certificates(), cookies=_no_cookies()
    )
    return SyncHttp(client, dependency)


def without_secrets(url: str) -> str:
    """`url` as it may be shown: without user, password, query and fragment.

    Raises:
        ConfigurationError: when it is not an http or https URL.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise ConfigurationError("a URL has an impossible host or port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"a URL must be http://host or https://host, not of scheme {parts.scheme!r}")
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, host + port, parts.path, "", ""))


class _Lanes(httpx.AsyncBaseTransport):
    """One connection a lane, the last freed lane first.

    httpcore's pool looks at every connection for every request, squared where many are idle: with 256 in flight that
    was most of the time spent. A pool of one has nothing to look through.
    """

    def __init__(self, idle: int) -> None:
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._idle_limit = idle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._idle.pop() if self._idle else _lane()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            await lane.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _LaneStream(response.stream, lane, self)
        return response

    async def free(self, lane: httpx.AsyncHTTPTransport) -> None:
        """Take a lane back whose answer has been read or given up (then httpcore has closed its connection)."""
        if len(self._idle) < self._idle_limit:
            self._idle.append(lane)
        else:
            await lane.aclose()

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()


class _LaneStream(httpx.AsyncByteStream):
    """The body of an answer, which frees its lane when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, lane: httpx.AsyncHTTPTransport, lanes: _Lanes) -> None:
        self._stream = stream
        self._lane = lane
        self._lanes = lanes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except BaseException:
            await self._lane.aclose()
            raise
        await self._lanes.free(self._lane)


def _lane() -> httpx.AsyncHTTPTransport:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS)
    return httpx.AsyncHTTPTransport(verify=certificates(), trust_env=False, limits=limits)


def _no_cookies() -> CookieJar:
    """A jar that keeps nothing: one call must not carry what another was given."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@cache
def certificates() -> ssl.SSLContext:
    """What servers are verified against."""
    # Reading the certificates takes 20 ms and megabytes: once a process.
    return httpx.create_ssl_context()


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"user-agent": USER_AGENT, "accept": "application/json", "accept-encoding": "gzip, deflate"} | {
        name.lower(): value for name, value in (headers or {}).items()
    }


def _response(response: httpx.Response, content: bytes) -> Response:
    return Response(response.status_code, dict(response.headers), content)


def _bounded(size: int, dependency: str) -> int:
    if size > BODY_LIMIT:
        raise Outage(f"the answer is longer than {BODY_LIMIT} bytes", dependency=dependency, code="transport")
    return size


@contextmanager
def _mapped(dependency: str, url: str) -> Iterator[None]:
    """Turn httpx's errors into ours; a refused header's text stays out of the message, for it may be the key."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise Outage(
            f"{dependency} at {without_secrets(url)}: {type(error).__name__}", dependency=dependency, code="timeout"
        ) from error
    except (httpx.LocalProtocolError, httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeEncodeError):
        raise ConfigurationError(f"{dependency}: the URL or a header cannot be sent over HTTP") from None
    except (httpx.RequestError, httpx.StreamError) as error:
        text = str(error) or type(error).__name__
        raise Outage(
            f"{dependency} at {without_secrets(url)}: {text}", dependency=dependency, code="transport"
        ) from error
