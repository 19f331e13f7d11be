"""Where agents' calls may go: hosts by name, and addresses by what they are, whatever notation a URL gave them in.

Decided for the addresses that a name resolves to, at the moment of connecting; the connection then goes to that very
address. An IPv6 form that carries an IPv4 address (mapped, 6to4, NAT64, Teredo, ISATAP) is as good as that one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumer.errors import ConfigurationError, HttpBlocked

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not the whole internet's: this host, private, shared, loopback, link-local (metadata of clouds), protocol assignments,
# documentation, benchmarks, multicast, reserved; and a metadata server that has a public address.
_BLOCKED_V4: Final = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
]  # fmt: skip
# Everything outside 2000::/3 (loopback, link-local, unique local with its metadata addresses, multicast, mapped forms),
# and what inside it is not the internet.
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_BLOCKED_V6: Final = [ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20")]
# The well-known prefix; in local ones (64:ff9b:1::/48) the address may stand anywhere, so they are no public ones.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# ::ffff:0:a.b.c.d, the form of SIIT.
_TRANSLATED: Final = 0xFFFF << 16
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


@dataclass(frozen=True, slots=True)
class Directions:
    """The rules of one process.

    Args:
        networks: addresses allowed although they are no public ones.
        names: hosts whose addresses are allowed whatever they are; `.example.com` stands for all below it.
        only: where it is not empty, no other host may be called; same form.
    """

    networks: Sequence[Network] = ()
    names: Sequence[str] = ()
    only: Sequence[str] = field(default=())

    @classmethod
    def read(cls, allow: Iterable[str], only: Iterable[str]) -> Directions:
        """From the settings: `allow` mixes addresses, CIDRs and names.

        Raises:
            ConfigurationError: an entry is neither.
        """
        networks, names = list[Network](), list[str]()
        for entry in allow:
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                names.append(_name(entry, "ROWCALL_HTTP_ALLOW"))
        return cls(networks, names, [_name(entry, "ROWCALL_HTTP_HOSTS") for entry in only])

    def check_host(self, host: str) -> None:
        """Refuse a host that is not on the list of those that may be called, where there is one.

        Raises:
            HttpBlocked: naming the setting.
        """
        if self.only and not _listed(host, self.only):
            raise HttpBlocked(f"{host} is not in ROWCALL_HTTP_HOSTS, which names the hosts that may be called")

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Refuse a host of which any address is not a public one, unless the settings allow it.

        Raises:
            HttpBlocked: naming the address and the setting.
        """
        self.check_host(host)
        if _listed(host, self.names):
            return
        for text in addresses:
            if not self._allows(ipaddress.ip_address(text)):
                raise HttpBlocked(
                    f"{host} leads to {text}, which is no public address: private, local and metadata addresses are "
                    "blocked unless ROWCALL_HTTP_ALLOW names them"
                )

    def _allows(self, address: Address) -> bool:
        if self._named(address) or is_public(address):
            return True
        if isinstance(address, ipaddress.IPv4Address) or _is_isatap(address):
            return False
        carried = list(_carried(address))
        return bool(carried) and all(self._named(inner) or is_public(inner) for inner in carried)

    def _named(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet, as itself and as the IPv4 address it carries."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _BLOCKED_V4)
    carried = list(_carried(address))
    if not all(is_public(inner) for inner in carried):
        return False
    if carried and not _is_isatap(address):
        return True
    # An interface of ISATAP says nothing of the network before it.
    return address in _GLOBAL_V6 and not any(address in network for network in _BLOCKED_V6)


def _carried(address: Address) -> Iterator[ipaddress.IPv4Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return
    last = int(address) & 0xFFFFFFFF
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif address in _NAT64 or int(address) >> 32 == _TRANSLATED or _is_isatap(address):
        yield ipaddress.IPv4Address(last)


def _is_isatap(address: ipaddress.IPv6Address) -> bool:
    return (int(address) >> 32) & 0xFFFFFFFF in _ISATAP


def _listed(host: str, names: Sequence[str]) -> bool:
    return any(host == name or (name[0] == "." and host.endswith(name)) for name in names)


def _name(entry: str, setting: str) -> str:
    name = entry.strip().strip("[]").lower().removeprefix("*").removesuffix(".")
    if not name.strip(".") or (any(character in name for character in "/@*: \t") and not _is_address(name)):
        raise ConfigurationError(f"{setting}: {entry!r} is neither a host name nor an address nor a CIDR")
    return name


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
