"""Admission on a real Postgres: each promise about what becomes a job, what does not, and what is lost (nothing)."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from pydantic import BaseModel

from consumer import activate, db, dead_letters, dedup
from consumer.agents.door import Agent
from consumer.dedup import Admitted, Calendar, RosterChanged, prune
from consumer.errors import OperatorError, Outage
from consumer.intake import Pipeline, redrive
from consumer.intake.backpressure import Backlog
from consumer.intake.redrive import discard
from consumer.kafka import Place, Record, Topic
from consumer.positions import PartitionId, Span, advance
from consumer.records import Change, payload
from consumer.settings import Settings
from consumer.wire import Decoder
from tests.envelopes import ORDERS, Message, change, order
from tests.fixtures.postgres import Clock

CLUSTER = "cluster-1"
DAY_MS = 86_400_000


class Answer(BaseModel):
    """What the test agents would answer."""

    text: str


def agent(name: str, **options: Any) -> Agent:
    """An agent on the orders topic."""
    return Agent(name=name, version=1, answer=Answer, topics=[ORDERS.topic], **options)


@dataclass
class Rig:
    """A pipeline on one database, fed without Kafka."""

    url: str
    agents: Sequence[Agent]
    own_sources: tuple[str, ...] = ()
    ids: dict[Place, PartitionId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = Settings.model_validate({"DATABASE_URL": self.url, "ROWCALL_OWN_SOURCES": self.own_sources})
        self.session = dedup.open_session(self.url, name="test")
        self.calendar = Calendar(self.settings.dedup_days)
        self.calendar.refresh(self.session)
        self.decoder = Decoder(ORDERS.schemas.__getitem__, epoch="1")
        self.pipeline = Pipeline(self.settings, self.decoder, self.session, self.calendar)
        self.look = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)

    def take(self, records: Sequence[Record], *, stamp: str | None = None, starts: int = 0) -> Admitted:
        """Admit records of any topic to every agent."""
        places = {Place(record.topic, record.partition) for record in records}
        self.ids |= {place: PartitionId(f"id-of-{place.topic}", place.partition) for place in places}
        return self.pipeline.take(
            records,
            cluster=CLUSTER,
            ids=self.ids,
            subscribed={place: [(item, starts) for item in self.agents] for place in places},
            stamp=stamp,
        )

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """What the database says."""
        return self.look.execute(query.encode(), parameters).fetchall()

    def jobs(self) -> list[tuple[str, str, str]]:
        """(agent, key, status) in the order of their IDs."""
        found = self.rows("SELECT job_type, key_text, status FROM rowcall.agent_jobs ORDER BY id")
        return [(row["job_type"], row["key_text"], row["status"]) for row in found]

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, oldest first."""
        return self.rows("SELECT * FROM rowcall.dead_letters ORDER BY id")

    def position(self, topic: str = ORDERS.topic) -> int | None:
        """The stored position of partition 0."""
        found = self.rows("SELECT next_offset FROM rowcall.positions WHERE topic = %s AND partition = 0", topic)
        return found[0]["next_offset"] if found else None

    def close(self) -> None:
        """Close what was opened."""
        self.session.close()
        self.look.close()


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """One agent that wants everything."""
    opened = Rig(database, [agent("a")])
    yield opened
    opened.close()


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def event(number: int, **source: Any) -> Message:
    """The change of order `number`; the same number is the same event."""
    values = {"lsn": 1000 + number, "txId": 700 + number, "ts_ms": now_ms() // DAY_MS * DAY_MS} | source
    return change(ORDERS, "c", after=order(number), **values)


def at(offset: int, message: Message, *, partition: int = 0, **changes: Any) -> Record:
    """A message at its place."""
    record = Record(message.topic, partition, offset, message.key, message.value, message.headers, 1_760_000_000_000)
    return record._replace(**changes)


def sent(offset: int, event_id: str, *, data: Mapping[str, Any] | None = None, **headers: str | bytes) -> Record:
    """An application event."""
    values = [("id", event_id.encode("utf-8", "surrogateescape"))]
    values += [(name, text if isinstance(text, bytes) else text.encode()) for name, text in headers.items()]
    return Record("orders.triaged", 0, offset, b"7", orjson.dumps(data or {"n": 1}), list(values), None)


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


def test_a_missing_day_is_made_and_is_no_poison(rig: Rig) -> None:
    today = dt.datetime.now(dt.UTC).strftime("%Y%m%d")
    rig.look.execute(f"DROP TABLE rowcall.processed_events_{today}".encode())
    rig.take([at(0, event(1)), at(1, event(2))])
    assert (len(rig.jobs()), rig.letters()) == (2, [])


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


def own_write(rig: Rig, name: str) -> int:
    """A row's transaction in which a run of agent `name` wrote; its 32-bit ID."""
    with rig.look.transaction():
        row = rig.look.execute(
            "INSERT INTO rowcall.agent_jobs (job_type, result_txid, event_id, depth, chain)"
            " VALUES (%s, pg_current_xact_id()::text::bigint, 'root-event', 2, '{z}')"
            " RETURNING mod(result_txid, 4294967296) AS txid",
            (name,),
        ).fetchone()
    assert row is not None
    return int(row["txid"])


def test_an_agent_is_not_woken_by_its_own_write_and_others_know_the_cause(database: str) -> None:
    rig = Rig(database, [agent("a"), agent("b"), agent("a-eager", on_own_write="run")], own_sources=("cdc",))
    txid = own_write(rig, "a")
    rig.take([at(0, event(1, txId=txid))])
    rows = rig.rows(
        "SELECT job_type, root_event, parent_job, depth, chain FROM rowcall.agent_jobs WHERE key_text = '1'"
    )
    assert [row["job_type"] for row in rows] == ["b", "a-eager"]
    assert (rows[0]["root_event"], rows[0]["depth"], rows[0]["chain"]) == ("root-event", 3, ["z", "a"])
    assert rows[0]["parent_job"] is not None
    rig.close()


def test_a_change_of_a_transaction_that_never_becomes_visible_is_admitted_after_a_bounded_wait(database: str) -> None:
    rig = Rig(database, [agent("a")], own_sources=("cdc",))
    began = time.monotonic()
    rig.take([at(0, event(1, txId=4_000_000))])
    assert 1.5 < time.monotonic() - began < 4
    assert len(rig.jobs()) == 1
    rig.close()


def test_an_emitted_event_carries_its_cause(rig: Rig) -> None:
    cause = orjson.dumps({"root": "r", "job": 41, "depth": 3, "chain": ["x", 'y"\\']}).decode()
    rig.take([sent(0, "e1", cause=cause), sent(1, "e2", cause='{"job": "nonsense"}')])
    rows = rig.rows("SELECT root_event, parent_job, depth, chain FROM rowcall.agent_jobs ORDER BY id")
    assert rows[0] == {"root_event": "r", "parent_job": 41, "depth": 3, "chain": ["x", 'y"\\']}
    assert rows[1] == {"root_event": "ob1:rowcall:e2", "parent_job": None, "depth": 0, "chain": []}


def test_a_changed_roster_stops_an_admission_that_did_not_know_it(rig: Rig) -> None:
    before = activate.roster(rig.session).stamp
    activate.activate(rig.session, Brokers(), [agent("new")])
    with pytest.raises(RosterChanged):
        rig.take([at(0, event(1))], stamp=before)
    assert (rig.jobs(), rig.position()) == ([], None)
    rig.take([at(0, event(1))], stamp=activate.roster(rig.session).stamp)
    assert len(rig.jobs()) == 1


class Brokers:
    """Offsets as a cluster would tell them, for activation."""

    def __init__(self, end: int = 100) -> None:
        self.end = end

    def cluster_id(self) -> str:
        return CLUSTER

    def topics(self, names: Any) -> dict[str, Topic]:
        return {name: Topic(f"id-of-{name}", (0,)) for name in names if name == ORDERS.topic}

    def ends(self, places: Any) -> dict[Place, int]:
        return dict.fromkeys(places, self.end)


def test_an_agent_starts_at_the_end_once_and_never_before_what_was_admitted(rig: Rig) -> None:
    missing = Agent(name="later", version=1, answer=Answer, topics=["not.there.yet"])
    outcomes = [item.outcome for item in activate.activate(rig.session, Brokers(100), [agent("a"), missing])]
    again = [item.outcome for item in activate.activate(rig.session, Brokers(500), [agent("a"), missing])]
    assert (outcomes, again) == (["activated", "activated"], ["unchanged", "unchanged"])
    rig.take([at(number, event(number)) for number in range(100, 120)])
    activate.activate(rig.session, Brokers(110), [agent("b")])
    starts = activate.starts(rig.session, CLUSTER, [f"id-of-{ORDERS.topic}"])
    assert starts == {PartitionId(f"id-of-{ORDERS.topic}", 0): {"a": 100, "b": 120}}


def test_a_lower_version_never_overwrites_a_higher_one(rig: Rig) -> None:
    newer = Agent(name="a", version=3, answer=Answer, topics=["x"])
    activate.activate(rig.session, Brokers(), [newer])
    (item,) = activate.activate(rig.session, Brokers(), [agent("a")])
    assert (item.outcome, item.version) == ("newer_kept", 3)
    assert activate.roster(rig.session).rows[0].topics == ("x",)


def test_a_redriven_dead_letter_runs_and_its_duplicates_do_not(rig: Rig) -> None:
    activate.activate(rig.session, Brokers(), rig.agents)
    broken = Decoder({1: ORDERS.key_schema}.__getitem__, epoch="1")
    rig.pipeline = Pipeline(rig.settings, broken, rig.session, rig.calendar)
    rig.take([at(0, event(1))])
    letter = rig.letters()[0]["id"]
    assert redrive(rig.session, rig.settings, rig.agents, rig.decoder, letter, actor="me") == {"a": 1}
    rig.pipeline = Pipeline(rig.settings, rig.decoder, rig.session, rig.calendar)
    assert rig.take([at(1, event(1))]).duplicates["a"] == 1
    assert rig.jobs() == [("a", "1", "PENDING")]
    assert [(row["state"], row["closed_by"]) for row in rig.letters()] == [("REDRIVEN", "me")]
    assert [row["action"] for row in rig.rows("SELECT action FROM rowcall.audit")] == ["dead_letter_redriven"]
    with pytest.raises(OperatorError, match="REDRIVEN already"):
        redrive(rig.session, rig.settings, rig.agents, rig.decoder, letter, actor="me")


def test_a_redrive_of_a_recorded_event_is_its_next_delivery(rig: Rig) -> None:
    activate.activate(rig.session, Brokers(), rig.agents)
    rig.take([at(0, event(1), value=b"garbage")])
    rig.take([at(1, event(1))])
    with db.transaction(rig.session):
        rig.session.execute("UPDATE rowcall.dead_letters SET message_value = %s", (event(1).value,))
    letter = rig.letters()[0]["id"]
    assert redrive(rig.session, rig.settings, rig.agents, rig.decoder, letter, actor="me") == {"a": 2}
    assert [row["delivery"] for row in rig.rows("SELECT delivery FROM rowcall.agent_jobs ORDER BY id")] == [1, 2]


def test_a_dead_letter_that_still_fails_stays_open_and_can_be_discarded(rig: Rig) -> None:
    activate.activate(rig.session, Brokers(), rig.agents)
    rig.take([at(0, event(1), value=b"garbage")])
    letter = rig.letters()[0]["id"]
    with pytest.raises(OperatorError, match="still cannot be handled"):
        redrive(rig.session, rig.settings, rig.agents, rig.decoder, letter, actor="me")
    assert rig.letters()[0]["state"] == "OPEN"
    discard(rig.session, letter, actor="me", reason="test data")
    assert rig.letters()[0]["state"] == "DISCARDED"


def test_a_frozen_admission_is_ended_and_holds_up_nobody(database: str) -> None:
    session = dedup.open_session(database, name="frozen")
    session.execute("SET transaction_timeout = '200ms'")
    with pytest.raises(Outage) as caught, db.transaction(session):
        session.execute("SELECT 1")
        time.sleep(0.5)
        session.execute("SELECT 1")
    assert caught.value.code == "db_25P04"
    session.close()


def test_back_pressure_stops_above_the_limit_and_resumes_below_four_fifths(rig: Rig) -> None:
    backlog = Backlog(10)
    rig.take([at(number, event(number)) for number in range(11)])
    assert backlog.check(rig.session)
    backlog._checked = float("-inf")
    with db.transaction(rig.session):
        rig.session.execute("DELETE FROM rowcall.agent_jobs WHERE key_text IN ('1', '2')")
    assert backlog.check(rig.session)
    backlog._checked = float("-inf")
    with db.transaction(rig.session):
        rig.session.execute("DELETE FROM rowcall.agent_jobs WHERE key_text = '3'")
    assert not backlog.check(rig.session)


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
