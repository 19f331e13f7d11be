"""The watchdog with a file of channels: one silence reaches each of them, and the switch outside is pinged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psycopg

from tests.fixtures.process import Process, eventually
from tests.receiver import receive


def test_a_silence_reaches_each_channel_that_wants_it_and_rounds_ping(database: str, tmp_path: Path) -> None:
    program = tmp_path / "page"
    program.write_text(f'#!/bin/sh\necho "$ROWCALL_ALERT_SUBJECT $ROWCALL_ALERT_STATE" >> {tmp_path}/paged\n')
    program.chmod(0o755)
    with receive() as receiver:
        (tmp_path / "watchdog.toml").write_text(
            f"[channel.hook]\ntype = 'webhook'\nurl = '{receiver.url}/hook'\nsecret = 'HOOK'\nkinds = ['process']\n"
            f"[channel.broken]\ntype = 'webhook'\nurl = '{receiver.url}/broken?do=401'\nsecret = 'HOOK'\n"
            f"[channel.page]\ntype = 'command'\ncommand = ['{program}']\nonly = ['overdue']\nkinds = ['process']\n"
        )
        environment = dict(os.environ) | {
            "DATABASE_URL": database, "ROWCALL_WATCHDOG": str(tmp_path / "watchdog.toml"), "ROWCALL_HEALTH_PORT": "0",
            "HOOK": "YSBzZWNyZXQgb2YgdGhlIHRlc3QsIGxvbmcgZW5vdWdo", "CONNECT_URL": "",
            "ROWCALL_WATCHDOG_PING_URL": f"{receiver.url}/ping", "ROWCALL_WATCHDOG_PING_SECONDS": "0.1",
        }  # fmt: skip
        watchdog = Process([sys.executable, "-m", "consumer.cli", "watchdog", "run"], environment, tmp_path / "log")
        try:
            eventually("a ping", lambda: [path for _, path, *_ in receiver.asked if path == "/ping"])
            with psycopg.connect(database, autocommit=True) as session:
                session.execute(
                    "INSERT INTO rowcall.heartbeats (subject, instance, expected_next)"
                    " VALUES ('worker', 'one', rowcall.now() + interval '100 ms')"
                )
            hooks = eventually("the webhook", lambda: [
                told for _, path, _, body in receiver.asked
                if path == "/hook" and (told := json.loads(body)["data"])["state"] == "overdue"
            ])  # fmt: skip
            eventually("the command", lambda: (tmp_path / "paged").exists())
            watchdog.says("alert_failed")
            assert hooks[0]["subject"] == "process:worker@one"
            assert (tmp_path / "paged").read_text() == "process:worker@one overdue\n"
            assert "same secret" in watchdog.said
            assert watchdog.stop() == 0
        finally:
            watchdog.kill()
