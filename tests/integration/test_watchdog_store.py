"""What the watchdog writes, with several of them, after a gap, and when a person steps in."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import psycopg
import pytest

from consumer import db
from consumer.errors import ConfigurationError, OperatorError
from consumer.watchdog import control
from consumer.watchdog.decide import Decision
from consumer.watchdog.rounds import Watchdog
from consumer.watchdog.store import Round, Store
from tests.fixtures.postgres import Clock
from tests.integration.watching import Rounds, Told, configured, rounds, rows

ONE = "process:executor@one"
ALERTS = "SELECT f.subject, f.new_state, a.reminder, a.channel FROM rowcall.watch_alerts a" \
         " JOIN rowcall.watch_flips f ON f.id = a.flip ORDER BY a.id"  # fmt: skip
NO_GAP = {"ROWCALL_WATCHDOG_GAP_SECONDS": "1e9"}


def alerts(database: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows(database, ALERTS)]


def overdue(watching: Rounds, clock: Clock) -> None:
    watching.beat()
    watching.look()
    clock.advance(40)
    watching.look()


def test_one_flip_and_one_alert_a_channel_however_many_watchdogs_see_it(database: str) -> None:
    decision = Decision(ONE, "new", "overdue", True, True, None, None, None, "silent")
    sessions = [db.connect(database, name="watchdog") for _ in range(6)]
    ready = threading.Barrier(len(sessions))
    moved: list[bool] = []
    Store(sessions[0], []).begin_watching([decision])

    def move(session: db.SyncSession) -> None:
        store = Store(session, [Told("mail"), Told("topic")])
        ready.wait()
        moved.append(store.move(decision))

    threads = [threading.Thread(target=move, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.close()
    assert sorted(moved) == [False] * 5 + [True]
    assert len(rows(database, "SELECT * FROM rowcall.watch_flips")) == 1
    assert alerts(database) == [(ONE, "overdue", 0, "mail"), (ONE, "overdue", 0, "topic")]


def test_flip_lands_whatever_its_message_holds(database: str) -> None:
    with db.connect(database, name="watchdog") as session:
        store = Store(session, [Told("mail")])
        decision = Decision(
            "connector:a", "new", "failed", True, True, None, None, None, "a\x00b\ud800" + "c" * 100_000
        )
        store.begin_watching([decision])
        assert store.move(decision)
    (flip,) = rows(database, "SELECT message FROM rowcall.watch_flips")
    assert flip["message"].startswith("a\ufffdb?c")


def test_recovery_is_told_and_a_reminder_comes_once_in_its_time(database: str, clock: Clock) -> None:
    with (
        rounds(database, channels=[Told()], ROWCALL_WATCHDOG_REMIND_SECONDS="600", **NO_GAP) as first,
        rounds(database, channels=[Told()], ROWCALL_WATCHDOG_REMIND_SECONDS="600", **NO_GAP) as second,
    ):
        overdue(first, clock)
        for seconds in (599, 1, 1, 600):
            clock.advance(seconds)
            first.look()
            second.look()
        first.beat(progress=2)
        second.look()
    assert alerts(database) == [
        (ONE, "overdue", 0, "told"), (ONE, "overdue", 1, "told"), (ONE, "overdue", 2, "told"), (ONE, "up", 0, "told")
    ]  # fmt: skip


def test_a_reminder_that_two_watchdogs_find_due_is_one(database: str, clock: Clock) -> None:
    with rounds(database, channels=[Told()], **NO_GAP) as watching:
        overdue(watching, clock)
        clock.advance(4000)
        store = Store(watching.session, [Told()])
        now = rows(database, "SELECT rowcall.now() AS at")[0]["at"]
        as_both_know_it = list(store.known().values())
        assert [store.remind(as_both_know_it, now, 3600) for _ in range(2)] == [1, 0]
    assert alerts(database)[1:] == [(ONE, "overdue", 1, "told")]


def test_a_gap_is_one_event_and_then_all_is_judged_afresh(database: str, clock: Clock) -> None:
    with rounds(database, channels=[Told()]) as first, rounds(database, channels=[Told()]) as second:
        for number in range(20):
            first.beat(instance=str(number))
        first.look()
        clock.advance(3600)
        second.look()
        first.look()
        (gap,) = rows(database, "SELECT * FROM rowcall.watch_flips WHERE new_state = 'gap'")
        assert gap["due_at"] == gap["at"] - dt.timedelta(seconds=3600) and "3600 s" in gap["message"]
        assert alerts(database) == [("watchdog:rounds", "gap", 0, "told")]
        for number in range(19):
            first.beat(instance=str(number), progress=2)
        for _ in range(13):
            clock.advance(5)
            for number in range(19):
                first.beat(instance=str(number), progress=3 + _)
            first.look()
        assert alerts(database)[1:] == [("process:executor@19", "overdue", 0, "told")]
        assert len(rows(database, "SELECT * FROM rowcall.watch_flips WHERE new_state = 'gap'")) == 1


def test_a_gap_is_one_event_however_many_watchdogs_come_back_together(database: str) -> None:
    sessions = [db.connect(database, name="watchdog") for _ in range(6)]
    Store(sessions[0], []).begin_round(gap_seconds=10, quiet_seconds=5)
    ready = threading.Barrier(len(sessions))
    found: list[Round] = []

    def begin(session: db.SyncSession) -> None:
        ready.wait()
        found.append(Store(session, []).begin_round(gap_seconds=10, quiet_seconds=5))

    for turn in range(5):
        sessions[0].execute("UPDATE rowcall.watch_rounds SET last_at = now() - interval '1 hour', quiet_until = NULL")
        found.clear()
        threads = [threading.Thread(target=begin, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(item.gap for item in found) == [False] * 5 + [True]
        assert all(item.quiet for item in found)
        assert len(rows(database, "SELECT FROM rowcall.watch_flips WHERE new_state = 'gap'")) == turn + 1
    for session in sessions:
        session.close()


def test_first_round_ever_and_short_pauses_are_no_gap(database: str, clock: Clock) -> None:
    with rounds(database) as watching:
        for _ in range(4):
            watching.look()
            clock.advance(9)
        assert not [row for row in watching.flips() if row["new_state"] == "gap"]


def test_paused_subject_is_not_told_until_its_pause_ends(database: str, clock: Clock) -> None:
    with rounds(database, channels=[Told()], **NO_GAP) as watching:
        watching.beat()
        watching.look()
        now = rows(database, "SELECT rowcall.now() AS at")[0]["at"]
        control.pause(watching.session, ONE, until=now + dt.timedelta(seconds=500), actor="ann", reason="move")
        clock.advance(100)
        watching.look()
        assert (watching.states()[ONE], alerts(database)) == ("paused", [])
        clock.advance(401)
        watching.look()
        assert watching.moves(ONE)[-2:] == [("up", "paused"), ("paused", "overdue")]
        control.pause(watching.session, ONE, until=None, actor="ann", reason=None)
        clock.advance(1_000_000)
        watching.look()
        assert watching.states()[ONE] == "paused"
        control.resume(watching.session, ONE, actor="ann", reason=None)
        watching.look()
        assert watching.states()[ONE] == "overdue"
        with pytest.raises(OperatorError, match="not paused"):
            control.resume(watching.session, ONE, actor="ann", reason=None)
        assert [row["action"] for row in rows(database, "SELECT action FROM rowcall.audit ORDER BY id")] == [
            "watchdog_pause", "watchdog_pause", "watchdog_resume"
        ]  # fmt: skip


def test_forgotten_process_is_gone_until_it_beats_again(database: str, clock: Clock) -> None:
    with rounds(database, **NO_GAP) as watching:
        overdue(watching, clock)
        control.forget(watching.session, ONE, actor="ann", reason=None)
        watching.look()
        assert ONE not in watching.states()
        with pytest.raises(OperatorError, match="not watched"):
            control.forget(watching.session, ONE, actor="ann", reason=None)
        watching.beat()
        watching.look()
        assert watching.states()[ONE] == "up"
        assert len(watching.flips(ONE)) == 3


def test_flips_are_never_changed_and_only_old_ones_go(database: str, clock: Clock) -> None:
    with rounds(database, channels=[Told()], **NO_GAP) as watching:
        overdue(watching, clock)
        for statement in ("UPDATE rowcall.watch_flips SET message = ''", "DELETE FROM rowcall.watch_flips",
                          "TRUNCATE rowcall.watch_flips"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watching.session.execute(statement.encode())
        clock.advance(29 * 86400)
        store = Store(watching.session, [])
        store.prune()
        assert watching.flips() and alerts(database)
        clock.advance(2 * 86400)
        store.prune()
        assert not watching.flips() and not alerts(database)


def test_instances_long_gone_are_dropped_and_nothing_is_told_of_it(database: str, clock: Clock) -> None:
    with rounds(database, **NO_GAP) as watching:
        watching.beat()
        watching.look()
        watching.session.execute("UPDATE rowcall.heartbeats SET state = 'STOPPED', expected_next = NULL")
        clock.advance(3601)
        Store(watching.session, []).prune()
        watching.look()
        assert watching.states() == {}
        assert watching.moves(ONE) == [("new", "up")]


def test_round_comes_at_the_next_moment_at_which_something_is_due(database: str, clock: Clock) -> None:
    with rounds(database, **NO_GAP) as watching:
        watching.beat()
        foreseen = watching.look()
        assert foreseen == pytest.approx(12)


def test_each_complete_round_pings_and_one_that_fails_does_not(database: str) -> None:
    stop, pinged = threading.Event(), threading.Event()
    watchdog = Watchdog(configured(database), ping=pinged.set)
    thread = threading.Thread(target=watchdog.run, args=(configured(database), stop))
    thread.start()
    assert pinged.wait(60)
    stop.set()
    thread.join()
    watchdog.stop()
    pinged.clear()
    with psycopg.connect(database) as session:
        session.execute("ALTER TABLE rowcall.watch_states RENAME TO away")
    with pytest.raises(ConfigurationError):
        watchdog.run(configured(database), threading.Event())
    assert not pinged.is_set()
