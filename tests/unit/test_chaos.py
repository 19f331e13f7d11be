"""The pure part of the chaos: what was committed against what came of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.chaos.evidence import Journal
from benchmarks.chaos.faults import FAULTS, rota
from benchmarks.chaos.verdict import judge


def once(*orders: int) -> Counter[int]:
    return Counter(orders)


def test_everything_once_is_clean() -> None:
    verdict = judge({1, 2}, {"row": once(1, 2), "event": once(2, 1)})
    assert verdict.clean
    assert verdict.detail == {
        "row": {"orders": 2, "lost": 0, "doubled": 0},
        "event": {"orders": 2, "lost": 0, "doubled": 0},
    }


def test_an_order_without_one_of_its_outcomes_is_lost() -> None:
    verdict = judge({1, 2, 3}, {"row": once(1, 2, 3), "event": once(1, 3), "effect": once(1)})
    assert (verdict.lost, verdict.doubled) == (frozenset({2, 3}), frozenset())
    assert not verdict.clean


def test_an_outcome_that_came_twice_or_of_nothing_is_doubled() -> None:
    verdict = judge({1, 2}, {"row": once(1, 2), "effect": once(1, 2, 2, 9)})
    assert (verdict.lost, verdict.doubled) == (frozenset(), frozenset({2, 9}))
    assert not verdict.clean


def test_the_journal_tells_acts_from_repeated_requests_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.read()
    lines = [{"order": 1, "key": "a", "acted": True}, {"order": 1, "key": "a", "acted": False}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text + '{"order": 2, "key"')
    journal.read()
    assert (journal.acted, journal.requests, journal.repeats, journal.last) == ({1: 1}, 2, 1, 1)
    with path.open("a") as file:
        file.write(': "b", "acted": true}\n')
    journal.read()
    assert (journal.acted, journal.requests, journal.last) == ({1: 1, 2: 1}, 3, 2)


def test_the_rota_has_every_fault_once_a_round() -> None:
    order = rota(5)
    assert Counter(order) == dict.fromkeys(FAULTS, 5)
    assert set(order[: len(FAULTS)]) == set(FAULTS)
    assert len(order) >= 30
