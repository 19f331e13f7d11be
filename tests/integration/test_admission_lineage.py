"""Who caused what, who is active from when, and what people do with dead letters, on a real Postgres."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from consumer import activate, db, dedup
from consumer.agents.door import Agent
from consumer.dedup import RosterChanged
from consumer.errors import OperatorError, Outage
from consumer.intake import Pipeline, redrive
from consumer.intake.backpressure import Backlog
from consumer.intake.redrive import discard
from consumer.kafka import Place, Topic
from consumer.positions import PartitionId
from consumer.wire import Decoder
from tests.envelopes import ORDERS, change, order
from tests.integration.admitting import CLUSTER, Answer, Rig, agent, at, event, now_ms, sent


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """One agent that wants everything."""
    opened = Rig(database, [agent("a")])
    yield opened
    opened.close()


def own_write(rig: Rig, name: str) -> int:
    """A row's transaction in which a run of agent `name` wrote; its 32-bit ID."""
    with rig.look.transaction():
        row = rig.look.execute(
            "INSERT INTO rowcall.agent_jobs (job_type, result_txid, event_id, depth, chain, key_hash)"
            " VALUES (%s, pg_current_xact_id()::text::bigint, 'root-event', 2, '{z}', 42)"
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
    assert (rows[0]["root_event"], rows[0]["depth"], rows[0]["chain"]) == ("root-event", 3, ["z", "a@000000000000002a"])
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
    activate.activate(rig.session, Brokers(), rig.agents)
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


@pytest.mark.parametrize("promoted", [False, True], ids=["outside the lanes", "inside"])
def test_only_jobs_that_wait_for_an_active_agent_are_backlog(rig: Rig, promoted: bool) -> None:
    agents = [agent(name) for name in ("a", "paused", "retired", "over")]
    activate.activate(rig.session, Brokers(), agents)
    with db.transaction(rig.session):
        rig.session.execute("UPDATE rowcall.agents SET state = upper(name) WHERE name IN ('paused', 'retired')")
        rig.session.execute(
            "UPDATE rowcall.agents SET state = 'PAUSED', paused_until = rowcall.now() - interval '1 s'"
            " WHERE name = 'over'"
        )
        rig.session.execute(
            "INSERT INTO rowcall.agent_jobs (job_type) SELECT name FROM generate_series(1, 9),"
            " unnest('{a,a,paused,retired,unknown,over}'::text[]) AS name"
        )
        if promoted:
            rig.session.execute("SELECT rowcall.promote(100)")
            for status in ("RUNNING", "WAITING_REVIEW"):
                rig.session.execute(
                    "UPDATE rowcall.agent_jobs SET status = %(to)s, lease_epoch = 1,"
                    " owner = CASE WHEN %(to)s = 'RUNNING' THEN gen_random_uuid() END,"
                    " locked_until = rowcall.now(), deadline = rowcall.now()"
                    " WHERE id IN (SELECT id FROM rowcall.agent_jobs WHERE job_type = 'a' ORDER BY id LIMIT 5)",
                    {"to": status},
                )
    waiting = 18 + 9 - (5 if promoted else 0)
    assert not Backlog(waiting).check(rig.session)
    assert Backlog(waiting - 1).check(rig.session)


def test_a_misspelt_column_is_a_dead_letter_of_that_agent_and_runs_when_it_is_corrected(database: str) -> None:
    rig = Rig(database, [agent("a", columns=["statsu"]), agent("b", columns=["note"])])
    change_of_note = change(ORDERS, "u", before=order(1), after=order(1, note="x"), ts_ms=now_ms())
    rig.take([at(0, change_of_note)])
    assert rig.jobs() == [("b", "1", "PENDING")]
    (letter,) = rig.letters()
    assert (letter["agent"], letter["error_code"]) == ("a", "unknown_column")
    assert "public.orders has no column 'statsu'; it has amount" in letter["error"]
    agents = [agent("a", columns=["note"])]
    activate.activate(rig.session, Brokers(), agents)
    assert redrive(rig.session, rig.settings, agents, rig.decoder, letter["id"], actor="me") == {"a": 1}
    rig.close()
