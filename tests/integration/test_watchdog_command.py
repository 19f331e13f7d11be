"""`rowcall watchdog` as a person types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from consumer.cli import main
from consumer.cli.watchdog import expected
from tests.fixtures.postgres import Clock
from tests.integration.watching import configured, rounds

ONE = "process:executor@one"


def rowcall(database: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["watchdog", *arguments], env={"DATABASE_URL": database, "USER": "ada"})


def test_a_person_looks_pauses_resumes_and_forgets(database: str, clock: Clock) -> None:
    with rounds(database, ROWCALL_WATCHDOG_GAP_SECONDS="1e9") as watching:
        watching.beat()
        clock.advance(100)
        watching.look()
        listed = json.loads(rowcall(database, "list", "--state", "overdue", "--json").output)
        assert [(row["subject"], row["state"]) for row in listed] == [(ONE, "overdue")]
        assert "no beat of executor" in rowcall(database, "list").output
        assert "new_state" in rowcall(database, "flips", ONE, "--json").output
        assert rowcall(database, "flips", "nothing").output == "nothing has changed yet\n"
        assert rowcall(database, "pause", ONE, "--until", "2999-01-01", "--reason", "disks").exit_code == 0
        watching.look()
        assert "2999-01-01" in rowcall(database, "list", "--state", "paused").output
        assert rowcall(database, "resume", ONE).exit_code == 0
        watching.look()
        assert watching.states()[ONE] == "overdue"
        assert rowcall(database, "forget", ONE).exit_code == 0
        assert ONE not in watching.states()
        refused = rowcall(database, "pause", "agent:none")
        assert refused.exit_code == 1 and "not watched" in refused.stderr


def test_what_the_code_declares_is_expected(database: str) -> None:
    found = expected(configured(database, ROWCALL_AGENTS="tests.agents.silent"))
    assert [item.subject for item in found] == ["schedule:every-second"]


def test_code_that_cannot_be_read_does_not_end_the_watchdog(database: str, caplog: pytest.LogCaptureFixture) -> None:
    assert expected(configured(database, ROWCALL_AGENTS="tests.agents.nowhere")) == []
    assert "not watched" in caplog.text


def test_pause_that_is_over_already_is_refused(database: str, clock: Clock) -> None:
    with rounds(database) as watching:
        watching.beat()
        watching.look()
        refused = rowcall(database, "pause", ONE, "--until", "2001-01-01")
        assert refused.exit_code == 1 and "has passed" in refused.stderr
        assert rowcall(database, "flips", "--limit", "-1").exit_code == 2
