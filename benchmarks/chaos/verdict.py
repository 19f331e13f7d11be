"""The pure part: what was committed against what came of it, from the outside.

For each order, each kind of outcome must have happened exactly once: the agent's own row in the log, its event on the
result topic, the effect at the receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """Orders that miss an outcome and orders that have one twice; `detail` tells of which kind, by kind."""

    lost: frozenset[int]
    doubled: frozenset[int]
    detail: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is lost and nothing doubled."""
        return not self.lost and not self.doubled


def judge(committed: Set[int], outcomes: Mapping[str, Counter[int]]) -> Verdict:
    """Compare the committed orders with the outcomes of each kind, counted by order."""
    lost: set[int] = set()
    doubled: set[int] = set()
    detail = {}
    for kind, seen in outcomes.items():
        missing = committed - seen.keys()
        # What nobody committed is no less wrong than what came twice.
        twice = {order for order, count in seen.items() if count > 1 or order not in committed}
        lost |= missing
        doubled |= twice
        detail[kind] = {"orders": len(seen), "lost": len(missing), "doubled": len(twice)}
    return Verdict(frozenset(lost), frozenset(doubled), detail)
