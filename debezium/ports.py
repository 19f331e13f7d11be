"""Free TCP ports on the loopback address, for services that must tell others where they listen.

A port is chosen below the range the kernel hands to outgoing connections: one from that range could be taken by any
client while a service restarts. A choice is no reservation, so `debezium.launch` chooses again when a service finds
its port taken.
"""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
FIRST, LAST = 15_000, 31_999


def bindable(port: int) -> bool:
    """Whether a server could listen on the port right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this too: connections of a server that just ended do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose(preferred: int | None = None, taken: frozenset[int] = frozenset()) -> int:
    """A port that is free now: the preferred one if it can be had, else a random one outside `taken`.

    Raises:
        OSError: no free port was found in a thousand tries.
    """
    if preferred is not None and preferred not in taken and bindable(preferred):
        return preferred
    for _ in range(1_000):
        port = random.randint(FIRST, LAST)
        if port not in taken and bindable(port):
            return port
    raise OSError(f"no free port between {FIRST} and {LAST}")
