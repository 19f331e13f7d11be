"""DATABASE_URL: what is wrong with it, its passwords, how it is shown without them; as an address or as keywords."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

MASK: Final = "***"
_URL: Final = re.compile(r"postgres(?:ql)?://")
# One `name=value` of a libpq keyword string; a value with blanks stands in quotes.
_KEYWORD: Final = r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*|(?=\s|$))"
_KEYWORDS: Final = re.compile(rf"(?:\s*{_KEYWORD}(?=\s|$))*\s*", re.DOTALL)
_HOST: Final = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::(\d*))?")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_PASSWORDS: Final = ("password", "sslpassword")

POOLER: Final = (
    "a connection pooler stands between Rowcall and Postgres ({why}), and settings, locks and notifications of a "
    "session do not survive it. Let DATABASE_URL lead to Postgres itself; other programs may go on using the pooler"
)
"""What is said where DATABASE_URL leads to a pooler, as PgBouncer in transaction mode."""


def fault(text: str) -> str:
    """What is wrong with DATABASE_URL, in words that quote nothing of it; empty where nothing is.

    libpq quotes the part it stumbles over, which with an unescaped character in a password is the password's end.
    """
    if not _URL.match(text):
        if _KEYWORDS.fullmatch(text):
            return ""
        return "must be postgresql://user:password@host:port/name, or name=value pairs with blanks in quotes"
    encode = (
        "percent-encode every special character of its user, password and name (a blank is %20, / is %2F, @ is %40)"
    )
    if re.search(r"[\s\x00-\x1f\x7f#]", text) or _BAD_ESCAPE.search(text):
        return f"holds a blank, a # or a wrong %: {encode}"
    try:
        parts = urlsplit(text)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        return f"cannot be read: {encode}"
    login, _, hosts = parts.netloc.rpartition("@")
    name = parts.path.removeprefix("/")
    if "@" in login or login.count(":") > 1 or "@" in name or "/" in name:
        return f"cannot be taken apart: {encode}"
    matches = [_HOST.fullmatch(host) for host in hosts.split(",")]
    ports = [match[1] for match in matches if match is not None] + [value for key, value in query if key == "port"]
    if None in matches or not all(_is_port(port) for port in ports if port):
        return f"has a port that is no number from 1 to 65535, or {encode}"
    return ""


def _is_port(text: str) -> bool:
    return all(part.isascii() and part.isdigit() and 0 < int(part) < 65536 for part in text.split(",") if part)


def passwords(text: str) -> set[str]:
    """The passwords in it, as written and as decoded."""
    if not _URL.match(text):
        raw = {value for name, value in re.findall(_KEYWORD, text, re.DOTALL) if name.lower() in _PASSWORDS}
        return raw | {re.sub(r"\\(.)", r"\1", value.strip("'"), flags=re.DOTALL) for value in raw}
    parts = urlsplit(text)
    raw = {parts.password or ""}
    raw |= {value for name, _, value in (item.partition("=") for item in parts.query.split("&")) if name in _PASSWORDS}
    return raw | {unquote(value) for value in raw}


def shown(text: str) -> str:
    """It with its passwords masked and the rest as it is."""
    if not _URL.match(text):
        return re.sub(_KEYWORD, _masked_keyword, text, flags=re.DOTALL)
    netloc = urlsplit(text).netloc
    login, at, hosts = netloc.rpartition("@")
    name, colon, password = login.partition(":")
    masked = text.replace(netloc, f"{name}{colon}{MASK if password else ''}{at}{hosts}", 1) if at else text
    return re.sub(rf"([?&](?:{'|'.join(_PASSWORDS)})=)[^&]+", rf"\1{MASK}", masked, flags=re.IGNORECASE)


def _masked_keyword(found: re.Match[str]) -> str:
    return f"{found[1]}={MASK}" if found[1].lower() in _PASSWORDS else found[0]
