"""The file of channels: what is wrong is said with file, table, key and what to do; who is told what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from consumer import settings
from consumer.cli import main
from consumer.errors import ConfigurationError
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels import Route, load, ping
from tests.receiver import receive
from tests.unit.watchdog.alerts import alert

SECRET = "YSBzZWNyZXQgb2YgdGhlIHRlc3QsIGxvbmcgZW5vdWdo"
HOOK = "[channel.a]\ntype='webhook'\nurl='http://127.0.0.1:1/'\nsecret='HOOK'\n"
MAIL = "[channel.a]\ntype='email'\nhost='h'\nsender='a@b.c'\nto=['d@e.f']\n"
RUN = "[channel.a]\ntype='command'\n"


class Kept:
    """A topic's channel that keeps what it is sent."""

    def __init__(self, name: str, topic: str) -> None:
        self.name, self.topic = name, topic
        self.sent: list[Alert] = []

    def send(self, alert: Alert) -> None:
        self.sent.append(alert)


def loaded(folder: Path, text: str, **environment: str) -> list[Route]:
    (folder / "watchdog.toml").write_text(text)
    return load(folder / "watchdog.toml", settings.load({}), topic=Kept, environment=environment)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write a table"),
        ("[other]", "write a table"),
        ("channel = 1", "write a table"),
        ("x =", "is not TOML"),
        ("[channel]\na = 1", "write a table"),
        ("[channel.a]", 'channel a: type: write "webhook"'),
        ("[channel.a]\ntype='sms'", "channel a: type: write"),
        ("[channel.'A B']\ntype='topic'", "small letters"),
        ("[channel.a]\ntype='topic'\nsubject='x'", "channel a: subject: there is no such key"),
        ("[channel.a]\ntype='topic'\ntopic='a b'", "channel a: topic: "),
        ("[channel.a]\ntype='topic'\nonly=['overdu']", "channel a: only.0: .*'overdue'"),
        ("[channel.a]\ntype='topic'\nkinds=['agents']", "channel a: kinds.0: .*'agent'"),
        ("[channel.a]\ntype='topic'\nreminders='sometimes'", "channel a: reminders: "),
        (HOOK, "channel a: secret names the environment variable HOOK, which is not set. Set it, or HOOK_FILE"),
        (HOOK + "url_from='URL'", "channel a: give url, or url_from"),
        (HOOK.replace("http:", "ftp:"), "channel a: .*url: a URL must be http"),
        (HOOK.replace("'HOOK'", "'whsec_abc='"), "channel a: secret: "),
        (HOOK + "timeout_seconds=0", "channel a: timeout_seconds: "),
        (MAIL.replace("a@b.c", "a@b.c\\nBcc: x@y.z").replace("'", '"'), "channel a: sender: "),
        (MAIL.replace("d@e.f", "d e@f"), "channel a: to.0: "),
        (MAIL.replace("['d@e.f']", "[]"), "channel a: to: "),
        (MAIL + "user='u'", "user and password belong together"),
        (MAIL + "user='u'\npassword='MAIL'\nsecurity='plain'", "would cross the network readable"),
        (MAIL + "user='u'\npassword='MAIL'", "password names the environment variable MAIL"),
        (MAIL + "ca_file='/no/such/file'", "ca_file names /no/such/file"),
        (RUN, "channel a: command: Field required"),
        (RUN + "command='echo a'", "channel a: command: "),
        (RUN + "command=[]", "channel a: command: "),
        (RUN + "command=['echo a']", "channel a: command: .*arguments as further items"),
        (RUN + "command=['./here']", "channel a: command: .*absolute path"),
        (RUN + "command=['true']\nenvironment=['TOKEN']", "environment names the environment variable TOKEN"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        loaded(tmp_path, text)
    assert "watchdog.toml" in str(raised.value) or "ca_file" in said


def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ROWCALL_WATCHDOG names .*nowhere"):
        load(tmp_path / "nowhere", settings.load({}), topic=Kept)


def test_each_kind_is_made_with_its_secrets_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    text = (HOOK + MAIL.replace(".a]", ".b]") + "user='u'\npassword='MAIL'\n" + RUN.replace(".a]", ".c]")
            + "command=['true']\nenvironment=['TOKEN']\n[channel.d]\ntype='topic'\ntopic='mine'\n"
            + "[channel.e]\ntype='webhook'\nurl_from='URL'\nsecret='HOOK'\n")  # fmt: skip
    routes = loaded(
        tmp_path, text, HOOK_FILE=str(tmp_path / "secret"), MAIL="geheim-geheim", TOKEN="t", URL="https://h/geheim"
    )
    assert [(route.name, route.type) for route in routes] == [
        ("a", "webhook"), ("b", "email"), ("c", "command"), ("d", "topic"), ("e", "webhook"),
    ]  # fmt: skip
    assert "geheim" not in repr(routes)
    assert isinstance(routes[3].channel, Kept) and routes[3].channel.topic == "mine"
    routes[2].send(alert())


@pytest.mark.parametrize(
    ("keys", "changed", "wanted"),
    [
        ("", {}, True),
        ("only=['overdue']", {}, True),
        ("only=['failed']", {}, False),
        ("only=['overdue']", {"state": "up", "previous_state": "overdue"}, True),
        ("only=['overdue']", {"state": "recovered", "previous_state": "failed"}, False),
        ("only=['recovered']", {"state": "up", "previous_state": "failed"}, True),
        ("kinds=['agent']", {}, True),
        ("kinds=['schedule']", {}, False),
        ("", {"reminder": 1}, True),
        ("reminders=false", {"reminder": 1}, False),
        ("reminders=false", {"reminder": 0}, True),
    ],
)
def test_a_channel_is_told_what_its_table_lets_through(
    tmp_path: Path, keys: str, changed: dict[str, Any], wanted: bool
) -> None:
    (route,) = loaded(tmp_path, f"[channel.a]\ntype='topic'\n{keys}")
    told = alert(**changed)
    assert isinstance(route.channel, Kept)
    assert route.wants(told) is wanted


def test_the_ping_is_off_without_a_url_and_a_wrong_one_is_not_shown() -> None:
    assert ping(settings.load({})) is None
    with pytest.raises(ConfigurationError, match="ROWCALL_WATCHDOG_PING_URL") as raised:
        ping(settings.load({"ROWCALL_WATCHDOG_PING_URL": "geheim://geheim/geheim"}))
    assert "geheim/" not in str(raised.value)


# --- rowcall watchdog test ------------------------------------------------------------------------------------------


def run(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "watchdog.toml").write_text(text)
    environment = {"ROWCALL_WATCHDOG": str(folder / "watchdog.toml"), "HOOK": SECRET}
    return CliRunner().invoke(main, ["watchdog", "test", *arguments], env=environment, prog_name="rowcall")


def test_the_test_alert_goes_through_each_channel_and_says_what_each_answered(tmp_path: Path) -> None:
    with receive() as receiver:
        hook = f"type='webhook'\nsecret='HOOK'\nonly=['failed']\nurl='{receiver.url}"
        text = (f"[channel.good]\n{hook}/'\n[channel.later]\n{hook}/?do=503'\n[channel.wrong]\n{hook}/?do=401'\n"
                "[channel.run]\ntype='command'\ncommand=['false']\n")  # fmt: skip
        all_of_them = run(tmp_path, text, "--json")
        one = run(tmp_path, text, "good")
        later = run(tmp_path, text, "later", "--json")
    assert [(row["channel"], row["outcome"]) for row in json.loads(all_of_them.stdout)] == [
        ("good", "delivered"), ("later", "outage"), ("wrong", "refused"), ("run", "refused"),
    ]  # fmt: skip
    assert (all_of_them.exit_code, one.exit_code, later.exit_code) == (78, 0, 69)
    assert "delivered" in one.stdout and "same secret" in all_of_them.stdout
    assert json.loads(receiver.asked[0][3])["data"]["state"] == "test"


def test_a_channel_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    result = run(tmp_path, "[channel.run]\ntype='command'\ncommand=['true']", "pager")
    assert result.exit_code == 1 and "there is no channel pager; there are run" in result.stderr
    assert CliRunner().invoke(main, ["watchdog", "test"], env={"ROWCALL_WATCHDOG": ""}).exit_code == 78
