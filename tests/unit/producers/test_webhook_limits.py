"""What a webhook may take of this process: its memory is bounded over all senders."""

from __future__ import annotations

from producers.webhooks.endpoint import Bucket, Room


def test_bodies_beyond_the_room_are_turned_away_until_others_have_gone() -> None:
    room = Room(10)
    assert room.take(6)
    assert not room.take(5)
    assert room.take(4)
    room.give(6)
    assert room.take(5)


def test_burst_is_taken_at_once_and_no_more() -> None:
    bucket = Bucket(rate=0.001, burst=3)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
