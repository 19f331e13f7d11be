"""What came back: the form in which answers are kept, and what a status says about an effect."""

from __future__ import annotations

import contextlib
import enum
import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumer.agents.effects import HttpAnswer
from consumer.effects.request import MASK, Departure
from consumer.records import decode, encode

# Bytes of an effect's answer that are kept, for the agent as for the ledger.
EFFECT_BODY: Final = 64 * 1024
_SECRET_HEADERS: Final = ("set-cookie", "authorization", "proxy-authorization", "www-authenticate")


class Meaning(enum.Enum):
    """What a status says about the request: done; not done, for good or for now; or nothing sure."""

    DONE = "done"
    REFUSED = "refused"
    LATER = "later"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer as it may be kept, without secrets; `sha256` is of the body as it came."""

    answer: HttpAnswer
    sha256: bytes


def kept(departure: Departure, status: int, headers: Mapping[str, str], content: bytes, *, whole: bool) -> Kept:
    """Take the secrets out of an answer and bound it to what `content` holds."""
    shown = {
        name.lower(): MASK if name.lower() in _SECRET_HEADERS else departure.masked(value)
        for name, value in headers.items()
    }
    body = departure.masked_body(content, whole=whole)
    return Kept(HttpAnswer(status, shown, body, truncated=not whole), hashlib.sha256(content).digest())


def meaning(status: int, headers: Mapping[str, str], accept: Container[int]) -> Meaning:
    """What the status of an answer to an effect says."""
    if 200 <= status < 300 or status in accept:
        return Meaning.DONE
    if status in (408, 425, 429) or (status == 503 and "retry-after" in headers):
        return Meaning.LATER
    if status in (307, 308) or (400 <= status < 500):
        return Meaning.REFUSED
    # 301 to 303 often say that a POST was done; a 5xx may come from anything on the way.
    return Meaning.UNKNOWN


def stored(answer: HttpAnswer) -> str:
    """An answer as JSON text, for checkpoint and ledger; text as text where it is some."""
    body: dict[str, Any] = {"content": answer.content}
    with contextlib.suppress(UnicodeDecodeError):
        body = {"text": answer.content.decode("utf-8")}
    return encode({"status": answer.status, "headers": dict(answer.headers), "truncated": answer.truncated} | body)


def read(text: str) -> HttpAnswer:
    """The answer that `stored` was given."""
    value = decode(text)
    content = value["text"].encode("utf-8", "surrogatepass") if "text" in value else value["content"]
    return HttpAnswer(value["status"], value["headers"], content, value["truncated"])
