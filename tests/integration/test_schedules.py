"""Schedules on a real Postgres: each slot once, whoever fires it and wherever one dies."""

from __future__ import annotations

import datetime as dt
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from consumer import db
from consumer.agents.schedule import Schedule
from consumer.errors import ConfigurationError, OperatorError
from producers.schedules import control
from producers.schedules.definitions import of_file, synchronise
from producers.schedules.fire import fire_due
from tests.fixtures.postgres import Clock

AGENT = "INSERT INTO rowcall.agents (name, version) VALUES ('a', 1), ('old', 1)"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def session(database: str, clock: Clock) -> Iterator[db.SyncSession]:
    with db.connect(database, name="test") as opened:
        opened.execute(AGENT.encode())
        set_clock(opened, START)
        yield opened


def set_clock(session: db.SyncSession, moment: dt.datetime) -> None:
    session.execute("UPDATE public.test_clock SET at = %s", (moment,))


def hourly(**fields: Any) -> Schedule:
    return Schedule(**({"name": "hourly", "cron": "0 * * * *", "agent": "a"} | fields))


def declare(session: db.SyncSession, *schedules: Schedule, source: str = "code") -> list[str]:
    return synchronise(session, {source: schedules})


def go_to(session: db.SyncSession, moment: dt.datetime) -> None:
    set_clock(session, moment)
    while fire_due(session) is not None:
        pass


def slots(session: db.SyncSession, name: str = "hourly") -> list[tuple[int, str]]:
    rows = session.execute(
        "SELECT slot, outcome FROM rowcall.schedule_slots WHERE schedule = %s ORDER BY slot", (name,)
    ).fetchall()
    return [(row["slot"].astimezone(dt.UTC).hour, row["outcome"]) for row in rows]


def jobs(session: db.SyncSession) -> list[dict[str, Any]]:
    return session.execute("SELECT * FROM rowcall.agent_jobs ORDER BY id").fetchall()


def end(session: db.SyncSession, job: int, status: str = "SUCCEEDED") -> None:
    session.execute(
        "UPDATE rowcall.agent_jobs SET status = 'RUNNING', owner = gen_random_uuid(), lease_epoch = 1,"
        " locked_until = rowcall.now(), deadline = rowcall.now() WHERE id = %s", (job,)
    )  # fmt: skip
    session.execute(
        "UPDATE rowcall.agent_jobs SET status = %s, owner = NULL, finished_at = rowcall.now(),"
        " error_code = 'x', last_error = 'x' WHERE id = %s", (status, job)
    )  # fmt: skip


def at(hour: float) -> dt.datetime:
    return START + dt.timedelta(hours=hour)


def test_slot_queues_a_run_that_names_it(session: db.SyncSession) -> None:
    declare(session, hourly(payload={"hour": "{slot:%H}"}, priority=3, max_attempts=2, tenant="t"))
    go_to(session, at(1))
    (job,) = jobs(session)
    assert (job["job_type"], job["payload"], job["status"]) == ("a", {"hour": "01"}, "PENDING")
    assert (job["event_id"], job["occurred_at"], job["run_after"]) == (f"sc1:hourly:{at(1).isoformat()}", at(1), at(1))
    assert (job["priority"], job["max_attempts"], job["tenant"], job["key_text"]) == (3, 2, "t", "schedule:hourly")
    assert slots(session) == [(1, "queued")]


def test_a_new_schedule_starts_with_its_next_slot(session: db.SyncSession) -> None:
    set_clock(session, at(5.5))
    declare(session, hourly(catch_up="all"))
    assert fire_due(session) is None
    go_to(session, at(6))
    assert slots(session) == [(6, "queued")]


def test_run_still_going_is_not_doubled(session: db.SyncSession) -> None:
    declare(session, hourly())
    go_to(session, at(1))
    go_to(session, at(2))
    assert slots(session) == [(1, "queued"), (2, "skipped")]
    end(session, jobs(session)[0]["id"], "FAILED")
    go_to(session, at(3))
    assert slots(session) == [(1, "queued"), (2, "skipped"), (3, "queued")]


