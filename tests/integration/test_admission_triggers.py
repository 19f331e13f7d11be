"""Triggers at admission on real Postgres: what they raise hurts nobody else, what they change stays with them."""

from __future__ import annotations

import pytest

from consumer.records import Change, Event
from tests.envelopes import ORDERS, change, order
from tests.integration.admitting import Rig, agent, at, event, now_ms, sent


def test_a_trigger_that_raises_is_a_dead_letter_of_that_agent_alone(database: str) -> None:
    broken, sound = agent("broken"), agent("sound")

    @broken.when
    def look(message: Change) -> bool:
        return bool(message.row["no such column"])

    rig = Rig(database, [broken, sound])
    rig.take([at(0, event(1)), at(1, event(2))])
    letters = rig.letters()
    assert rig.jobs() == [("sound", "1", "PENDING"), ("sound", "2", "PENDING")]
    assert [(letter["agent"], letter["error_code"]) for letter in letters] == [("broken", "when_failed")] * 2
    assert "no such column" in letters[0]["error"]
    rig.close()


class Unspeakable(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "raised", [SystemExit(3), GeneratorExit(), Unspeakable()], ids=lambda error: type(error).__name__
)
def test_whatever_a_trigger_raises_is_a_dead_letter_of_that_agent_alone(database: str, raised: BaseException) -> None:
    leaving, sound = agent("leaving"), agent("sound")

    @leaving.when
    def look(message: Change) -> bool:
        raise raised

    rig = Rig(database, [leaving, sound])
    rig.take([at(0, event(1))])
    assert rig.jobs() == [("sound", "1", "PENDING")]
    (letter,) = rig.letters()
    assert (letter["agent"], letter["error_code"]) == ("leaving", "when_failed")
    assert type(raised).__name__ in letter["error"]
    rig.close()


@pytest.mark.parametrize("image", ["before", "after", "key"])
def test_a_trigger_cannot_write_to_the_rows_it_is_shown(database: str, image: str) -> None:
    writing, sound = agent("writing"), agent("sound")

    @writing.when
    def look(message: Change) -> bool:
        getattr(message, image)["evil"] = 1
        return True

    rig = Rig(database, [writing, sound])
    rig.take([at(0, change(ORDERS, "u", before=order(1), after=order(1), ts_ms=now_ms()))])
    assert [name for name, _, _ in rig.jobs()] == ["sound"]
    assert [(letter["agent"], letter["error_code"]) for letter in rig.letters()] == [("writing", "when_failed")]
    rig.close()


def test_what_a_trigger_does_to_an_events_data_stays_with_it(database: str) -> None:
    writing, looking = agent("writing"), agent("looking")
    seen = []

    @writing.when
    def spoil(message: Event) -> bool:
        message.data["evil"] = 1
        return True

    @looking.when
    def look(message: Event) -> bool:
        seen.append(message.data)
        return True

    rig = Rig(database, [writing, looking])
    rig.take([sent(0, "e", data={"n": 1})])
    stored = [row["stored"] for row in rig.rows("SELECT payload::text AS stored FROM rowcall.agent_jobs ORDER BY id")]
    assert seen == [{"n": 1}]
    assert len(stored) == 2
    assert "evil" not in "".join(stored)
    rig.close()
