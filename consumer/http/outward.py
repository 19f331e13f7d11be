"""Agents' calls to the outside: one connection a call, to an address that has been checked, with a last word before
the first byte leaves.

No proxy, no `.netrc`, no cookies, no redirects; `Accept-Encoding: identity`, so that no answer unpacks to more than it
weighs. `leaving` is called when the connection stands and nothing has been written: whoever keeps the ledger writes
SENT there, and what fails before it is known not to have been sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from consumer.errors import AgentError, HttpBlocked, RowcallError
from consumer.http import USER_AGENT, certificates
from consumer.http.addresses import Directions

_CONNECT_SECONDS: Final = 10.0
_LEAVING: Final = "http11.send_request_headers.started"
Leaving = Callable[[], Awaitable[None]]


class HttpFailed(RowcallError):
    """No status came back. `left` tells whether any byte of the request may have left this process."""

    def __init__(self, message: str, *, code: str, left: bool) -> None:
        super().__init__(message, code=code)
        self.left = left


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it leaves, secrets in it. `seconds` is its whole deadline, `body_limit` in bytes of the answer."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes
    seconds: float
    body_limit: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """What came back; `whole` is False where the body was cut at the limit or by the network."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    whole: bool


class Outward:
    """Sends agents' requests; holds nothing but the rules of where they may go."""

    def __init__(self, directions: Directions) -> None:
        self._directions = directions

    async def send(self, request: Outgoing, leaving: Leaving) -> Incoming:
        """Send one request once and read its answer.

        Raises:
            HttpFailed: no status came back.
            HttpBlocked: the address is not allowed; nothing was sent.
            AgentError: it cannot be sent over HTTP at all; nothing was sent.
        """
        journey = _Journey(leaving)
        try:
            async with asyncio.timeout(request.seconds):
                return await self._send(request, journey)
        except TimeoutError as error:
            # What has arrived until then counts: a status is an answer.
            if journey.response is not None:
                return journey.answer(whole=False)
            text = f"no answer within {request.seconds:g} s" if journey.left else "no connection in time"
            raise HttpFailed(text, code="http_timeout", left=journey.left) from error

    async def _send(self, request: Outgoing, journey: _Journey) -> Incoming:
        url = read_url(request.url)
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        self._directions.check_host(host)
        addresses = await _resolve(host, url.port or _port(url))
        self._directions.check(host, addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._exchange(_addressed(request, url, host, address, journey), request, journey)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
            except httpx.LocalProtocolError:
                # Found when the head was put together, before any of it was written; its text may hold the secret.
                raise AgentError("method or headers of the call cannot be sent over HTTP") from None
            except httpx.HTTPError as error:
                raise _failed(error, journey) from error
        raise HttpFailed(_said(failure), code="http_connect", left=False) from failure

    async def _exchange(self, outgoing: httpx.Request, request: Outgoing, journey: _Journey) -> Incoming:
        transport = httpx.AsyncHTTPTransport(verify=certificates(), trust_env=False)
        try:
            journey.response = response = await transport.handle_async_request(outgoing)
            whole = True
            try:
                assert isinstance(response.stream, httpx.AsyncByteStream)
                async for chunk in response.stream:
                    journey.body += chunk
                    if len(journey.body) > request.body_limit:
                        whole = False
                        break
            except httpx.HTTPError:
                whole = False
            del journey.body[request.body_limit :]
            return journey.answer(whole=whole)
        finally:
            await transport.aclose()


class _Journey:
    """How far one request has come."""

    def __init__(self, leaving: Leaving) -> None:
        self._leaving = leaving
        self.left = False
        self.response: httpx.Response | None = None
        self.body = bytearray()

    async def trace(self, event: str, details: Any) -> None:
        """Called by httpcore at each stage; an exception from here ends the request before that stage."""
        if event == _LEAVING:
            await self._leaving()
            self.left = True

    def answer(self, *, whole: bool) -> Incoming:
        """What has been read."""
        assert self.response is not None
        return Incoming(self.response.status_code, dict(self.response.headers), bytes(self.body), whole)


def read_url(text: str) -> httpx.URL:
    """The URL of a call.

    Raises:
        AgentError: not http or https, no host, or a user in it.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError, TypeError, ValueError):
        raise AgentError("the URL of a call cannot be read") from None
    if url.scheme not in ("http", "https"):
        raise AgentError(f"a call must go to http:// or https://, not to scheme {url.scheme[:20]!r}")
    if not url.raw_host or b"%" in url.raw_host:
        raise AgentError("the URL of a call must name a host, without a zone")
    if url.userinfo:
        raise AgentError("a URL holds no user or password: give a header and `secret`")
    return url


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, each once, as the system gives them; decimal, octal and hexadecimal forms too."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HttpFailed(f"{host} has no address: {error}", code="http_dns", left=False) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if any("%" in address for address in addresses):
        raise HttpBlocked(f"{host} leads to an address of one link only")
    return addresses


def _addressed(request: Outgoing, url: httpx.URL, host: str, address: str, journey: _Journey) -> httpx.Request:
    """The request to one checked address; Host and the name in TLS stay those of the URL."""
    target = url.copy_with(host=address)
    if ipaddress.ip_address(target.raw_host.decode("ascii").strip("[]")) != ipaddress.ip_address(address):
        raise HttpBlocked(f"{address} cannot be called as such")
    headers = {"user-agent": USER_AGENT, "accept": "application/json, */*;q=0.5"} | dict(request.headers)
    headers |= {"host": url.netloc.decode("ascii"), "accept-encoding": "identity", "connection": "close"}
    timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS).as_dict()
    try:
        return httpx.Request(
            request.method,
            target,
            headers=headers,
            content=request.content,
            extensions={"sni_hostname": host.strip("[]"), "trace": journey.trace, "timeout": timeout},
        )
    except (UnicodeError, ValueError, TypeError):
        # Without its text: the header may be the secret.
        raise AgentError("a header of the call cannot be sent over HTTP") from None


def _failed(error: httpx.HTTPError, journey: _Journey) -> RowcallError:
    if isinstance(error, httpx.TimeoutException):
        return HttpFailed(_said(error), code="http_timeout", left=journey.left)
    return HttpFailed(_said(error), code="http_broken" if journey.left else "http_connect", left=journey.left)


def _said(error: Exception | None) -> str:
    return "the host has no address" if error is None else str(error) or type(error).__name__


def _port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80
