"""The HTTP layer: never a redirect, never more than its bound, and one error for everything below HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from consumer import http
from consumer.errors import ConfigurationError, Outage
from tests.scripted_model import Endpoint, Reply, serve

PATH = "/v1/chat/completions"


@pytest.fixture
def slow() -> Iterator[Endpoint]:
    with serve(Reply(body={"ok": True}, headers={"X-Two": "a"}, delay_seconds=0.05)) as endpoint:
        yield endpoint


def address(endpoint: Endpoint) -> str:
    return f"http://127.0.0.1:{endpoint.port}{PATH}"


async def test_both_clients_give_status_headers_and_body(slow: Endpoint) -> None:
    async with http.open_async("registry") as client:
        first = await client.request("POST", address(slow), content=b"x", headers={"X-Mine": "1"})
    with http.open_sync("registry") as blocking:
        second = await asyncio.to_thread(blocking.request, "POST", address(slow), content=b"x")
    assert first == second and first.ok and first.json() == {"ok": True} and first.headers["x-two"] == "a"
    assert slow.calls[0].headers["x-mine"] == "1" and slow.calls[0].body == b"x"


async def test_connections_are_used_again_and_bounded_when_idle(slow: Endpoint) -> None:
    async with http.open_async("model", idle_connections=3) as client:
        for _ in range(2):
            await asyncio.gather(*[client.request("GET", address(slow)) for _ in range(10)])
        for _ in range(200):
            if len(slow.connections) > 3:
                await asyncio.sleep(0.01)
        assert len(slow.connections) == 3


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    with serve(Reply(body={}, status=status, headers={"location": "/elsewhere"})) as endpoint:
        async with http.open_async("connect") as client:
            response = await client.request("GET", address(endpoint))
    assert response.status == status and not response.ok and len(endpoint.calls) == 1


async def test_no_cookie_is_kept() -> None:
    with serve(Reply(body={}, headers={"set-cookie": "a=b; Path=/"})) as endpoint:
        async with http.open_async("model") as client:
            for _ in range(2):
                await client.request("GET", address(endpoint))
        with http.open_sync("model") as blocking:
            for _ in range(2):
                blocking.request("GET", address(endpoint))
    assert len(endpoint.calls) == 4 and not [call for call in endpoint.calls if "cookie" in call.headers]


async def test_the_environment_names_no_proxy(slow: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with http.open_async("model") as client:
        assert (await client.request("GET", address(slow))).ok
    with http.open_sync("model") as blocking:
        assert blocking.request("GET", address(slow)).ok


async def test_silence_is_an_outage() -> None:
    with serve(Reply(body={}, delay_seconds=5)) as endpoint:
        async with http.open_async("registry", read_seconds=0.1) as client:
            with pytest.raises(Outage) as raised:
                await client.request("GET", address(endpoint))
        with http.open_sync("connect", read_seconds=0.1) as blocking, pytest.raises(Outage, match="connect"):
            blocking.request("GET", address(endpoint))
    assert (raised.value.dependency, raised.value.code) == ("registry", "timeout")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body={}, cut_after=0),
        Reply(body={"a": 1}, cut_after=3),
        Reply(body="no gzip", headers={"content-encoding": "gzip"}),
        Reply(body=" " * (http.BODY_LIMIT + 1)),
    ],
    ids=["cut before", "cut inside", "gzip", "too long"],
)
async def test_a_broken_answer_is_an_outage(reply: Reply) -> None:
    with serve(reply) as endpoint:
        async with http.open_async("model") as client:
            with pytest.raises(Outage) as raised:
                await client.request("GET", address(endpoint))
        with http.open_sync("model") as blocking, pytest.raises(Outage):
            blocking.request("GET", address(endpoint))
    assert raised.value.code == "transport"


async def test_no_listener_is_an_outage_and_the_query_is_not_shown() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with http.open_async("model") as client:
            with pytest.raises(Outage) as raised:
                await client.request("GET", f"http://127.0.0.1:{unused.getsockname()[1]}/x?key=abc")
    assert "127.0.0.1" in str(raised.value) and "abc" not in str(raised.value)


@pytest.mark.parametrize("headers", [{"x": "a\nb"}, {"x": "secret-\u20ac"}, {"bad name": "x"}])
async def test_a_header_that_cannot_be_sent_is_refused_without_its_text(
    slow: Endpoint, headers: dict[str, str]
) -> None:
    async with http.open_async("model") as client:
        with pytest.raises(ConfigurationError) as raised:
            await client.request("GET", address(slow), headers=headers)
    assert "secret" not in str(raised.value) and slow.calls == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host:8443/v1?key=x#y", "https://host:8443/v1"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("http://host", "http://host"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert http.without_secrets(url) == shown
