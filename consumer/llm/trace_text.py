"""Text from outside as it may be kept: storable, bounded, and without the key.

Postgres stores neither NUL nor lone surrogates; a provider's error may quote the key that was sent to it.
"""

from __future__ import annotations

import json
import re
from typing import Final

# Bytes of a kept answer; the digest beside it covers the whole.
TEXT_LIMIT: Final = 64 * 1024
# A shorter key ("none", "x", "EMPTY") is a placeholder of a local server, and masking it would only garble the text.
_SHORTEST_SECRET: Final = 8
MASK: Final = "[key]"
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class Redactor:
    """Takes one key out of any text; holds it privately, so that no repr shows it."""

    __slots__ = ("_forms",)

    def __init__(self, key: str) -> None:
        forms = {key, json.dumps(key)[1:-1], json.dumps(key)[1:-1].replace("/", "\\/")}
        self._forms = sorted(forms, key=len, reverse=True) if len(key) >= _SHORTEST_SECRET else []

    def text(self, text: str) -> str:
        """`text` without the key, and with NUL and lone surrogates as U+FFFD."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return storable(text)

    def body(self, content: bytes) -> str:
        """An answer as text of at most TEXT_LIMIT bytes; the key goes first, so that no cut leaves half of it."""
        return cut(self.text(content.decode("utf-8", "replace")), TEXT_LIMIT)


def storable(text: str) -> str:
    """`text` with U+FFFD for each NUL and lone surrogate."""
    return _UNSTORABLE.sub("�", text)


def cut(text: str, limit: int) -> str:
    """The longest start of `text` that has at most `limit` bytes as UTF-8."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
