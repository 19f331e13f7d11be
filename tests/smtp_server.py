"""A mail server on loopback: the real protocol over real sockets, with STARTTLS, TLS and logins.

It takes every mail unless a word of the protocol (`MAIL`, `RCPT:<address>`, `DATA`, `END`, `AUTH`, `greeting`) has an
answer of its own in `answers`; an answer that is used up once is written as a list.
"""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any


@dataclass
class Mailbox:
    """What the server was given. `login` is the one pair of user and password that it takes; None for no logins."""

    port: int = 0
    login: tuple[str, str] | None = None
    answers: dict[str, str | list[str]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    mails: list[tuple[list[str], bytes]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    @property
    def last(self) -> EmailMessage:
        """The last mail, read as a mail program reads it."""
        message = message_from_bytes(self.mails[-1][1], policy=policy.default)
        assert isinstance(message, EmailMessage)
        return message


class _Handler(socketserver.StreamRequestHandler):
    mailbox: Mailbox
    context: ssl.SSLContext | None = None
    inside_tls = False

    def setup(self) -> None:
        if self.context is not None and self.inside_tls:
            self.request = self.context.wrap_socket(self.request, server_side=True)
        super().setup()
        self.encrypted = self.inside_tls
        self.recipients: list[str] = []

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.request.close()

    def handle(self) -> None:
        self.say("greeting", "220 here")
        while line := self.rfile.readline():
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            self.mailbox.commands.append(text)
            if not self.obey(text.split(" ")[0].upper(), text):
                return

    def obey(self, verb: str, text: str) -> bool:
        match verb:
            case "EHLO":
                offers = ["here", "8BITMIME"]
                offers += ["STARTTLS"] if self.context and not self.encrypted else []
                offers += ["AUTH PLAIN"] if self.mailbox.login else []
                for offer in offers[:-1]:
                    self.write(f"250-{offer}")
                self.write(f"250 {offers[-1]}")
            case "STARTTLS":
                assert self.context is not None
                self.write("220 go on")
                self.request = self.context.wrap_socket(self.request, server_side=True)
                self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)
                self.encrypted = True
            case "AUTH":
                given = base64.b64decode(text.split(" ")[2]).decode().split("\0")[1:]
                right = "235 known" if tuple(given) == self.mailbox.login else "535 wrong"
                self.say("AUTH", right)
            case "MAIL":
                self.recipients = []
                self.say("MAIL", "250 ok")
            case "RCPT":
                (address,) = re.findall(r"<(.*)>", text)
                if self.say(f"RCPT:{address}", "250 ok").startswith("2"):
                    self.recipients.append(address)
            case "DATA":
                if self.say("DATA", "354 go on").startswith("3"):
                    self.take()
            case "QUIT":
                self.write("221 bye")
                return False
            case _:
                self.write("250 ok")
        return True

    def take(self) -> None:
        """The mail, up to a line with one dot."""
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        if self.say("END", "250 taken").startswith("2"):
            self.mailbox.mails.append((self.recipients, b"".join(lines)))
            self.mailbox.encrypted.append(self.encrypted)

    def say(self, word: str, usual: str) -> str:
        found = self.mailbox.answers.get(word, usual)
        if isinstance(found, list):
            found = found.pop(0) if found else usual
        self.write(found)
        return found

    def write(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def mail_server(certificate: Path | None = None, *, inside_tls: bool = False) -> Iterator[Mailbox]:
    """Run one; `certificate` holds key and certificate."""
    mailbox, context = Mailbox(), None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    handler = type("Handler", (_Handler,), {"mailbox": mailbox, "context": context, "inside_tls": inside_tls})
    with _Server(("127.0.0.1", 0), handler) as server:
        mailbox.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="mail server")
        thread.start()
        try:
            yield mailbox
        finally:
            server.shutdown()
            thread.join(10)


def make_certificate(folder: Path) -> Path:
    """Key and certificate of localhost, in one file that is its own authority."""
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both
