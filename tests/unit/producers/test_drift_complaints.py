"""What users of other detectors complain about, and values that come wrongly: docs/drift.md lists them by number."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from consumer.kafka import Record
from consumer.wire import Decoder
from producers.drift import events
from producers.drift.engine import Engine, Key, Sample
from producers.drift.messages import Messages
from producers.drift.monitors import Monitor, Topics
from producers.drift.store import Seen
from tests.envelopes import ORDERS, change, order


class Watched:
    """Monitors of one source without a database; `told` as (monitor, level, turn)."""

    def __init__(self, *fields: dict[str, Any]) -> None:
        given = [{"name": "m", "topic": "t", "value": "v", "cooldown": 0, **item} for item in fields or ({},)]
        self.monitors = [Monitor.of(**item) for item in given]
        self.engine = Engine(self.monitors, lambda keys: {}, {})
        self.at = 0.0

    def feed(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
        for row in rows:
            self.at += 1
            self.engine.feed(self.monitors, [Sample(row, self.at, self.at)])
        told = [(told.monitor.name, told.turn.level, told.turn.turn) for told in self.engine.told]
        self.engine.told = []
        return told

    def values(self, *values: Any) -> list[tuple[int, str]]:
        return [(level, turn) for _, level, turn in self.feed([{"v": value} for value in values])]

    def restart(self) -> None:
        """As after a stop: all that is known comes from JSON."""
        stored: dict[Key, Any] = {key: json.loads(json.dumps(item.dump())) for key, item in self.engine.dirty.items()}
        known = Counter(name for name, _ in stored)
        self.engine = Engine(self.monitors, lambda keys: {key: stored[key] for key in keys if key in stored}, known)


def normal(seed: int, count: int, middle: float = 0.0) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(middle, 1) for _ in range(count)]


BOUND = {"detector": "threshold", "warning": 10, "critical": 100}


def test_one_shift_is_one_episode_however_long_it_lasts() -> None:
    watched = Watched()
    assert watched.values(*normal(1, 1500)) == []
    assert watched.values(*normal(2, 5000, 3.0)) == [(1, "raised"), (2, "raised")]


def test_null_in_one_column_leaves_the_other_columns_be() -> None:
    columns = ({"name": "a", "value": "a"}, {"name": "b", "value": "b"}, {"name": "n", "value": "b",
               "detector": "null_rate"})  # fmt: skip
    watched = Watched(*columns)
    assert watched.feed([{"a": value, "b": 1.0} for value in normal(1, 1500)]) == []
    told = watched.feed([{"a": value, "b": None} for value in normal(2, 80, 4.0)])
    assert {(name, level) for name, level, _ in told} == {("a", 1), ("a", 2), ("n", 1), ("n", 2)}
    assert watched.engine.dirty["b", ""].left_out == {"missing": 80}
    assert watched.engine.dirty["a", ""].count == 1580


def test_few_values_are_learned_from_and_tell_nothing() -> None:
    watched = Watched()
    assert watched.values(*[0.0, 1.0] * 4, *[100.0] * 8) == []
    assert watched.engine.dirty["m", ""].alarm.state == "warming"


@pytest.mark.parametrize("shift", [0.04, 0.06])
def test_shift_too_small_to_matter_is_told_on_no_level_however_many_values_prove_it(shift: float) -> None:
    watched = Watched({"critical_effect": 0.1})
    assert watched.values(*normal(1, 20_000), *normal(2, 40_000, shift)) == []
    assert (2, "raised") in watched.values(*normal(3, 200, 3.0))


def test_empty_text_is_no_null() -> None:
    watched = Watched({"detector": "null_rate"})
    assert watched.values(*["x", ""] * 750, *[""] * 400) == []
    assert (2, "raised") in watched.values(*[None] * 60)
    assert (2, "raised") in Watched({"detector": "shares"}).values(*["x", "y"] * 750, *[""] * 400)


def test_query_without_rows_is_no_data_and_no_recovery() -> None:
    watched = Watched(BOUND | {"no_data_after": 60})
    assert watched.values(50) == [(1, "raised")]
    watched.engine.tick([("m", "")], 61.0)
    alarm = watched.engine.dirty["m", ""].alarm
    assert (alarm.state, alarm.raised, watched.engine.told) == ("no_data", 1, [])
    assert watched.values(1) == [(1, "recovered")]


def test_the_same_values_are_decided_the_same_each_time() -> None:
    stream = [*normal(1, 900), *normal(2, 300, 1.0), *normal(3, 300), *normal(4, 300, -2.0)]
    runs = []
    for size in (1, 7, 1800):
        watched = Watched()
        told = []
        for start in range(0, len(stream), size):
            told += watched.values(*stream[start : start + size])
        runs.append((told, json.dumps(watched.engine.dirty["m", ""].dump())))
    assert runs[0][0] and runs[0] == runs[1] == runs[2]


def test_restart_keeps_what_waits_for_confirmation_and_what_is_raised() -> None:
    watched = Watched(BOUND | {"confirm": 3, "recover": 2})
    assert watched.values(50, 50) == []
    watched.restart()
    assert watched.values(50) == [(1, "raised")]
    assert watched.values(1) == []
    watched.restart()
    assert watched.values(1) == [(1, "recovered")]


@pytest.mark.parametrize("between", [None, float("nan"), "text"], ids=str)
def test_gap_in_the_values_resets_no_confirmation(between: Any) -> None:
    watched = Watched(BOUND | {"confirm": 3, "no_data_after": 5})
    assert watched.values(50, 50, between) == []
    watched.engine.tick([("m", "")], 100.0)
    watched.at = 100.0
    assert watched.values(50) == [(1, "raised")]


def test_value_that_hovers_at_the_bound_tells_once() -> None:
    watched = Watched(BOUND)
    assert watched.values(*[10, 9] * 50) == [(1, "raised")]
    assert watched.values(4) == [(1, "recovered")]


def test_segments_recover_by_themselves_and_share_no_episode() -> None:
    watched = Watched(BOUND | {"segment": "s"})
    told = watched.feed([{"v": 50, "s": "a"}, {"v": 50, "s": "b"}, {"v": 1, "s": "a"}])
    assert [turn for _, _, turn in told] == ["raised", "raised", "recovered"]
    assert watched.engine.dirty["m", "b"].alarm.raised == 1


def test_critical_episode_that_goes_on_is_told_again_only_where_the_monitor_wants_it() -> None:
    quiet = Watched(BOUND)
    assert quiet.values(*[500] * 100) == [(1, "raised"), (2, "raised")]
    watched = Watched(BOUND | {"remind": 30})
    assert watched.values(*[500] * 30) == [(1, "raised"), (2, "raised")]
    watched.restart()
    assert watched.values(*[500] * 40) == [(2, "raised")] * 2
    assert watched.values(1, *[50] * 100) == [(2, "recovered"), (1, "recovered"), (1, "raised")]


def test_reminders_have_ids_of_their_own() -> None:
    watched = Watched(BOUND | {"remind": 30})
    watched.engine.feed(watched.monitors, [Sample({"v": 500}, float(at), float(at)) for at in range(100)])
    found = [events.of(told, Topics()) for told in watched.engine.told]
    assert [event.topic for event in found] == ["drift.warning", *["drift.critical"] * 4]
    assert len({event.id for event in found}) == 5
    assert len({orjson.loads(event.payload)["episode"] for event in found}) == 1


def record(identifier: str, value: Any, at_ms: int, offset: int) -> Record:
    return Record("t", 0, offset, b"k", orjson.dumps({"v": value}), [("id", identifier.encode())], at_ms)


class Read:
    """Messages that go through decoding and deduplication to one monitor's detector."""

    def __init__(self, **fields: Any) -> None:
        self.watched = Watched(fields)
        self.messages = Messages(Decoder(ORDERS.schemas.__getitem__, epoch="1"), self.watched.monitors)
        self.seen = {"topic:t": Seen([])}

    def take(self, records: Sequence[Record]) -> list[tuple[int, str]]:
        engine = self.watched.engine
        for group, samples in self.messages.read(records, None, self.seen, engine.counted):
            engine.feed(group.monitors, samples)
        told = [(told.turn.level, told.turn.turn) for told in engine.told]
        engine.told = []
        return told


