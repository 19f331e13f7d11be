"""The rules of causation, on a real Postgres: what is parked, what is not, and how a person lets it go on."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from consumer import db, operate
from consumer.agents.door import Coalesce
from consumer.errors import OperatorError
from consumer.intake.causation import alert_queued
from consumer.operate import Act
from consumer.telemetry import CAUSATION_LOOPS, REGISTRY
from tests.fixtures.postgres import Clock
from tests.integration.admitting import Rig, agent, at, event, sent

ACT = Act("ada", "because")
TABLES = """
CREATE TABLE public.requests (who text, key text);
CREATE FUNCTION public.request() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rowcall.enqueue(NEW.who, key => NEW.key);
    RETURN NULL;
END $$;
CREATE TRIGGER request AFTER INSERT ON public.requests FOR EACH ROW EXECUTE FUNCTION public.request();
"""


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """Agents on one topic, and a source that reads this very database."""
    opened = Rig(database, [agent("a"), agent("b")], own_sources=("cdc",))
    opened.look.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1), ('b', 1)")
    yield opened
    opened.close()


def writes(rig: Rig, job_id: int, statement: str | None = None) -> int:
    """The outcome transaction of a run; its 32-bit ID, as the log has it."""
    with rig.look.transaction():
        rig.look.execute(
            "UPDATE rowcall.agent_jobs SET result_txid = pg_current_xact_id()::text::bigint WHERE id = %s", (job_id,)
        )
        if statement is not None:
            rig.look.execute(statement.encode())
        (row,) = rig.rows("SELECT mod(pg_current_xact_id()::text::bigint, 4294967296) AS txid")
    return int(row["txid"])


def newest(rig: Rig, name: str) -> dict[str, Any]:
    """The newest job of an agent."""
    return rig.rows("SELECT * FROM rowcall.agent_jobs WHERE job_type = %s ORDER BY id DESC LIMIT 1", name)[0]


def hop(rig: Rig, offset: int, row: int, by: int) -> None:
    """Run `by` changes order `row`, which intake sees."""
    rig.take([at(offset, event(row, lsn=10_000 + offset, txId=writes(rig, by)))])


def parked(rig: Rig) -> list[tuple[str, int]]:
    """Agent and depth of every causation loop."""
    rows = rig.rows("SELECT job_type, depth FROM rowcall.agent_jobs WHERE status = 'PARKED' AND"
                    " reason = 'causation_loop' AND error_code = 'causation_loop' ORDER BY id")  # fmt: skip
    return [(row["job_type"], row["depth"]) for row in rows]


def claimable(rig: Rig) -> int:
    """How many jobs a worker could get."""
    return int(rig.rows("SELECT rowcall.promote(1000) AS n")[0]["n"])


def test_an_agent_that_already_stands_for_the_row_in_the_chain_is_parked_with_an_alert(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    before = REGISTRY.get_sample_value("rowcall_causation_loops_total", {"agent": "a"}) or 0
    rig.take([at(0, event(1))])
    root = newest(rig, "a")["event_id"]
    hop(rig, 1, 1, newest(rig, "a")["id"])  # a wrote the row: b is woken, a is not
    assert parked(rig) == []
    assert rig.jobs() == [("a", "1", "PENDING"), ("b", "1", "PENDING"), ("b", "1", "PENDING")]
    claimable(rig)
    with caplog.at_level(logging.ERROR):
        hop(rig, 2, 1, newest(rig, "b")["id"])  # b wrote it: a would be next
    assert parked(rig) == [("a", 2)]
    job = newest(rig, "a")
    assert job["root_event"] == root and job["lane_seq"] is None and claimable(rig) == 0
    assert "already stands for this row" in job["last_error"]
    (line,) = [record for record in caplog.records if record.__dict__.get("action") == "causation_loop"]
    assert f"--root {root}" in line.getMessage()
    assert REGISTRY.get_sample_value(f"{CAUSATION_LOOPS.name}_total", {"agent": "a"}) == before + 1


def test_the_same_agents_may_follow_each_other_on_other_rows(rig: Rig) -> None:
    rig.take([at(0, event(1))])
    for number, name in enumerate("abababab", start=1):
        hop(rig, number, 10 + number, newest(rig, name)["id"])
    assert parked(rig) == []
    assert newest(rig, "a")["depth"] == 8


def test_a_chain_deeper_than_the_limit_is_parked(rig: Rig) -> None:
    rig.take([at(0, event(1))])
    for number, name in enumerate("ababababa", start=1):
        hop(rig, number, 10 + number, newest(rig, name)["id"])
    assert parked(rig) == [("b", 9)]
    assert "ROWCALL_MAX_DEPTH is 8" in newest(rig, "b")["last_error"]


def test_an_emitted_event_is_judged_by_the_cause_it_carries(rig: Rig) -> None:
    def told(offset: int, depth: int, *chain: str) -> None:
        cause = {"root": "r", "job": 1, "depth": depth, "chain": chain}
        rig.take([sent(offset, f"e{offset}", cause=orjson.dumps(cause).decode())])

    told(0, 3, "x", "a", "x")  # the earlier form of a chain names no rows
    lane = newest(rig, "a")["key_hash"]
    told(1, 2, f"a@{lane & (1 << 64) - 1:016x}", "b@0000000000000001")
    told(2, 9, "x")
    assert parked(rig) == [("a", 2), ("a", 9), ("b", 9)]


def test_an_agent_that_asks_for_its_own_writes_follows_itself_down_to_the_limit(database: str) -> None:
    rig = Rig(database, [agent("a", on_own_write="run")], own_sources=("cdc",))
    rig.take([at(0, event(1))])
    for number in range(1, 10):
        hop(rig, number, 1, newest(rig, "a")["id"])
    assert parked(rig) == [("a", 9)]
    rig.close()


def storm(rig: Rig, first: int, count: int, root: str = "r") -> None:
    """That many events of one root."""
    cause = orjson.dumps({"root": root, "job": 1, "depth": 1, "chain": ["x"]}).decode()
    rig.take([sent(first + n, f"{root}{first + n}", cause=cause)._replace(key=None) for n in range(count)])


def test_more_runs_of_one_root_than_allowed_in_a_minute_are_parked_over_all_intakes(
    database: str, clock: Clock
) -> None:
    rig = Rig(database, [agent("a")])
    other = Rig(database, [agent("a")])
    storm(rig, 0, 100)
    other.look.execute("DELETE FROM rowcall.positions")
    storm(other, 200, 30)
    assert len(parked(rig)) == 10
    storm(rig, 300, 50, root="quiet")
    assert len(parked(rig)) == 10
    clock.advance(61)
    storm(rig, 400, 20)
    assert len(parked(rig)) == 10
    (row,) = rig.rows("SELECT last_error FROM rowcall.agent_jobs WHERE status = 'PARKED' LIMIT 1")
    assert "more than 120 runs of one root" in row["last_error"]
    rig.close()
    other.close()


def test_two_intakes_at_one_root_at_the_same_moment_do_not_both_spend_what_is_left(database: str) -> None:
    rig, other = Rig(database, [agent("a")]), Rig(database, [agent("a")])
    storm(rig, 0, 100)
    with db.connect(database, name="other intake") as session, db.transaction(session):
        session.execute("SELECT pg_advisory_xact_lock(hashtext('rowcall.root'), hashtext('r') & 63)")
        other.session.execute("SET lock_timeout = '200ms'")
        with pytest.raises(Exception, match="admissions in a row"):
            storm(other, 200, 5)
    storm(other, 200, 30)
    assert len(parked(rig)) == 10
    rig.close()
    other.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT rowcall.enqueue('b', key => 'k')",
        "INSERT INTO public.requests VALUES ('b', 'k')",
        "INSERT INTO rowcall.agent_jobs (job_type, status, payload, run_after) VALUES ('b', 'PENDING', '{}', now())",
    ],
    ids=["enqueue", "a trigger", "a plain insert"],
)
def test_a_job_queued_inside_an_outcome_is_caused_by_that_run(rig: Rig, statement: str) -> None:
    rig.look.execute(TABLES.encode())
    rig.take([at(0, event(1))])
    run = newest(rig, "a")
    writes(rig, run["id"], statement)
    job = newest(rig, "b")
    assert (job["parent_job"], job["root_event"], job["depth"]) == (run["id"], run["event_id"], 1)
    assert job["chain"] == [f"a@{run['key_hash'] & (1 << 64) - 1:016x}"] and job["status"] == "PENDING"
    rig.look.execute(statement.encode())
    outside = newest(rig, "b")
    assert (outside["parent_job"], outside["root_event"], outside["depth"], outside["chain"]) == (None, None, 0, [])


def test_a_deferred_trigger_and_a_savepoint_inherit_too(rig: Rig) -> None:
    rig.look.execute(TABLES.replace("CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER").replace(
        "FOR EACH ROW", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW").encode())  # fmt: skip
    rig.take([at(0, event(1))])
    run = newest(rig, "a")["id"]
    writes(rig, run, "SAVEPOINT s; INSERT INTO public.requests VALUES ('b', 'k'); RELEASE s")
    assert newest(rig, "b")["parent_job"] == run


def test_agents_that_queue_each_other_for_one_key_are_parked(rig: Rig) -> None:
    rig.look.execute("SELECT rowcall.enqueue('a', key => 'k')")
    for name, following in ("ab", "ba"):
        writes(rig, newest(rig, name)["id"], f"SELECT rowcall.enqueue('{following}', key => 'k')")
    assert parked(rig) == [("a", 2)]
    assert newest(rig, "a")["root_event"] == f"job:{newest(rig, 'b')['parent_job']}"


def test_agents_that_queue_each_other_without_a_key_are_parked_at_the_limit(rig: Rig) -> None:
    rig.look.execute("SELECT rowcall.enqueue('a')")
    for number in range(9):
        writes(rig, newest(rig, "ab"[number % 2])["id"], f"SELECT rowcall.enqueue('{'ba'[number % 2]}')")
    assert parked(rig) == [("b", 9)]


def test_a_run_that_queues_too_many_has_the_rest_parked(rig: Rig) -> None:
    rig.look.execute("SELECT rowcall.enqueue('a')")
    many = "SELECT rowcall.enqueue('b') FROM generate_series(1, 130)"
    writes(rig, newest(rig, "a")["id"], many)
    assert len(parked(rig)) == 10


def test_what_is_parked_inside_the_database_is_alerted_by_an_intake_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.look.execute("SELECT rowcall.enqueue('a', key => 'k')")
    writes(rig, newest(rig, "a")["id"], "SELECT rowcall.enqueue('a', key => 'k')")
    assert parked(rig) == [("a", 1)]
    with caplog.at_level(logging.ERROR), db.connect(rig.url, name="test") as session:
        alert_queued(session)
        alert_queued(session)
    (line,) = [record for record in caplog.records if record.__dict__.get("action") == "causation_loop"]
    assert "already stands for this key" in line.getMessage()


def test_the_limits_in_force_also_hold_inside_the_database(rig: Rig) -> None:
    assert rig.rows("SELECT max_depth, root_runs FROM rowcall.causation_limits") == [{"max_depth": 8, "root_runs": 120}]
    changed = rig.settings.model_copy(update={"max_depth": 2, "root_runs_per_minute": 7})
    type(rig.pipeline)(changed, rig.decoder, rig.session, rig.calendar)
    assert rig.rows("SELECT max_depth, root_runs FROM rowcall.causation_limits") == [{"max_depth": 2, "root_runs": 7}]


def test_a_person_lets_a_loop_go_on_or_ends_it_singly_and_by_root(rig: Rig, database: str) -> None:
    storm(rig, 0, 125)
    storm(rig, 500, 3, root="other")
    with db.connect(database, name="test") as session:
        first = rig.rows("SELECT min(id) AS id FROM rowcall.agent_jobs WHERE status = 'PARKED'")[0]["id"]
        assert operate.retry(session, first, ACT).after == "PENDING"
        done = operate.retry_root(session, "r", ACT)
        assert (len(done.moved), done.left, parked(rig)) == (129, [], [])
        claimable(rig)
        assert len(operate.cancel_root(session, "r", ACT).moved) == 250
        assert operate.cancel_root(session, "r", ACT).moved == []
        with pytest.raises(OperatorError, match="no run was caused by a root 'nobody'"):
            operate.cancel_root(session, "nobody", ACT)
    rows = rig.rows("SELECT status, count(*) AS n FROM rowcall.agent_jobs GROUP BY 1 ORDER BY 1")
    assert [(row["status"], row["n"]) for row in rows] == [("CANCELLED", 250), ("PENDING", 6)]


def test_a_loop_is_never_taken_into_a_job_that_waits_and_the_deeper_cause_counts(database: str) -> None:
    gathering = agent("a", coalesce=Coalesce(dt.timedelta(seconds=30)))
    rig = Rig(database, [gathering, agent("b")], own_sources=("cdc",))
    rig.take([at(0, event(1))])
    hop(rig, 1, 1, newest(rig, "b")["id"])
    job = newest(rig, "a")
    assert (job["merged"], job["depth"], job["parent_job"]) == (1, 1, newest(rig, "b")["id"])
    rig.look.execute("UPDATE rowcall.agent_jobs SET window_until = NULL WHERE id = %s", (job["id"],))
    hop(rig, 2, 1, job["id"])
    rig.take([at(3, event(1, lsn=3))])
    waiting = newest(rig, "a")
    hop(rig, 4, 1, rig.rows("SELECT max(id) AS id FROM rowcall.agent_jobs WHERE job_type = 'b' AND depth > 0")[0]["id"])
    assert ("a", 3) in parked(rig)
    (row,) = rig.rows("SELECT merged FROM rowcall.agent_jobs WHERE id = %s", waiting["id"])
    assert row["merged"] == 0
    rig.close()


def test_chains_look_alike_in_the_database_and_here(rig: Rig) -> None:
    for lane in (0, 1, -1, -(2**63), 2**63 - 1, 42):
        (row,) = rig.rows("SELECT rowcall.chain_entry('a@b', %s::bigint) AS entry", lane)
        assert row["entry"] == f"a@b@{lane & (1 << 64) - 1:016x}"