def test_queue_one_keeps_one_waiting(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="queue_one"))
    for hour in (1, 2, 3):
        go_to(session, at(hour))
    assert slots(session) == [(1, "queued"), (2, "queued"), (3, "skipped")]
    assert len({job["key_hash"] for job in jobs(session)}) == 1


def test_allow_lets_runs_go_side_by_side(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="allow"))
    for hour in (1, 2, 3):
        go_to(session, at(hour))
    assert [outcome for _, outcome in slots(session)] == ["queued"] * 3
    assert len({job["key_hash"] for job in jobs(session)}) == 3


def test_cancel_previous_ends_the_run_of_the_earlier_slot(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="cancel_previous"))
    go_to(session, at(1))
    go_to(session, at(2))
    first, second = jobs(session)
    assert (first["status"], first["error_code"], second["status"]) == ("CANCELLED", "superseded_slot", "PENDING")
    assert slots(session) == [(1, "queued"), (2, "queued")]


def test_a_run_whose_effect_nobody_knows_is_not_cancelled_for_a_later_slot(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="cancel_previous"))
    go_to(session, at(1))
    session.execute(
        "INSERT INTO rowcall.effects (id, job_id, delivery, step, business_key, idempotent, method, url,"
        " request_sha256, lease_epoch) SELECT gen_random_uuid(), id, 1, 's', '', false, 'POST', 'u', sha256(''), 1"
        " FROM rowcall.agent_jobs"
    )
    session.execute("UPDATE rowcall.effects SET state = 'SENT', attempts = 1, sent_at = rowcall.now()")
    go_to(session, at(2))
    assert slots(session) == [(1, "queued"), (2, "skipped")] and jobs(session)[0]["status"] == "PENDING"


def test_missed_slots_are_recorded(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="allow"))
    go_to(session, at(4.5))
    assert slots(session) == [(1, "missed"), (2, "missed"), (3, "missed"), (4, "queued")]


def test_taken_dedupe_key_coalesces_the_slot(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="allow", dedupe_key="{slot:%Y-%m-%d}"))
    go_to(session, at(1))
    go_to(session, at(2))
    assert slots(session) == [(1, "queued"), (2, "coalesced")]
    assert len(jobs(session)) == 1
    assert session.execute("SELECT count(*) AS n FROM rowcall.coalesced_events").fetchall() == [{"n": 1}]


def test_retired_agent_is_not_queued(session: db.SyncSession) -> None:
    declare(session, hourly(agent="old"))
    session.execute("UPDATE rowcall.agents SET state = 'RETIRED' WHERE name = 'old'")
    go_to(session, at(1))
    assert (slots(session), jobs(session)) == ([(1, "refused")], [])


# The second is too long for its index, however it is packed.
@pytest.mark.parametrize("key", ["{slot-999999d}", random.Random(1).randbytes(9000).hex()])
def test_a_slot_that_cannot_be_fired_holds_up_no_other_schedule(session: db.SyncSession, key: str) -> None:
    declare(session, hourly(name="bad", dedupe_key=key), hourly(name="good"))
    go_to(session, START + dt.timedelta(hours=1))
    assert slots(session, "bad") == [(1, "refused")] and slots(session, "good") == [(1, "queued")]


def test_the_limit_of_slots_caught_up_holds_over_transactions(session: db.SyncSession) -> None:
    declare(session, hourly(cron="* * * * *", catch_up="all", catch_up_limit=100, overlap="allow"))
    go_to(session, START + dt.timedelta(hours=20))
    late = [job["occurred_at"] for job in jobs(session)][:-2]
    assert len(late) == 100 and late[0] == START + dt.timedelta(hours=20, minutes=-101)


def test_topic_gets_a_tick_through_the_outbox(session: db.SyncSession) -> None:
    declare(session, hourly(agent="", topic="ticks", payload={"a": 1}))
    go_to(session, at(1))
    row = session.execute("SELECT topic, key, payload, event_type FROM rowcall.outbox").fetchone()
    assert row is not None
    assert (row["topic"], row["key"], row["event_type"]) == ("ticks", "hourly", "tick")
    assert bytes(row["payload"]) == (b'{"schedule":"hourly","slot":"2026-01-01T01:00:00+00:00","payload":{"a":1}}')
    assert slots(session) == [(1, "sent")]


