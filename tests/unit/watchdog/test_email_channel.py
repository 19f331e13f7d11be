"""The channel `email` against a real mail server: what arrives, over which connection, and what refusals mean."""

from __future__ import annotations

import time
import uuid
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from consumer.errors import ConfigurationError, Outage
from consumer.watchdog.channels.email import Email, Server
from debezium import ports
from tests.smtp_server import mail_server, make_certificate
from tests.unit.watchdog.alerts import alert, dripping

PEOPLE = ["ada@example.org", "grace@example.org"]
FROM = "rowcall@example.com"


def channel(port: int, *people: str, seconds: float = 20.0) -> Email:
    return Email("mail", Server("127.0.0.1", port, "plain"), FROM, people or PEOPLE, seconds=seconds)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def test_a_mail_reaches_everyone_with_headers_that_tell_what_it_is() -> None:
    with mail_server() as mailbox:
        channel(mailbox.port).send(alert(reminder=2, message="Ümläut\n.\n.dot"))
    ((recipients, _),) = mailbox.mails
    mail = mailbox.last
    assert recipients == PEOPLE and mail["To"] == ", ".join(PEOPLE) and mail["From"] == FROM
    assert mail["Subject"] == "[rowcall] agent:order-triage is overdue (reminder 2)"
    assert mail["Message-ID"] == f"<{alert().id}@example.com>"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert abs(parsedate_to_datetime(mail["Date"]).timestamp() - time.time()) < 60
    text = mail.get_content().replace("\r\n", "\n")
    assert text.startswith("Ümläut\n.\n.dot\n\n") and "due at: 2026-03-01T07:00:00.000Z\n" in text


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\x85", "\u2028", "\x0b", "\x00"])
def test_nothing_in_an_alert_becomes_a_header_or_a_command(end: str) -> None:
    evil = f"agent:a{end}Bcc: eve@example.net{end}{end}<b>body</b>"
    message = f"x{end}.{end}MAIL FROM:<eve@example.net>{end}\ud800"
    with mail_server() as mailbox:
        channel(mailbox.port).send(alert(subject=evil, state=f"overdue{end}X-A: b", message=message))
    mail = mailbox.last
    assert len(mailbox.mails) == 1 and "Bcc" not in mail and "X-A" not in mail
    assert sorted(name.lower() for name in mail) == sorted([
        "from", "to", "subject", "date", "message-id", "auto-submitted", "content-type", "content-transfer-encoding",
        "mime-version",
    ])  # fmt: skip
    assert [line.split(" ")[0] for line in mailbox.commands] == ["ehlo", "mail", "rcpt", "rcpt", "data", "quit"]


def test_starttls_encrypts_before_the_password_is_said(certificate: Path) -> None:
    with mail_server(certificate) as mailbox:
        mailbox.login = ("rowcall", "geheim-geheim")
        server = Server("localhost", mailbox.port, "starttls", *mailbox.login, ca_file=str(certificate))
        Email("mail", server, FROM, PEOPLE).send(alert())
    verbs = [line.split(" ")[0].upper() for line in mailbox.commands]
    assert mailbox.encrypted == [True]
    assert verbs.index("STARTTLS") < verbs.index("AUTH")


def test_smtp_inside_tls_with_a_login(certificate: Path) -> None:
    with mail_server(certificate, inside_tls=True) as mailbox:
        mailbox.login = ("rowcall", "geheim-geheim")
        server = Server("localhost", mailbox.port, "tls", *mailbox.login, ca_file=str(certificate))
        Email("mail", server, FROM, PEOPLE).send(alert())
    assert mailbox.encrypted == [True]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_nobody_vouches_for_is_refused(certificate: Path, security: str) -> None:
    with mail_server(certificate, inside_tls=security == "tls") as mailbox:
        server = Server("localhost", mailbox.port, "tls" if security == "tls" else "starttls")
        with pytest.raises(ConfigurationError, match="not trusted"):
            Email("mail", server, FROM, PEOPLE).send(alert())
    assert mailbox.mails == []


