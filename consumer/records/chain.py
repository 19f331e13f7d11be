"""Entries of a causation chain: which agent ran, and for which row.

`name@lane`, the lane as 16 hexadecimal digits; written by intake, the outbox and, in the database, by
`rowcall.chain_entry`. Entries without a lane, of earlier versions, name the agent alone.
"""

from __future__ import annotations

import re
from typing import Final

_ENTRY: Final = re.compile(r"(.+)@[0-9a-f]{16}", re.DOTALL)
_BITS: Final = (1 << 64) - 1


def entry(agent: str, lane: int | None) -> str:
    """The entry of an agent that runs for the row of this lane (`key_hash` of its job)."""
    return agent if lane is None else f"{agent}@{lane & _BITS:016x}"


def agent_of(text: str) -> str:
    """The agent's name of an entry."""
    match = _ENTRY.fullmatch(text)
    return text if match is None else match[1]