def stream(values: Sequence[float], start: int) -> list[Record]:
    return [record(str(uuid.uuid4()), value, 1000 * (start + n), start + n) for n, value in enumerate(values)]


def test_duplicated_message_reaches_the_detector_once_and_it_works_on() -> None:
    once, again = Read(), Read()
    usual, drifted = stream(normal(1, 1500), 0), stream(normal(2, 60, 4.0), 1500)
    for read, records in ((once, usual), (again, [item for one in usual for item in (one, one)] + usual[:300])):
        assert read.take(records) == []
    states = [json.dumps(read.watched.engine.dirty["m", ""].detector.dump()) for read in (once, again)]
    assert states[0] == states[1]
    assert again.watched.engine.counted["t", "duplicate"] == 1800
    assert (2, "raised") in again.take(drifted)


def test_values_out_of_order_tell_nothing_and_leave_the_detector_working() -> None:
    read = Read(late=600)
    usual = stream(normal(1, 3000), 0)
    # Each comes up to 300 s after later ones.
    mixed = [
        item for start in range(0, 3000, 300) for item in random.Random(start).sample(usual[start : start + 300], 300)
    ]
    assert read.take(mixed) == []
    assert read.watched.engine.dirty["m", ""].count == 3000
    assert (2, "raised") in read.take(stream(normal(2, 60, 4.0), 3000))


