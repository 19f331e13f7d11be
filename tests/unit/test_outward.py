"""Agents' calls go only where they may: every form of a private address, rebinding names, redirects, other schemes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from typing import Any

import pytest

from consumer.errors import AgentError, ConfigurationError, HttpBlocked, LeaseLost
from consumer.http import certificates
from consumer.http import outward as module
from consumer.http.addresses import Directions, is_public
from consumer.http.outward import HttpFailed, Incoming, Outgoing, Outward
from tests.agents.shared import receiver
from tests.receiver import Receiver

__all__ = ["receiver"]

PRIVATE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.9.10", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.1",
    "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254",
    "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:a00:1::1",
    "2001:0:7f00:1::", "2001:0:5ef5:79fb:0:0:f5ff:fffe", "2001:db8::1", "2607:f8b0::5efe:a00:1", "100::1", "3fff::1",
    "fe80::5efe:808:808", "fd00:ec2::5efe:808:808", "64:ff9b:1:7f00:0:100:808:808",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "2606:4700::1111",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "::ffff:8.8.8.8",
    "2607:f8b0::5efe:808:808",
]
# Notations of 127.0.0.1 and 169.254.169.254 that a resolver takes.
NOTATIONS = [
    "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
    "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "localhost", "LOCALHOST", "127.0.0.1.",
]  # fmt: skip


async def nothing() -> None:
    pass


def get(url: str, **changed: Any) -> Outgoing:
    values: dict[str, Any] = {"headers": {}, "content": b"", "seconds": 5.0, "body_limit": 10_000}
    return Outgoing("GET", url, **(values | changed))


def send(url: str, *, allow: tuple[str, ...] = (), only: tuple[str, ...] = (), **changed: Any) -> Incoming:
    return asyncio.run(Outward(Directions.read(allow, only)).send(get(url, **changed), nothing))


@pytest.mark.parametrize("text", PRIVATE)
def test_an_address_that_is_not_the_internets_is_blocked_in_every_form(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    with pytest.raises(HttpBlocked, match="ROWCALL_HTTP_ALLOW"):
        Directions().check("host.example", [text])


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_not(text: str) -> None:
    Directions().check("host.example", [text])


def test_one_private_address_among_public_ones_blocks_the_host() -> None:
    with pytest.raises(HttpBlocked):
        Directions().check("host.example", ["8.8.8.8", "10.0.0.1"])


@pytest.mark.parametrize("host", NOTATIONS)
def test_no_notation_of_a_local_address_gets_through(receiver: Receiver, host: str) -> None:
    # Octal is no URL for our parser; a system whose resolver does not take the others has no address for them.
    with pytest.raises((HttpBlocked, HttpFailed, AgentError)) as caught:
        send(f"http://{host}:{receiver.port}/")
    assert caught.value.code in ("http_blocked", "http_dns", "agent_error")
    assert receiver.asked == []


def test_what_the_settings_allow_gets_through_and_no_more(receiver: Receiver) -> None:
    assert send(f"{receiver.url}/", allow=("127.0.0.0/8",)).status == 200
    assert send(f"http://localhost:{receiver.port}/", allow=("localhost",)).status == 200
    with pytest.raises(HttpBlocked):
        send(f"{receiver.url}/", allow=("10.0.0.0/8", "localhost"))
    with pytest.raises(HttpBlocked, match="ROWCALL_HTTP_HOSTS"):
        send(f"{receiver.url}/", allow=("127.0.0.1",), only=("api.example.com",))


def test_names_are_compared_whole_or_below_a_dot() -> None:
    directions = Directions.read((), ("*.example.com", "api.test"))
    directions.check_host("a.example.com")
    directions.check_host("api.test")
    for host in ("example.com", "evilexample.com", "api.test.evil", "xapi.test"):
        with pytest.raises(HttpBlocked):
            directions.check_host(host)


@pytest.mark.parametrize("entry", ["http://x", "a b", "*", "", "10.0.0.0/99", "user@host"])
def test_a_setting_that_is_no_host_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="ROWCALL_HTTP_ALLOW"):
        Directions.read((entry,), ())


def test_a_name_that_changes_its_address_after_the_check_gains_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answer is good, every later one is loopback; the connection goes to the first."""
    answers = [["203.0.113.7"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(module, "_resolve", resolve)
    # Read before, so that the time is the connection's alone.
    certificates()
    with pytest.raises(HttpFailed) as caught:
        send(f"http://rebind.example:{receiver.port}/", allow=("203.0.113.0/24",), seconds=2.0)
    assert not caught.value.left and receiver.asked == []


def test_the_host_header_stays_that_of_the_url(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(module, "_resolve", resolve)
    assert send(f"http://crm.example:{receiver.port}/x", allow=("crm.example",)).status == 200
    assert receiver.asked[0][2]["host"] == f"crm.example:{receiver.port}"


def test_tls_asks_for_the_name_of_the_url_and_not_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(module, "_resolve", resolve)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        seen: list[bytes] = []

        async def play() -> None:
            async def accept() -> None:
                client, _ = await asyncio.get_running_loop().run_in_executor(None, listener.accept)
                seen.append(await asyncio.to_thread(client.recv, 4096))
                client.close()

            task = asyncio.create_task(accept())
            url = f"https://crm.example:{listener.getsockname()[1]}/"
            with pytest.raises(HttpFailed) as caught:
                await Outward(Directions.read(("crm.example",), ())).send(get(url), nothing)
            assert not caught.value.left
            await task

        asyncio.run(play())
    assert b"crm.example" in seen[0] and seen[0][0] == 22


def test_a_proxy_of_the_environment_is_not_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(f"{receiver.url}/", allow=("127.0.0.1",)).status == 200


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "file:///etc/passwd", "gopher://x/", "http://", "//example.com/", "example.com",
     "http://user:pass@example.com/", "http://[fe80::1%25eth0]/", "http://exa mple.com/"],
)  # fmt: skip
def test_what_is_no_plain_http_address_is_refused(url: str) -> None:
    with pytest.raises(AgentError):
        send(url)


def test_a_redirect_is_an_answer_and_not_followed(receiver: Receiver) -> None:
    came = send(f"{receiver.url}/redirect?to=http://169.254.169.254/", allow=("127.0.0.1",))
    assert came.status == 302 and len(receiver.asked) == 1


def test_an_answer_is_cut_at_its_limit(receiver: Receiver) -> None:
    came = send(f"{receiver.url}/big?bytes=500000", allow=("127.0.0.1",), body_limit=1000)
    assert (len(came.content), came.whole) == (1000, False)


def test_nothing_leaves_when_the_last_word_is_no(receiver: Receiver) -> None:
    async def lost() -> None:
        raise LeaseLost("another has it")

    with pytest.raises(LeaseLost):
        asyncio.run(Outward(Directions.read(("127.0.0.1",), ())).send(get(f"{receiver.url}/"), lost))
    assert receiver.asked == []


def test_a_deadline_tells_whether_the_request_had_left(receiver: Receiver) -> None:
    url = f"{receiver.url}/act?do=hold"
    with pytest.raises(HttpFailed) as caught:
        asyncio.run(
            Outward(Directions.read(("127.0.0.1",), ())).send(
                Outgoing("POST", url, {}, b'{"n": 1}', 0.3, 1000), nothing
            )
        )
    assert caught.value.left and caught.value.code == "http_timeout"

    async def slow() -> None:
        await asyncio.sleep(5)

    with pytest.raises(HttpFailed) as caught:
        asyncio.run(Outward(Directions.read(("127.0.0.1",), ())).send(get(f"{receiver.url}/", seconds=0.2), slow))
    assert not caught.value.left


def test_certificates_are_verified() -> None:
    context = certificates()
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
