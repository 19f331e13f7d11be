"""Whether two values of one column are the same value, as Postgres sees it."""

from __future__ import annotations

from typing import Any


def same(before: Any, after: Any) -> bool:
    """Whether a column holds the same value in both images, also inside arrays and JSON documents.

    NULL is the same as NULL and NaN the same as NaN; a boolean is never a number, as it is in Python.
    """
    if before is after:
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(same(value, after[name]) for name, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, bool) is not isinstance(after, bool):
        return False
    # Only NaN differs from itself.
    return bool(before == after) or bool(before != before and after != after)