FAR_AHEAD_MS = 253_370_764_800_000
"""The first of January of the year 9999."""


def test_value_with_a_time_ahead_is_counted_and_the_detector_works_on() -> None:
    read = Read()
    assert read.take(stream(normal(1, 1500), 0)) == []
    headers: list[tuple[str, bytes | None]] = [("id", b"x"), ("occurred_at", b"9998-01-01T00:00:00+00:00")]
    assert read.take([Record("t", 0, 1500, b"k", orjson.dumps({"v": 1.0}), headers, 1_500_000)]) == []
    segment = read.watched.engine.dirty["m", ""]
    assert (segment.left_out, segment.newest) == ({"ahead": 1}, 1499.0)
    assert (2, "raised") in read.take(stream(normal(2, 60, 4.0), 1501))


def test_freshness_tells_silence_after_a_value_with_a_time_ahead() -> None:
    watched = Watched({"detector": "freshness", "warning": 60, "critical": 600})
    assert watched.feed([{}] * 10) == []
    watched.engine.feed(watched.monitors, [Sample({}, FAR_AHEAD_MS / 1000, 11.0)])
    assert watched.engine.dirty["m", ""].due() == 70.0
    watched.engine.tick([("m", "")], 700.0)
    assert [told.turn.level for told in watched.engine.told] == [1, 2]


def test_clock_that_is_a_little_ahead_leaves_nothing_out() -> None:
    watched = Watched({"detector": "freshness", "warning": 60, "critical": 600})
    watched.engine.feed(watched.monitors, [Sample({}, 310.0, 11.0)])
    segment = watched.engine.dirty["m", ""]
    assert (segment.count, segment.due()) == (1, 71.0)


@pytest.mark.parametrize("fields", [{}, {"detector": "freshness", "warning": 60, "critical": 600}])
def test_segment_that_was_blinded_before_sees_again(fields: dict[str, Any]) -> None:
    watched = Watched(fields)
    watched.values(*normal(1, 600))
    state = watched.engine.dirty["m", ""]
    state.newest = FAR_AHEAD_MS / 1000
    if fields:
        state.detector.load([FAR_AHEAD_MS / 1000, 0.0, 0])
    watched.restart()
    watched.values(1.0)
    state = watched.engine.dirty["m", ""]
    assert (state.newest, state.count, state.left_out) == (601.0, 601, {})
    assert state.due() == (661.0 if fields else None)


FRESH = {"detector": "freshness", "warning": 60, "critical": 600}
SILENT = BOUND | {"no_data_after": 60, "tell_no_data": True}


def ticked(watched: Watched, now: float) -> list[tuple[int, str, str]]:
    watched.engine.tick([("m", "")], now)
    told, watched.engine.told = watched.engine.told, []
    return [(item.turn.level, item.turn.turn, item.reading.note) for item in told]


