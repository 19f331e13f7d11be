"""Where questions go and how they are signed: address, header, key, checked once."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from consumer.errors import ConfigurationError
from consumer.http import without_secrets
from consumer.llm.trace_text import Redactor
from consumer.settings import Settings

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Target:
    """An endpoint with its credentials. The key is in no attribute that a repr shows.

    Raises:
        ConfigurationError: naming the setting that cannot be used, never its value.
    """

    def __init__(self, settings: Settings) -> None:
        self.url = _completions(settings.model_base_url)
        self.shown = without_secrets(self.url)
        self.model = settings.model_name
        self._header = settings.model_auth_header.lower()
        self._scheme = settings.model_auth_scheme.strip()
        self._key = settings.model_api_key
        key = "" if self._key is None else self._key.get_secret_value()
        self.redactor = Redactor(key)
        if not (key.isascii() and (key + self._scheme).isprintable()) or key != key.strip():
            raise ConfigurationError("MODEL_API_KEY or MODEL_AUTH_SCHEME holds characters no header can carry")
        if not _HEADER_NAME.fullmatch(self._header):
            raise ConfigurationError("MODEL_AUTH_HEADER is not a header's name")

    def headers(self, idempotency_key: str) -> dict[str, str]:
        """The headers of one request."""
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key}
        if self._key is not None and (key := self._key.get_secret_value()):
            headers[self._header] = f"{self._scheme} {key}".strip()
        return headers


def _completions(base_url: str) -> str:
    """`/chat/completions` after the path, a query (Azure's api-version) behind it."""
    without_secrets(base_url)
    parts = urlsplit(base_url)
    if parts.username or parts.password:
        raise ConfigurationError("MODEL_BASE_URL holds a user or password; put the key into MODEL_API_KEY")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + "/chat/completions", parts.query, ""))