def test_a_server_without_starttls_gets_neither_password_nor_mail() -> None:
    with mail_server() as mailbox:
        mailbox.login = ("rowcall", "geheim-geheim")
        with pytest.raises(ConfigurationError, match="STARTTLS"):
            Email("mail", Server("127.0.0.1", mailbox.port, "starttls", *mailbox.login), FROM, PEOPLE).send(alert())
    assert [line for line in mailbox.commands if line.startswith(("AUTH", "mail", "MAIL"))] == []


def test_a_wrong_password_needs_an_operator_and_is_not_shown(certificate: Path) -> None:
    with mail_server(certificate, inside_tls=True) as mailbox:
        mailbox.login = ("rowcall", "another")
        mailbox.answers["AUTH"] = "535 no geheim-geheim here"
        server = Server("localhost", mailbox.port, "tls", "rowcall", "geheim-geheim", ca_file=str(certificate))
        with pytest.raises(ConfigurationError, match="correct user") as raised:
            Email("mail", server, FROM, PEOPLE).send(alert())
        mailbox.answers["AUTH"] = "454 geheim-geheim later"
        with pytest.raises(Outage) as later:
            Email("mail", server, FROM, PEOPLE).send(alert())
    assert "geheim" not in str(raised.value) + str(later.value) + repr(server)


@pytest.mark.parametrize("word", ["greeting", "MAIL", "RCPT:ada@example.org", "DATA", "END"])
def test_4xx_is_an_outage_and_5xx_needs_an_operator_wherever_it_comes(word: str) -> None:
    with mail_server() as mailbox:
        mailbox.answers[word] = "451 later please"
        with pytest.raises(Outage, match=r"451.*later please"):
            channel(mailbox.port, PEOPLE[0]).send(alert())
        mailbox.answers[word] = "554 never"
        with pytest.raises(ConfigurationError, match=r"554.*never"):
            channel(mailbox.port, PEOPLE[0]).send(alert())


def test_who_has_had_the_mail_does_not_get_it_again() -> None:
    with mail_server() as mailbox:
        mail = channel(mailbox.port)
        mailbox.answers["RCPT:ada@example.org"] = ["450 greylisted"]
        with pytest.raises(Outage, match=r"ada@example\.org"):
            mail.send(alert())
        mail.send(alert())
        mail.send(alert(id=uuid.uuid4()))
    assert [recipients for recipients, _ in mailbox.mails] == [[PEOPLE[1]], [PEOPLE[0]], PEOPLE]


def test_who_can_be_tried_again_is_before_who_never_can() -> None:
    with mail_server() as mailbox:
        mail = channel(mailbox.port)
        mailbox.answers |= {"RCPT:ada@example.org": "550 unknown", "RCPT:grace@example.org": ["450 greylisted"]}
        with pytest.raises(Outage, match="grace"):
            mail.send(alert())
        with pytest.raises(ConfigurationError, match="ada"):
            mail.send(alert())
    assert [recipients for recipients, _ in mailbox.mails] == [[PEOPLE[1]]]


@pytest.mark.parametrize(("first", "drop"), [(b"", b"2"), (b"220 here\r\n", b"250-more\r\n")])
def test_the_deadline_holds_for_the_whole_mail_however_the_server_drips(first: bytes, drop: bytes) -> None:
    with dripping(first, drop) as port:
        begun = time.monotonic()
        with pytest.raises(Outage, match=r"within 0\.5 s"):
            channel(port, seconds=0.5).send(alert())
    assert time.monotonic() - begun < 20


def test_nobody_there_and_a_broken_connection_are_outages() -> None:
    with pytest.raises(Outage, match="does not answer"):
        channel(ports.choose()).send(alert())
    with mail_server() as mailbox:
        mailbox.answers["MAIL"] = "421 closing"
        with pytest.raises(Outage):
            channel(mailbox.port).send(alert())