def test_freshness_of_a_source_that_never_gives_anything_is_told() -> None:
    watched = Watched(FRESH)
    watched.engine.begin(["m"], 100.0)
    assert watched.engine.dirty["m", ""].due() == 160.0
    watched.restart()
    watched.engine.begin(["m"], 130.0)
    assert ticked(watched, 159.0) == []
    assert ticked(watched, 160.0) == [(1, "raised", "no event has come in 60 seconds, since the monitor began")]
    watched.at = 170.0
    assert watched.feed([{}]) == [("m", 1, "recovered")]


def test_first_values_of_the_past_are_not_late_for_a_monitor_that_waits() -> None:
    watched = Watched(SILENT)
    watched.engine.begin(["m"], 1e6)
    watched.values(1.0, 2.0)
    assert (watched.engine.dirty["m", ""].count, watched.engine.dirty["m", ""].left_out) == (2, {})


def test_silence_is_told_once_where_the_monitor_asks_for_it_and_so_is_its_end() -> None:
    watched = Watched(SILENT)
    watched.engine.begin(["m"], 100.0)
    watched.restart()
    watched.engine.begin(["m"], 130.0)
    assert ticked(watched, 159.0) == []
    assert ticked(watched, 160.0) == [(1, "raised", "nothing has come for 60 seconds")]
    watched.restart()
    assert ticked(watched, 500.0) == []
    assert watched.engine.dirty["m", ""].alarm.state == "no_data"
    watched.at = 600.0
    assert watched.values(1.0, 2.0) == [(1, "recovered")]
    assert ticked(watched, 700.0) == [(1, "raised", "nothing has come for 98 seconds")]


def test_silence_and_its_end_are_warnings_of_an_episode_of_their_own() -> None:
    watched = Watched(SILENT)
    watched.engine.begin(["m"], 100.0)
    watched.engine.tick([("m", "")], 160.0)
    watched.engine.feed(watched.monitors, [Sample({"v": 50}, 161.0, 161.0)])
    found = [events.of(told, Topics()) for told in watched.engine.told]
    records = [orjson.loads(event.payload) for event in found]
    assert [(event.topic, item["detector"], item["turn"]) for event, item in zip(found, records, strict=True)] == [
        ("drift.warning", "no_data", "raised"),
        ("drift.warning", "no_data", "recovered"),
        ("drift.warning", "threshold", "raised"),
    ]
    assert len({event.id for event in found}) == 3
    assert records[0]["episode"] == records[1]["episode"] != records[2]["episode"]


def test_message_that_cannot_be_read_is_counted_and_stops_nothing() -> None:
    read = Read()
    assert read.take(stream(normal(1, 1500), 0)) == []
    broken = [Record("t", 0, 1500 + n, b"k", b"{not json", [("id", b"x%d" % n)], 1_500_000) for n in range(5)]
    assert read.take(broken) == []
    assert read.watched.engine.counted["t", "undecodable"] == 5
    assert (2, "raised") in read.take(stream(normal(2, 60, 4.0), 1505))


def test_each_monitor_of_a_topic_meets_its_own_operations_alone() -> None:
    topic = {"topic": ORDERS.topic, "value": "quantity", "detector": "threshold", "warning": 100, "critical": 200}
    monitors = [Monitor.of(name="changes", **topic), Monitor.of(name="deletes", operations=["d"], **topic)]
    engine = Engine(monitors, lambda keys: {}, {})
    messages = Messages(Decoder(ORDERS.schemas.__getitem__, epoch="1"), monitors)
    sent = [change(ORDERS, "c", after=order(1), lsn=1), change(ORDERS, "u", before=order(1), after=order(1), lsn=2),
            change(ORDERS, "r", after=order(2), lsn=3), change(ORDERS, "d", before=order(1), lsn=4)]  # fmt: skip
    records = [Record(ORDERS.topic, 0, n, item.key, item.value, item.headers, 1000) for n, item in enumerate(sent)]
    for group, samples in messages.read(records, 2e9, {f"topic:{ORDERS.topic}": Seen([])}, engine.counted):
        engine.feed(group.monitors, samples)
    assert {key[0]: item.count for key, item in engine.dirty.items()} == {"changes": 2, "deletes": 1}
