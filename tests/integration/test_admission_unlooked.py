"""Admission after a stretch without duplicates: it looks nothing up, and yet admits nothing twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer import activate, db, dedup
from consumer.dedup import Batch, Calendar, NewJob
from consumer.errors import TransactionConflict
from consumer.intake import pipeline, redrive
from tests.fixtures.postgres import Clock
from tests.integration.admitting import CLUSTER, DAY_MS, Rig, agent, at, event, now_ms, sent
from tests.integration.test_admission_lineage import Brokers


@pytest.fixture
def rig(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """One agent that wants everything, behind a pipeline that never looks before it met a duplicate."""
    monkeypatch.setattr(pipeline, "_LOOKS", 0)
    opened = Rig(database, [agent("a")])
    yield opened
    opened.close()


def test_a_known_event_among_new_ones_begins_the_admission_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take([at(0, event(1))])
    monkeypatch.setattr(pipeline, "_LOOKS", 2)
    done = rig.take([at(1, event(2)), at(2, event(1)), at(3, event(3))])
    assert (done.jobs["a"], done.duplicates["a"]) == (2, 1)
    assert [key for _, key, _ in rig.jobs()] == ["1", "2", "3"]
    assert rig.position() == 4


def test_a_stretch_without_duplicates_ends_the_looking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []

    def admit(
        session: db.SyncSession, batch: Batch, calendar: Calendar, *, look: bool, careful: bool
    ) -> dedup.Admitted:
        looked.append(look)
        return dedup.admit(session, batch, calendar, look=look, careful=careful)

    monkeypatch.setattr(pipeline, "admit", admit)
    monkeypatch.setattr(pipeline, "_LOOKS", 2)
    rig.take([at(0, event(1))])
    rig.take([at(1, event(1))])
    for number in range(2, 5):
        rig.take([at(number, event(number))])
    # Taken for new, met again with a look, two looks without a duplicate, and none any more.
    assert looked == [False, False, True, True, True, False]


def test_without_a_look_nothing_of_a_batch_with_a_known_event_is_written(rig: Rig) -> None:
    rig.take([at(0, event(1))])
    job = rig.rows("SELECT event_id FROM rowcall.agent_jobs")[0]["event_id"]
    day = now_ms() // DAY_MS
    records = [at(1, event(1)), at(2, event(2))]
    batch = Batch(
        CLUSTER, None, records, rig.ids, [NewJob(0, "a", job, day, b""), NewJob(1, "a", "rc1:other", day, b"")]
    )
    with pytest.raises(TransactionConflict, match="recorded already"):
        dedup.admit(rig.session, batch, rig.calendar, look=False)
    assert rig.position() == 1
    assert rig.rows("SELECT count(*) FROM rowcall.processed_events")[0]["count"] == 1


def test_an_event_recorded_while_its_day_lay_too_far_ahead_is_known(rig: Rig, clock: Clock) -> None:
    ahead = now_ms() + 10 * DAY_MS
    rig.take([at(0, event(1, ts_ms=ahead))])
    clock.advance(10 * 86_400)
    rig.calendar.refresh(rig.session)
    # Its job has left the table, so that its dedup row alone can tell.
    rig.look.execute("DELETE FROM rowcall.agent_jobs")
    done = rig.take([at(1, event(1, ts_ms=ahead)), at(2, event(2, ts_ms=ahead))])
    assert (done.jobs["a"], done.duplicates["a"]) == (1, 1)


def test_an_event_without_a_day_is_known(rig: Rig) -> None:
    rig.take([sent(0, "one")])
    done = rig.take([sent(1, "two"), sent(2, "one")])
    assert (done.jobs["a"], done.duplicates["a"]) == (1, 1)


def test_an_event_whose_first_delivery_was_not_recorded_is_known_after_its_redrive(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate.activate(rig.session, Brokers(), rig.agents)
    rig.take([at(0, event(1), value=b"garbage")])
    rig.take([at(1, event(1))])
    with db.transaction(rig.session):
        rig.session.execute("UPDATE rowcall.dead_letters SET message_value = %s", (event(1).value,))
        rig.session.execute("DELETE FROM rowcall.processed_events")
    letter = rig.letters()[0]["id"]
    assert redrive(rig.session, rig.settings, rig.agents, rig.decoder, letter, actor="me") == {"a": 2}
    rig.look.execute("DELETE FROM rowcall.agent_jobs")
    monkeypatch.setattr(pipeline, "_LOOKS", 2)
    assert rig.take([at(2, event(1))]).duplicates["a"] == 1
