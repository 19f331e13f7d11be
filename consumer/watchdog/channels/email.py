"""The channel `email`: an alert as a mail, by SMTP, SMTP with STARTTLS, or SMTP inside TLS.

A mail that is sent again has the same Message-ID, made from the alert's ID; who has had it while this process lived
does not get it again. One deadline holds from connecting to the last answer. Answers 4xx and broken connections are an
outage, 5xx and a certificate that is not trusted need an operator.
"""

from __future__ import annotations

import datetime as dt
import smtplib
import socket
import ssl
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final, Literal

from consumer.errors import ConfigurationError, Outage
from consumer.http import certificates
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels.wording import headline, one_line, text

_DEPENDENCY: Final = "email"
# Alerts whose recipients are remembered.
_REMEMBERED: Final = 1000
_Refusal = ConfigurationError | Outage


@dataclass(frozen=True, slots=True)
class Server:
    """A mail server. `ca_file` names the certificates it is verified against, empty for the usual ones."""

    host: str
    port: int
    security: Literal["starttls", "tls", "plain"]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""


class Email:
    """Sends alerts to some people."""

    def __init__(
        self, name: str, server: Server, sender: str, recipients: Sequence[str], *, seconds: float = 30.0
    ) -> None:
        """`seconds` bounds a mail as a whole."""
        self.name = name
        self._server = server
        self._sender = sender
        self._recipients = list(recipients)
        self._seconds = seconds
        self._had: OrderedDict[uuid.UUID, set[str]] = OrderedDict()

    def send(self, alert: Alert) -> None:
        """Mail it to everyone who has not had it; see `Channel.send`."""
        had = self._had.setdefault(alert.id, set())
        while len(self._had) > _REMEMBERED:
            self._had.popitem(last=False)
        until = time.monotonic() + self._seconds
        with self._understood(), _connected(self._server, until) as session:
            self._hand_over(session, _mail(alert, self._sender, self._recipients), had)

    def _hand_over(self, session: smtplib.SMTP, mail: EmailMessage, had: set[str]) -> None:
        server = self._server
        if server.user:
            session.login(server.user, server.password)
        waiting = [address for address in self._recipients if address not in had]
        try:
            refused = session.send_message(mail, self._sender, waiting) if waiting else {}
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        had.update(address for address in waiting if address not in refused)
        if refused:
            # Those to be tried again come first: the others can wait for an operator.
            address, (code, said) = min(refused.items(), key=lambda item: item[1][0])
            raise self._answered(code, said, f"for {address}")

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn what smtplib raises into ours; nothing of the session's own words about logging in is kept."""
        try:
            yield
        except smtplib.SMTPAuthenticationError as error:
            if error.smtp_code < 500:
                raise self._answered(error.smtp_code, error.smtp_error, "to the login") from None
            raise self._wrong(
                f"refuses user and password ({error.smtp_code}): correct user and the secret that password names"
            ) from None
        except smtplib.SMTPResponseException as error:
            raise self._answered(error.smtp_code, error.smtp_error, "") from None
        except smtplib.SMTPNotSupportedError as error:
            raise self._wrong(f"cannot do what the channel asks: {error}; correct security, user or port") from None
        except ssl.SSLCertVerificationError as error:
            said = f"shows a certificate that is not trusted: {error.verify_message}; name the right host, or a ca_file"
            raise self._wrong(said) from None
        except ssl.SSLError as error:
            said = f'cannot speak TLS here: {error.reason}; port 465 takes security "tls", port 587 "starttls"'
            raise self._away(said) from None
        except TimeoutError:
            raise self._away(f"did not take the mail within {self._seconds:g} s", "timeout") from None
        except (smtplib.SMTPException, OSError) as error:
            raise self._away(f"does not answer: {one_line(str(error)) or type(error).__name__}") from None

    def _answered(self, code: int, said: bytes | str, to: str) -> _Refusal:
        shown = one_line(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said))[:300]
        if self._server.password:
            shown = shown.replace(self._server.password, "***")
        words = f"answered {code}{' ' if to else ''}{to}: {shown}"
        if 500 <= code < 600:
            return self._wrong(f"{words}. Correct sender and recipients, or ask who runs the server")
        return self._away(words, f"smtp_{code}" if code > 0 else None)

    def _wrong(self, said: str) -> ConfigurationError:
        return ConfigurationError(f"channel {self.name}: {self._server.host}:{self._server.port} {said}")

    def _away(self, said: str, code: str | None = None) -> Outage:
        where = f"channel {self.name}: {self._server.host}:{self._server.port}"
        return Outage(f"{where} {said}", dependency=_DEPENDENCY, code=code)


class _Session(smtplib.SMTP):
    """SMTP over a connection that is already there, so that a deadline can end it from its first byte on."""

    def __init__(self, connection: socket.socket, host: str, seconds: float) -> None:
        # Who we are is our address: asking for our own name may wait for a name server.
        address = connection.getsockname()[0]
        own = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        super().__init__(local_hostname=own, timeout=seconds)
        self._host = host
        self.sock = connection

    def greeted(self) -> None:
        """Read the server's first word."""
        code, said = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, said)


@contextmanager
def _connected(server: Server, until: float) -> Iterator[smtplib.SMTP]:
    connection = _connection(server, until)
    left = max(until - time.monotonic(), 0.001)
    session = _Session(connection, server.host, left)
    over = threading.Event()
    clock = threading.Timer(left, _cut, [session, over])
    clock.daemon = True
    clock.start()
    try:
        session.greeted()
        if server.security == "starttls":
            session.ehlo()
            session.starttls(context=_trust(server))
        yield session
        _leave(session)
    except (smtplib.SMTPServerDisconnected, OSError) as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        clock.cancel()
        session.close()


def _leave(session: smtplib.SMTP) -> None:
    try:
        session.quit()
    except (smtplib.SMTPException, OSError):
        # The mail is taken; a server that does not say goodbye changes nothing.
        return


def _connection(server: Server, until: float) -> socket.socket:
    failure: OSError | None = None
    for *_, address in socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM):
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        try:
            made = socket.create_connection((str(address[0]), server.port), timeout=left)
        except OSError as error:
            failure = error
            continue
        if server.security != "tls":
            return made
        try:
            return _trust(server).wrap_socket(made, server_hostname=server.host)
        except BaseException:
            made.close()
            raise
    assert failure is not None
    raise failure


def _cut(session: smtplib.SMTP, over: threading.Event) -> None:
    over.set()
    if session.sock is not None:
        try:
            session.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _trust(server: Server) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.ca_file) if server.ca_file else certificates()


def _mail(alert: Alert, sender: str, recipients: Sequence[str]) -> EmailMessage:
    mail = EmailMessage(policy=SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = f"[rowcall] {headline(alert)}"
    mail["Date"] = format_datetime(dt.datetime.now(dt.UTC))
    mail["Message-ID"] = f"<{alert.id}@{sender.rpartition('@')[2]}>"
    # No holiday notice is to answer it.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text(alert))
    return mail
