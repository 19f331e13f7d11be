"""Changes of one key that come close together become one run: which, when, and what it sees; on a real Postgres."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from consumer import db, operate
from consumer.agents.door import Agent, Coalesce
from consumer.records import Change, payload
from tests.envelopes import ORDERS, Message, change, order
from tests.fixtures.postgres import Clock
from tests.integration.acting import claiming
from tests.integration.admitting import DAY_MS, Rig, agent, at, now_ms

WINDOW = dt.timedelta(seconds=30)
CLAIM = db.queries("claim")["claim"]
MIDNIGHT = now_ms() // DAY_MS * DAY_MS


def gathering(**options: Any) -> Agent:
    """An agent that coalesces."""
    return agent("a", coalesce=Coalesce(WINDOW, **options))


@pytest.fixture
def rig(database: str, clock: Clock) -> Iterator[Rig]:
    """One agent that coalesces, one that does not."""
    opened = Rig(database, [gathering(), agent("b")])
    yield opened
    opened.close()


def moved(lsn: int, status: str, *, was: str | None = None, key: int = 1, ms: int = 0, op: str = "u") -> Message:
    """Order `key` becomes `status`; `lsn` says which change it is, `ms` when it was."""
    before = None if was is None else order(key, status=was)
    after = None if op == "d" else order(key, status=status)
    return change(ORDERS, op, before=before, after=after, lsn=lsn, txId=lsn, ts_ms=MIDNIGHT + ms)


def claim(rig: Rig, *agents: str) -> list[dict[str, Any]]:
    """What a worker gets."""
    rig.look.execute("INSERT INTO rowcall.agents (name, version) VALUES ('a', 1), ('b', 1) ON CONFLICT DO NOTHING")
    rig.rows("SELECT rowcall.promote(1000)")
    named = list(agents or "a")
    lease = claiming(100, agents=named, versions=[1] * len(named), deadlines=[None] * len(named))
    return rig.look.execute(CLAIM, lease).fetchall()


def seen(job: dict[str, Any]) -> Change:
    """The change as the run sees it."""
    message = payload.read("change", job["payload"], event_id=job["event_id"])
    assert isinstance(message, Change)
    return message


def statuses(job: dict[str, Any]) -> tuple[str | None, str | None]:
    """The column `status` before and after."""
    message = seen(job)
    before, after = message.before, message.after
    return None if before is None else before["status"], None if after is None else after["status"]


def test_the_latest_change_wins_in_the_window_and_the_run_sees_the_whole_way(rig: Rig, clock: Clock) -> None:
    done = rig.take([at(0, moved(1, "open", was="new"))])
    assert (done.jobs, done.coalesced) == ({"a": 1, "b": 1}, {})
    clock.advance(20)
    assert claim(rig) == []
    done = rig.take([at(1, moved(2, "paid", was="open", ms=1)), at(2, moved(3, "sent", was="paid", ms=2))])
    assert (done.jobs, done.coalesced) == ({"b": 2}, {"a": 2})
    clock.advance(10)
    (job,) = claim(rig)
    assert (statuses(job), job["merged"], seen(job).operation) == (("new", "sent"), 2, "u")
    assert len(claim(rig, "b")) == 1 and len(rig.jobs()) == 4


def test_changes_of_one_batch_come_together_too_and_other_keys_do_not(rig: Rig, clock: Clock) -> None:
    rig.take([at(n, moved(n, f"s{n}", was="x", key=n % 2, ms=n)) for n in range(1, 7)])
    clock.advance(30)
    found = {job["key_text"]: (statuses(job)[1], job["merged"]) for job in claim(rig)}
    assert found == {"0": ("s6", 2), "1": ("s5", 2)}


def test_every_event_taken_in_is_recorded_whole_and_shown_with_the_job(rig: Rig, database: str) -> None:
    rig.take([at(0, moved(1, "open", was="new")), at(1, moved(2, "paid", was="open"))])
    rig.take([at(2, moved(3, "sent", was="paid"))])
    (row,) = rig.rows("SELECT id, event_id, merged FROM rowcall.agent_jobs WHERE job_type = 'a'")
    with db.connect(database, name="test") as session:
        report = operate.show(session, row["id"])
    assert row["merged"] == report.job["merged_count"] == 2
    kept = [payload.read("change", item["payload"], event_id=item["event_id"]) for item in report.coalesced]
    assert [item.row["status"] for item in kept if isinstance(item, Change)] == ["paid", "sent"]
    ids = {row["event_id"]} | {item["event_id"] for item in report.coalesced}
    known = rig.rows("SELECT event_id FROM rowcall.processed_events WHERE agent = 'a'")
    assert ids == {item["event_id"] for item in known} and len(ids) == 3


def test_a_replay_merges_nothing_twice(rig: Rig) -> None:
    records = [at(0, moved(1, "open", was="new")), at(1, moved(2, "paid", was="open"))]
    rig.take(records)
    rig.look.execute("DELETE FROM rowcall.positions")
    done = rig.take([*records, at(2, moved(2, "paid", was="open"))])
    assert (done.jobs, done.coalesced, done.duplicates["a"]) == ({}, {}, 3)
    (row,) = rig.rows("SELECT merged FROM rowcall.agent_jobs WHERE job_type = 'a'")
    assert row["merged"] == 1 == len(rig.rows("SELECT FROM rowcall.coalesced_events"))


def test_a_change_that_happened_earlier_is_recorded_and_changes_nothing(rig: Rig, clock: Clock) -> None:
    rig.take([at(0, moved(1, "open", was="new", ms=10))])
    rig.take([at(1, moved(3, "sent", was="paid", ms=30)), at(2, moved(2, "paid", was="open", ms=20))])
    clock.advance(30)
    (job,) = claim(rig)
    assert (statuses(job), job["merged"]) == (("new", "sent"), 2)


def test_a_claimed_job_is_left_alone_and_the_change_gets_a_job_behind_it(rig: Rig, clock: Clock) -> None:
    rig.take([at(0, moved(1, "open", was="new"))])
    clock.advance(30)
    (first,) = claim(rig)
    rig.take([at(1, moved(2, "paid", was="open"))])
    rig.take([at(2, moved(3, "sent", was="paid"))])
    clock.advance(30)
    assert claim(rig) == []  # the first still runs
    stored = rig.rows("SELECT payload::text AS payload, event_id, merged FROM rowcall.agent_jobs"
                      " WHERE job_type = 'a' ORDER BY id")  # fmt: skip
    assert [(statuses(row), row["merged"]) for row in stored] == [(("new", "open"), 0), (("open", "sent"), 1)]
    assert first["payload"] == stored[0]["payload"]


def test_a_job_that_is_just_being_claimed_is_not_altered_nor_waited_for(rig: Rig, database: str) -> None:
    rig.take([at(0, moved(1, "open", was="new"))])
    with db.connect(database, name="claimer") as other, db.transaction(other):
        other.execute("SELECT FROM rowcall.agent_jobs WHERE job_type = 'a' FOR UPDATE")
        taking = threading.Thread(target=rig.take, args=([at(1, moved(2, "paid", was="open"))],))
        taking.start()
        taking.join(10)
        assert not taking.is_alive()
    rows = rig.rows("SELECT merged FROM rowcall.agent_jobs WHERE job_type = 'a'")
    assert [row["merged"] for row in rows] == [0, 0]


def test_a_run_that_was_given_back_is_not_altered(rig: Rig, clock: Clock) -> None:
    rig.take([at(0, moved(1, "open", was="new"))])
    clock.advance(30)
    (job,) = claim(rig)
    rig.rows(
        "SELECT rowcall.settle(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], '{PENDING}', '{NULL}', '{NULL}', '{NULL}',"
        " '{drained}', '{0}', '{-1}')",
        job["id"], job["lease_epoch"],
    )  # fmt: skip
    rig.take([at(1, moved(2, "paid", was="open"))])
    assert [row["merged"] for row in rig.rows("SELECT merged FROM rowcall.agent_jobs WHERE job_type = 'a'")] == [0, 0]


def test_the_window_does_not_move_unless_it_may_and_then_not_for_ever(database: str, clock: Clock) -> None:
    fixed, moving = (
        Rig(database, [gathering()]),
        Rig(database, [agent("m", coalesce=Coalesce(WINDOW, max_wait=2.5 * WINDOW))]),
    )
    due = []
    for number in range(6):
        fixed.take([at(number, moved(number + 1, "x", was="y"))])
        moving.take([at(number, moved(number + 1, "x", was="y"), partition=1)])
        rows = fixed.rows(
            "SELECT job_type, run_after <= rowcall.now() AS due FROM rowcall.agent_jobs ORDER BY job_type"
        )
        due.append([row["due"] for row in rows])
        clock.advance(20)
    assert due == [[False, False], [False, False], [True, False], [True, False], [True, True], [True, True]]
    fixed.close()
    moving.close()


def test_latest_false_keeps_the_first_image_and_counts(database: str, clock: Clock) -> None:
    rig = Rig(database, [gathering(latest=False)])
    rig.take([at(0, moved(1, "open", was="new")), at(1, moved(2, "paid", was="open"))])
    rig.take([at(2, moved(3, "sent", was="paid"))])
    clock.advance(30)
    (job,) = claim(rig)
    assert (statuses(job), job["merged"]) == (("new", "open"), 2)
    assert len(rig.rows("SELECT FROM rowcall.coalesced_events")) == 2
    rig.close()


@pytest.mark.parametrize(
    ("first", "second", "operation", "way"),
    [
        (moved(1, "new", op="c"), moved(2, "paid", was="new"), "c", (None, "paid")),
        (moved(1, "", was="old", op="d"), moved(2, "new", op="c"), "u", ("old", "new")),
        (moved(1, "new", op="c"), moved(2, "", was="new", op="d"), "d", ("new", None)),
        (moved(1, "b", was="a"), moved(2, "", was="b", op="d"), "d", ("a", None)),
        (moved(1, "b"), moved(2, "c"), "u", (None, "c")),
    ],
    ids=["born and changed", "gone and back", "born and gone", "changed and gone", "old row unknown"],
)
def test_two_changes_read_as_one(
    rig: Rig, clock: Clock, first: Message, second: Message, operation: str, way: tuple[str | None, str | None]
) -> None:
    rig.take([at(0, first)])
    rig.take([at(1, second)])
    clock.advance(30)
    (job,) = claim(rig)
    assert (seen(job).operation, statuses(job)) == (operation, way)


def test_a_value_that_the_later_change_left_alone_is_the_one_the_earlier_wrote(rig: Rig, clock: Clock) -> None:
    placeholder = "__debezium_unavailable_value"
    row = order(1)
    first = change(ORDERS, "u", before=row, after=row | {"note": "long"}, lsn=1, ts_ms=MIDNIGHT)
    second = change(ORDERS, "u", before=row, after=row | {"note": placeholder, "status": "x"}, lsn=2, ts_ms=MIDNIGHT)
    rig.take([at(0, first), at(1, second)])
    clock.advance(30)
    (job,) = claim(rig)
    after = seen(job).after
    assert after is not None and (after["note"], after["status"]) == ("long", "x")


def test_a_run_that_a_person_queued_again_takes_nothing_in(rig: Rig, clock: Clock) -> None:
    rig.take([at(0, moved(1, "open", was="new"))])
    (job,) = rig.rows("SELECT id FROM rowcall.agent_jobs WHERE job_type = 'a'")
    with db.connect(rig.url, name="test") as session:
        operate.cancel(session, job["id"], operate.Act("ada", "why"))
        operate.retry(session, job["id"], operate.Act("ada", "why"))
    rig.take([at(1, moved(2, "paid", was="open"))])
    jobs = rig.rows("SELECT merged, delivery FROM rowcall.agent_jobs WHERE job_type = 'a' ORDER BY id")
    assert jobs == [{"merged": 0, "delivery": 2}, {"merged": 0, "delivery": 1}]
