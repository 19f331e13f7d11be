"""Admission on a real Postgres: each promise about what becomes a job, what does not, and what is lost (nothing)."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer import db, dead_letters, dedup
from consumer.dedup import Admitted, prune
from consumer.errors import DataRefused
from consumer.intake import Pipeline
from consumer.kafka import Place, Record
from consumer.positions import PartitionId, Span, advance
from consumer.records import Change, payload
from tests.envelopes import ORDERS, change, order
from tests.fixtures.postgres import Clock
from tests.integration.admitting import CLUSTER, DAY_MS, Rig, agent, at, event, now_ms, sent


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """One agent that wants everything."""
    opened = Rig(database, [agent("a")])
    yield opened
    opened.close()


def test_an_event_twice_in_one_batch_gives_one_job_and_the_others_theirs(rig: Rig) -> None:
    done = rig.take([at(0, event(1)), at(1, event(2)), at(2, event(1))])
    assert [key for _, key, _ in rig.jobs()] == ["1", "2"]
    assert (done.jobs["a"], done.duplicates["a"]) == (2, 1)


def test_a_duplicate_at_another_offset_or_partition_gives_no_job(rig: Rig) -> None:
    rig.take([at(0, event(1))])
    done = rig.take([at(1, event(1)), at(9, event(1), partition=3)])
    assert len(rig.jobs()) == 1
    assert (done.jobs["a"], done.duplicates["a"]) == (0, 2)
    assert rig.position() == 2


def test_a_job_holds_all_of_its_change(rig: Rig) -> None:
    rig.take([at(5, event(3, ts_ms=now_ms() // 1000 * 1000 + 7))])
    (row,) = rig.rows("SELECT *, payload::text AS stored FROM rowcall.agent_jobs")
    message = payload.read(
        row["input_kind"], row["stored"], event_id=row["event_id"], topic=row["source_topic"],
        partition=row["source_partition"], offset=row["source_offset"], occurred_at=row["occurred_at"],
    )  # fmt: skip
    record = at(5, event(3))
    assert isinstance(message, Change) and message.coordinates is not None
    decoded = rig.decoder.decode(record.key, record.value, record.headers, message.coordinates)
    assert isinstance(decoded, Change)
    assert (message.after, message.key, message.coordinates) == (decoded.after, decoded.key, decoded.coordinates)
    assert row["occurred_at"].timestamp() * 1000 == message.origin.committed_ms
    assert (row["root_event"], row["depth"], row["chain"]) == (row["event_id"], 0, [])


@pytest.mark.parametrize("bad", [(0,), (2,), (4,), (0, 1, 2, 3, 4)], ids=["first", "middle", "last", "all"])
def test_poison_is_kept_whole_and_holds_up_nobody(rig: Rig, bad: tuple[int, ...]) -> None:
    records = [at(number, event(number)) for number in range(5)]
    for number in bad:
        records[number] = records[number]._replace(value=b"\x00\x00\x00\x00\x02 not avro", key=b"k\x00")
    rig.take(records)
    assert [key for _, key, _ in rig.jobs()] == [str(number) for number in range(5) if number not in bad]
    letters = rig.letters()
    assert [letter["offset"] for letter in letters] == list(bad)
    assert letters[0]["message_value"] == b"\x00\x00\x00\x00\x02 not avro"
    assert (letters[0]["message_key"], letters[0]["schema_id"]) == (b"k\x00", 2)
    assert rig.position() == 5


def test_poison_alone_in_a_batch_moves_the_position_on(rig: Rig) -> None:
    rig.take([at(7, event(1), value=b"garbage")])
    assert ([letter["error_code"] for letter in rig.letters()], rig.position()) == (["not_framed"], 8)


def test_headers_of_any_bytes_are_kept_with_a_dead_letter(rig: Rig) -> None:
    headers = [("plain", b"text"), ("nul", b"a\x00b"), ("broken", b"\xff\xfe"), ("none", None)]
    rig.take([at(0, event(1), value=b"garbage", headers=headers)])
    shown = dead_letters.shown(rig.session, rig.letters()[0]["id"])
    assert dead_letters.record_of(shown).headers == headers


@pytest.mark.parametrize("event_id", ["nul\x00inside", "surrogate\udcff"])
def test_an_id_that_postgres_cannot_hold_is_a_dead_letter(rig: Rig, event_id: str) -> None:
    rig.take([sent(0, event_id), sent(1, "good")])
    assert [letter["offset"] for letter in rig.letters()] == [0]
    assert len(rig.jobs()) == 1


def test_text_that_json_cannot_hold_survives_in_headers_and_data(rig: Rig) -> None:
    rig.take([sent(0, "e", data={"text": "a\x00b"}, note=b"\x00\xff")])
    (row,) = rig.rows("SELECT payload::text AS stored FROM rowcall.agent_jobs")
    message = payload.read("event", row["stored"], event_id="e")
    assert not isinstance(message, Change)
    assert message.data == {"text": "a\x00b"}
    assert message.headers["note"] == "\x00\udcff"


def test_a_row_the_database_refuses_is_isolated_and_the_rest_goes_on(rig: Rig) -> None:
    with db.transaction(rig.session):
        rig.session.execute(
            "ALTER TABLE rowcall.agent_jobs ADD CONSTRAINT no_thirteen CHECK (key_text <> '13' AND key_text <> '4')"
        )
    rig.take([at(number, event(number)) for number in range(20)])
    assert [key for _, key, _ in rig.jobs()] == [str(number) for number in range(20) if number not in (4, 13)]
    assert [(letter["offset"], letter["error_code"]) for letter in rig.letters()] == [
        (4, "db_23514"),
        (13, "db_23514"),
    ]
    assert rig.position() == 20
    assert rig.rows("SELECT count(*) FROM rowcall.processed_events")[0]["count"] == 18


def test_a_job_that_exists_without_its_dedup_row_is_a_duplicate_and_no_dead_letter(rig: Rig) -> None:
    rig.take([at(0, event(1))])
    with db.transaction(rig.session):
        rig.session.execute("DELETE FROM rowcall.processed_events")
    rig.take([at(1, event(1)), at(2, event(2))])
    assert [key for _, key, _ in rig.jobs()] == ["1", "2"]
    assert rig.letters() == []


def test_a_zombie_is_fenced_by_the_position(rig: Rig, database: str) -> None:
    rig.take([at(0, event(0))])
    zombie = Rig(database, [agent("a")])
    rig.take([at(1, event(1)), at(2, event(2))])
    done = zombie.take([at(1, event(101)), at(2, event(102)), at(0, event(103), partition=1)])
    zombie.close()
    assert done.fenced == {PartitionId(f"id-of-{ORDERS.topic}", 0)}
    assert [key for _, key, _ in rig.jobs()] == ["0", "1", "2", "103"]
    assert rig.position() == 3


def test_an_id_that_another_intake_records_at_the_same_moment_is_a_duplicate(rig: Rig, database: str) -> None:
    rig.take([at(0, event(1), partition=9)])
    (row,) = rig.rows("SELECT day::text, agent, event_id FROM rowcall.processed_events")
    rig.rows("DELETE FROM rowcall.agent_jobs RETURNING 1")
    rig.rows("DELETE FROM rowcall.processed_events RETURNING 1")
    other = psycopg.connect(database)
    other.execute(
        "INSERT INTO rowcall.processed_events (day, agent, event_id) VALUES (%(day)s, %(agent)s, %(event_id)s)", row
    )
    threading.Timer(0.5, other.commit).start()
    done = rig.take([at(0, event(1)), at(1, event(2))])
    other.close()
    assert (done.jobs["a"], done.duplicates["a"]) == (1, 1)
    assert ([key for _, key, _ in rig.jobs()], rig.position(), rig.letters()) == (["2"], 2, [])


def test_two_batches_overlap_and_give_what_one_after_the_other_gives(rig: Rig, database: str) -> None:
    with db.connect(database, name="reader") as reader:
        pipeline = Pipeline(rig.settings, rig.decoder, rig.session, rig.calendar, reader=reader)
        place = Place(ORDERS.topic, 0)
        records = [at(number, event(number % 40)) for number in range(60)]
        done = list(
            pipeline.take_all(
                [records[start : start + 10] for start in range(0, 60, 10)],
                cluster=CLUSTER,
                ids={place: PartitionId("t", 0)},
                subscribed={place: [(rig.agents[0], 0)]},
            )
        )
    assert [item.jobs["a"] for item in done] == [10, 10, 10, 10, 0, 0]
    assert [int(key) for _, key, _ in rig.jobs()] == list(range(40))


def test_a_fenced_half_keeps_the_other_half_from_skipping_what_nobody_read(rig: Rig, database: str) -> None:
    with db.transaction(rig.session):
        rig.session.execute("ALTER TABLE rowcall.agent_jobs ADD CONSTRAINT no_seven CHECK (key_text <> '7')")
        advance(rig.session, CLUSTER, [Span(PartitionId(f"id-of-{ORDERS.topic}", 0), ORDERS.topic, 0, 0)])

    class Overtaken(Pipeline):
        """Another intake moves the position by two between the refusal and the first half."""

        def _persevere(self, batch: dedup.Batch, *, careful: bool) -> Admitted:
            if len(batch.records) == 4 and rig.position() == 0:
                with db.transaction(self._writer):
                    advance(self._writer, CLUSTER, [Span(next(iter(rig.ids.values())), ORDERS.topic, 0, 2)])
            return super()._persevere(batch, careful=careful)

    rig.pipeline = Overtaken(rig.settings, rig.decoder, rig.session, rig.calendar)
    done = rig.take([at(number, event(number)) for number in range(8)])
    assert done.fenced
    assert rig.position() == 2
    assert rig.jobs() == []


def test_an_event_of_a_future_day_is_admitted_once_even_when_its_day_has_come(database: str, clock: Clock) -> None:
    rig = Rig(database, [agent("a")])
    ahead = now_ms() + 10 * DAY_MS
    rig.take([at(0, event(1, ts_ms=ahead))])
    assert rig.rows("SELECT count(*) FROM rowcall.processed_events_undated")[0]["count"] == 1
    clock.advance(10 * 86_400)
    rig.calendar.refresh(rig.session)
    done = rig.take([at(1, event(1, ts_ms=ahead)), at(2, event(2, ts_ms=ahead))])
    rig.close()
    assert (done.jobs["a"], done.duplicates["a"]) == (1, 1)


def test_an_event_beyond_the_horizon_is_parked_for_a_person_once(rig: Rig) -> None:
    old = now_ms() - 20 * DAY_MS
    first = rig.take([at(0, event(1, ts_ms=old)), at(1, event(2))])
    again = rig.take([at(2, event(1, ts_ms=old)), at(3, event(3))])
    assert (first.parked["a"], again.parked["a"]) == (1, 0)
    assert sorted(rig.jobs()) == [("a", "1", "PARKED"), ("a", "2", "PENDING"), ("a", "3", "PENDING")]
    assert rig.rows("SELECT reason FROM rowcall.agent_jobs WHERE status = 'PARKED'")[0]["reason"] == (
        "older_than_horizon"
    )


def test_a_duplicate_within_the_horizon_is_known_days_later(database: str, clock: Clock) -> None:
    rig = Rig(database, [agent("a")])
    rig.take([at(0, event(1))])
    clock.advance(13 * 86_400)
    rig.calendar.refresh(rig.session)
    prune(rig.session, 14)
    done = rig.take([at(1, event(1))])
    rig.close()
    assert (done.jobs["a"], done.duplicates["a"]) == (0, 1)


def test_days_beyond_the_horizon_are_dropped_and_the_others_stay(database: str, clock: Clock) -> None:
    rig = Rig(database, [agent("a")])
    today = rig.calendar.today
    clock.advance(15 * 86_400)
    assert prune(rig.session, 14) == [today]
    rig.calendar.refresh(rig.session)
    days = {row["day"] for row in rig.session.execute(db.queries("dedup")["days"])}
    rig.close()
    assert days == {today + 1, today + 2, today + 3, *range(today + 15, today + 19)}


def test_ids_without_a_day_are_forgotten_when_they_were_seen_twice_the_horizon_ago(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.dedup.calendar.PART", 2)
    rig = Rig(database, [agent("a")])
    rows = "SELECT event_id FROM rowcall.processed_events_undated ORDER BY 1"
    insert = "INSERT INTO rowcall.processed_events_undated (agent, event_id) VALUES ('a', %s)"
    for name in ("w1", "w2", "w3", "w4", "w5"):
        rig.session.execute(insert, (name,))
    clock.advance(27 * 86_400)
    rig.session.execute(insert, ("w6",))
    prune(rig.session, 14)
    assert len(rig.rows(rows)) == 6
    clock.advance(2 * 86_400)
    prune(rig.session, 14)
    assert rig.rows(rows) == [{"event_id": "w6"}]
    rig.close()


def test_a_missing_day_is_made_and_is_no_poison(rig: Rig) -> None:
    today = dt.datetime.now(dt.UTC).strftime("%Y%m%d")
    rig.look.execute(f"DROP TABLE rowcall.processed_events_{today}".encode())
    rig.take([at(0, event(1)), at(1, event(2))])
    assert (len(rig.jobs()), rig.letters()) == (2, [])


@pytest.mark.parametrize("moment", [9_300_000_000_000_000, 600_000_000_000_000, 253_402_300_799_000, -(2**63)])
def test_a_dead_letter_of_any_kafka_timestamp_is_stored_and_shown(rig: Rig, moment: int) -> None:
    rig.take([at(0, event(1), value=b"garbage", timestamp_ms=moment), at(1, event(2))])
    shown = dead_letters.shown(rig.session, rig.letters()[0]["id"])
    assert (shown["error_code"], shown["message_at"]) == ("not_framed", None)
    assert str(moment) in shown["error"]
    assert ([key for _, key, _ in rig.jobs()], rig.position()) == (["2"], 2)


def test_a_dead_letter_that_is_refused_is_written_with_its_bare_bytes(database: str) -> None:
    broken, sound = agent("broken"), agent("sound")
    broken.when(lambda message: message.row["no such column"])
    rig = Rig(database, [broken, sound])
    with db.transaction(rig.session):
        rig.session.execute(
            "ALTER TABLE rowcall.dead_letters ADD CHECK (\"offset\" <> 1 OR error_code = 'dead_letter_refused')"
        )
    headers = [("name", b"text"), ("none", None)]
    rig.take([at(number, event(number), headers=headers) for number in range(3)])
    letters = rig.letters()
    assert [(letter["offset"], letter["error_code"], letter["agent"]) for letter in letters] == [
        (0, "when_failed", "broken"),
        (1, "dead_letter_refused", "broken"),
        (2, "when_failed", "broken"),
    ]
    assert letters[1]["error"].startswith("when_failed: when of agent broken raised KeyError")
    assert (
        dead_letters.record_of(dead_letters.shown(rig.session, letters[1]["id"]))[:6]
        == at(1, event(1), headers=headers)[:6]
    )
    assert [key for _, key, _ in rig.jobs()] == ["0", "1", "2"]
    rig.close()


def test_a_message_that_can_be_stored_in_no_form_is_named_and_not_passed_by(rig: Rig) -> None:
    with db.transaction(rig.session):
        rig.session.execute('ALTER TABLE rowcall.dead_letters ADD CHECK ("offset" <> 2)')
    records = [
        at(number, event(number), value=b"garbage" if number == 2 else event(number).value) for number in range(5)
    ]
    with pytest.raises(DataRefused, match=rf"{ORDERS.topic}/0@2 can be stored neither"):
        rig.take(records)
    assert ([key for _, key, _ in rig.jobs()], rig.position()) == (["0", "1"], 2)


def test_jobs_keep_the_order_of_their_messages(rig: Rig) -> None:
    numbers = [5, 3, 9, 1, 7]
    rig.take([at(offset, event(number)) for offset, number in enumerate(numbers)])
    assert [int(key) for _, key, _ in rig.jobs()] == numbers


def test_events_before_an_agents_start_are_not_its_own(rig: Rig) -> None:
    rig.take([at(offset, event(offset)) for offset in range(4)], starts=2)
    assert [key for _, key, _ in rig.jobs()] == ["2", "3"]


def test_snapshot_rows_wake_only_agents_that_ask_for_state(database: str) -> None:
    rig = Rig(database, [agent("live"), agent("state", on_snapshot="state")])
    rig.take([at(0, change(ORDERS, "r", after=order(1), snapshot="true", ts_ms=now_ms()))])
    assert [name for name, _, _ in rig.jobs()] == ["state"]
    rig.close()


batches = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), min_size=1, max_size=5)


@given(batches=batches)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_event_gives_each_agent_exactly_one_job_however_it_is_resent(
    database: str, batches: list[list[int]]
) -> None:
    topic = f"t{uuid.uuid4().hex}"
    rig = Rig(database, [agent(f"x-{topic}"), agent(f"y-{topic}")])
    offset = 0
    for numbers in batches:
        records = [
            Record(topic, 0, offset + index, b"k", b"{}", [("id", f"{topic}-{number}".encode())], None)
            if number % 3
            else at(offset + index, event(number), topic=topic)
            for index, number in enumerate(numbers)
        ]
        offset += len(numbers)
        rig.take(records)
    found = rig.rows("SELECT job_type, event_id FROM rowcall.agent_jobs WHERE source_topic = %s", topic)
    rig.close()
    pairs = [(row["job_type"], row["event_id"]) for row in found]
    assert len(pairs) == len(set(pairs)) == 2 * len({number for numbers in batches for number in numbers})
