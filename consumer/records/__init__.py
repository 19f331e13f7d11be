"""What travels between the stages, as plain frozen records, and the one codec that stores them.

`change` holds row changes and events, `jobs` what the executor claims and settles, `codec` the tagged JSON form.
"""

from consumer.records.change import (
    UNCHANGED,
    UNKNOWN_COLUMN,
    Change,
    Coordinates,
    Event,
    Infinity,
    Operation,
    Origin,
    ReadRow,
    Unchanged,
    Value,
)
from consumer.records.codec import decode, encode

__all__ = [
    "UNCHANGED",
    "UNKNOWN_COLUMN",
    "Change",
    "Coordinates",
    "Event",
    "Infinity",
    "Operation",
    "Origin",
    "ReadRow",
    "Unchanged",
    "Value",
    "decode",
    "encode",
]
