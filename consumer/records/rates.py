"""A rate: so many in so long, as agents and settings write it (`100/min`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_FORM: Final = re.compile(rf"\s*([0-9]{{1,9}})\s*/\s*({'|'.join(_SECONDS)})\s*")


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` in `seconds`."""

    count: int
    seconds: float

    def __str__(self) -> str:
        """As it is written."""
        units = {seconds: unit for unit, seconds in _SECONDS.items()}
        return f"{self.count}/{units.get(self.seconds, f'{self.seconds:g} s')}"


def read_rate(text: str) -> Rate:
    """The rate of a text such as `100/min`.

    Raises:
        ValueError: saying how a rate is written.
    """
    found = _FORM.fullmatch(text)
    if found is None or int(found[1]) < 1:
        raise ValueError(f"{text!r} is no rate; write a number, a slash and one of {', '.join(_SECONDS)}: 100/min")
    return Rate(int(found[1]), _SECONDS[found[2]])
