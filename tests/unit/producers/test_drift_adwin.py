"""ADWIN's windows: an answer that stands spares looks and changes no decision."""

from __future__ import annotations

import random
from collections.abc import Callable

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from producers.drift.adwin import Adwin, Pair

PIECES: dict[str, Callable[[random.Random, int, float, float], list[float]]] = {
    "normal": lambda chance, count, middle, spread: [chance.gauss(middle, spread) for _ in range(count)],
    "constant": lambda chance, count, middle, spread: [middle] * count,
    "two values": lambda chance, count, middle, spread: chance.choices([middle, middle + spread], k=count),
    "outliers": lambda chance, count, middle, spread: [
        8.0 if chance.random() < 0.02 else chance.gauss(middle, spread) for _ in range(count)
    ],
    "climbing": lambda chance, count, middle, spread: [
        middle + number / count + chance.gauss(0, spread) for number in range(count)
    ],
    "sorted": lambda chance, count, middle, spread: sorted(chance.gauss(middle, spread) for _ in range(count)),
}
PIECE = st.tuples(
    st.sampled_from(sorted(PIECES)), st.integers(5, 900), st.sampled_from([0.0, 0.05, 0.3, 1.0, -4.0]),
    st.sampled_from([0.0, 1e-3, 0.1, 1.0, 2.0]),
)  # fmt: skip
STREAM = st.tuples(st.integers(0, 10_000), st.lists(PIECE, min_size=1, max_size=5))
DRIFTS = (3, [("normal", 900, 0.0, 1.0), ("normal", 400, 0.3, 1.0), ("constant", 60, 0.0, 0.0)])


def values(stream: tuple[int, list[tuple[str, int, float, float]]]) -> list[float]:
    chance = random.Random(stream[0])
    return [value for kind, count, middle, spread in stream[1] for value in PIECES[kind](chance, count, middle, spread)]


def looking(window: Adwin) -> Adwin:
    """The same window, without what it knows beyond its state."""
    return Adwin.load(orjson.loads(orjson.dumps(window.dump())), window.delta, window.clock)


@settings(max_examples=30, deadline=None)
@given(STREAM, st.sampled_from([0.3, 0.05, 0.002]), st.sampled_from([1, 32]))
@example(DRIFTS, 0.05, 1)
def test_window_that_spares_looks_decides_as_one_that_always_looks(
    stream: tuple[int, list[tuple[str, int, float, float]]], delta: float, clock: int
) -> None:
    sparing, always = Adwin(delta, clock), Adwin(delta, clock)
    for value in values(stream):
        always = looking(always)
        assert sparing.update(value) == always.update(value)
    assert sparing.dump() == always.dump()


@settings(max_examples=30, deadline=None)
@given(STREAM)
@example(DRIFTS)
def test_pair_that_spares_looks_decides_as_one_that_always_looks(
    stream: tuple[int, list[tuple[str, int, float, float]]],
) -> None:
    sparing, always = Pair(0.05, 0.002), Pair(0.05, 0.002)
    for value in values(stream):
        always.load(orjson.loads(orjson.dumps(always.dump())))
        assert sparing.update(value) == always.update(value)
    assert sparing.dump() == always.dump()


def test_answer_does_not_stand_for_another_confidence() -> None:
    window = Adwin(1e-9)
    for value in values((3, [("normal", 900, 0.0, 1.0), ("normal", 60, 0.3, 1.0)])):
        assert not window.update(value)
    assert window._left
    window.trust(0.3)
    assert window.changed()


class Counting(Adwin):
    """Counts its looks."""

    looks = 0

    def _look(self) -> bool:
        self.looks += 1
        return super()._look()


def test_window_without_a_change_looks_for_one_value_in_ten_at_most() -> None:
    chance = random.Random(1)
    window = Counting(0.05)
    for _ in range(600):
        window.update(chance.gauss(0, 1))
    window.looks = 0
    for _ in range(2400):
        window.update(chance.gauss(0, 1))
    assert 0 < window.looks < 240
