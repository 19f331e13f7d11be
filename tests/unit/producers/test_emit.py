"""Events of producers: one identity, one trace, one form."""

from __future__ import annotations

import uuid

from producers.emit import identity


def test_the_same_event_has_the_same_id_wherever_it_is_made() -> None:
    assert identity("drift", "amount", "eu", 3, "warning") == uuid.UUID("773ff5a0-464a-5e2c-948b-f286f0e62ee8")


def test_parts_are_kept_apart() -> None:
    assert identity("drift", "a", "bc") != identity("drift", "ab", "c")
    assert identity("drift", "a") != identity("watchdog", "a")