def test_changed_expression_counts_from_now_and_a_changed_payload_does_not(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="allow"))
    set_clock(session, at(2.25))
    declare(session, hourly(overlap="allow", payload={"b": 1}))
    assert control.find(session, "hourly")["next_slot"] == at(1)
    declare(session, hourly(overlap="allow", cron="30 * * * *"))
    assert control.find(session, "hourly")["next_slot"] == at(2.5)
    assert declare(session, hourly(overlap="allow", cron="30 * * * *")) == []


def test_schedule_no_longer_declared_is_retired_by_its_own_source_alone(session: db.SyncSession) -> None:
    declare(session, hourly())
    declare(session, hourly(name="other"), source="file")
    assert declare(session) == ["hourly: retired, code no longer declares it"]
    go_to(session, at(1))
    assert (slots(session), slots(session, "other")) == ([], [(1, "queued")])
    declare(session, hourly())
    assert control.find(session, "hourly")["state"] == "ACTIVE"


def test_paused_schedule_fires_nothing_and_resumes_from_now(session: db.SyncSession) -> None:
    declare(session, hourly())
    control.pause(session, "hourly", actor="ann", reason="holidays")
    go_to(session, at(3.5))
    assert slots(session) == []
    with pytest.raises(OperatorError, match="PAUSED already"):
        control.pause(session, "hourly", actor="ann", reason=None)
    declare(session, hourly(payload={"new": 1}))
    assert control.find(session, "hourly")["state"] == "PAUSED"
    control.resume(session, "hourly", actor="ann", reason=None, catch_up=False)
    go_to(session, at(4))
    assert slots(session) == [(4, "queued")]
    acts = session.execute("SELECT actor, action, subject FROM rowcall.audit ORDER BY id").fetchall()
    assert [tuple(act.values()) for act in acts] == [
        ("ann", "schedule_pause", "schedule:hourly"),
        ("ann", "schedule_resume", "schedule:hourly"),
    ]


def test_backfill_fires_what_started_nothing_and_leaves_the_rest(session: db.SyncSession) -> None:
    declare(session, hourly())
    for hour in (1, 2, 3):
        go_to(session, at(hour))
    assert slots(session) == [(1, "queued"), (2, "skipped"), (3, "skipped")]
    found = control.plan(session, "hourly", START - dt.timedelta(hours=2), at(3))
    assert ([slot.astimezone(dt.UTC).hour for slot in found.fire], found.done) == ([22, 23, 0, 2], 1)
    control.backfill(session, "hourly", found.fire, actor="ann", reason=None)
    assert control.plan(session, "hourly", START - dt.timedelta(hours=2), at(3)).fire == []
    assert len(jobs(session)) == 5


@pytest.mark.parametrize(
    ("start", "end", "said"), [(3, 3, "empty"), (1, 30, "ends now"), (-24 * 90, 0, "more than 1000")]
)
def test_backfill_of_a_range_that_makes_no_sense_is_refused(
    session: db.SyncSession, start: int, end: int, said: str
) -> None:
    set_clock(session, at(5))
    declare(session, hourly())
    with pytest.raises(OperatorError, match=said):
        control.plan(session, "hourly", at(start), at(end))


def test_unknown_schedule_names_those_there_are(session: db.SyncSession) -> None:
    declare(session, hourly())
    with pytest.raises(OperatorError, match="known are: hourly"):
        control.pause(session, "daily", actor="ann", reason=None)


def test_queued_slot_is_not_queued_again_when_its_row_is_lost(session: db.SyncSession) -> None:
    declare(session, hourly(overlap="allow"))
    go_to(session, at(1))
    session.execute("DELETE FROM rowcall.schedule_slots")
    session.execute("UPDATE rowcall.schedules SET next_slot = %s", (at(1),))
    go_to(session, at(1))
    assert (len(jobs(session)), slots(session)) == (1, [(1, "queued")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[schedule.s]\ncron = '0 * * * *'\nagnet = 'a'", "schedule s: unknown agnet"),
        ("[schedule.s]\nagent = 'a'", "schedule s has no cron"),
        ("[schedule.s]\ncron = 5\nagent = 'a'", "cron must be a text"),
        ("[schedule.s]\ncron = '0 * * * *'\nagent = 'a'\njitter = '5m'", "jitter must be a number of seconds"),
        ("[schedule.s]\ncron = '0 * * * *'\nagent = 'a'\njitter = inf", "seconds that add up"),
        ("[schedules.s]\ncron = '0 * * * *'", r"\[schedule.NAME\]"),
        ("cron = ", "is not TOML"),
    ],
)
def test_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "schedules.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        of_file(path)


