"""One HTTP request with one deadline for all of it, for the webhook and the ping.

Before it, a channel has something to say; after it, the channel decides what the status means. Promises: connecting,
sending and reading together take no longer than asked; no error names more of a URL than its host, for the path of such
URLs is often the secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from consumer.errors import ConfigurationError, Outage
from consumer.http import Response, open_async, without_secrets


def send(
    method: str,
    url: str,
    *,
    dependency: str,
    seconds: float,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Send one request and read its answer; a status is no error here.

    Raises:
        Outage: no whole answer within `seconds`; code `timeout` or `transport`.
        ConfigurationError: the URL or a header cannot be sent at all.
    """
    try:
        return asyncio.run(_send(method, url, dependency, seconds, content, headers))
    except TimeoutError:
        raise Outage(
            f"{shown(url)} did not answer within {seconds:g} s", dependency=dependency, code="timeout"
        ) from None
    except Outage as error:
        # The text names the whole path.
        said = str(error).replace(without_secrets(url), shown(url))
        raise Outage(said, dependency=dependency, code=error.code) from None


def shown(url: str) -> str:
    """A URL as it may be shown: scheme and host.

    Raises:
        ConfigurationError: it is no http or https URL.
    """
    parts = urlsplit(without_secrets(url))
    return f"{parts.scheme}://{parts.netloc}"


def usable(url: str) -> str | None:
    """What is wrong with a URL, without showing it; None where nothing is."""
    try:
        shown(url)
    except ConfigurationError as error:
        return str(error)
    return None


async def _send(
    method: str, url: str, dependency: str, seconds: float, content: bytes | None, headers: Mapping[str, str] | None
) -> Response:
    async with asyncio.timeout(seconds), open_async(dependency, connect_seconds=seconds, read_seconds=None) as http:
        return await http.request(method, url, content=content, headers=headers)