@pytest.mark.parametrize("payload", [{"a": float("nan")}, {"a": "\x00"}])
def test_payload_that_cannot_be_stored_is_refused_by_name(session: db.SyncSession, payload: Any) -> None:
    with pytest.raises(ConfigurationError, match="schedule hourly: the payload is no JSON that can be stored"):
        declare(session, hourly(payload=payload))


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "schedules.toml"
    path.write_text("[schedule.s]\ncron = '0 * * * *'\nagent = 'a'\njitter = 30\npayload = { x = 1 }\n")
    assert of_file(path) == [
        Schedule(name="s", cron="0 * * * *", agent="a", jitter=dt.timedelta(seconds=30), payload={"x": 1})
    ]


CHILD = """
import sys
from consumer import db
from producers.schedules.process import _work
with db.connect(sys.argv[1], name="scheduler") as session:
    while True:
        _work(session)
"""


def test_each_slot_fires_once_with_three_schedulers_of_which_some_are_killed(database: str, clock: Clock) -> None:
    """The clock runs through both changes of summer time; schedulers die at random and come back."""
    zones = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")
    crons = ("30 2 * * *", "*/30 * * * *", "0 1-3 * * *", "15 2 * * 0")
    made = [
        Schedule(name=f"s{number}", cron=crons[number % 4], timezone=zones[number // 4 % 4], agent="a", overlap="allow",
                 catch_up="all", catch_up_limit=1000)
        for number in range(32)
    ]  # fmt: skip
    spans = [(dt.datetime(2026, month, day, 20, tzinfo=dt.UTC), 10) for month, day in ((3, 28), (4, 4), (10, 24))]
    chance = random.Random(5)
    with psycopg.connect(database, autocommit=True) as control_session, db.connect(database, name="test") as session:
        session.execute(AGENT.encode())
        expected = 0
        for start, hours in spans:
            set_clock(session, start)
            declare(session, *made)
            session.execute("UPDATE rowcall.schedules SET next_slot = NULL")
            for item in made:
                session.execute(
                    "UPDATE rowcall.schedules SET next_slot = %s WHERE name = %s",
                    (next(item.after(start)), item.name),
                )
            running = [scheduler(database) for _ in range(3)]
            for step in range(hours * 4):
                control_session.execute("UPDATE public.test_clock SET at = at + interval '15 minutes'")
                time.sleep(0.03)
                if step % 5 == 4:
                    victim = chance.randrange(3)
                    running[victim].send_signal(signal.SIGKILL)
                    running[victim].wait()
                    running[victim] = scheduler(database)
            finish = start + dt.timedelta(hours=hours)
            expected += sum(len(list(takewhile(finish.__ge__, item.after(start)))) for item in made)
            assert eventually_counted(session, expected) == expected
            for process in running:
                process.kill()
                process.wait()
        fired = session.execute(
            "SELECT count(*) AS slots, count(DISTINCT job_id) AS jobs, count(*) FILTER (WHERE outcome <> 'queued')"
            " AS no FROM rowcall.schedule_slots"
        ).fetchone()
        assert fired == {"slots": expected, "jobs": expected, "no": 0}
        assert len(jobs(session)) == expected


def scheduler(database: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, database])


def eventually_counted(session: db.SyncSession, expected: int) -> int:
    ends = time.monotonic() + 60
    while True:
        row = session.execute("SELECT count(*) AS n FROM rowcall.schedule_slots").fetchone()
        assert row is not None
        if row["n"] >= expected or time.monotonic() > ends:
            return int(row["n"])
        time.sleep(0.1)
