"""Money as budgets keep it: whole millionths of the currency that the prices are in."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

_MILLION: Final = 1_000_000
# 100 billion of any currency; beyond it bigint sums could overflow.
_MOST: Final = Decimal(10**11)


def read_money(text: str) -> int:
    """Millionths of an amount written as a decimal number, such as `0.25`; parts of a millionth count as a whole one.

    Raises:
        ValueError: for what is no such amount.
    """
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= _MOST:
        raise ValueError(f"{text!r} is no amount of money; write a number from 0 on, such as 0.25")
    return int((amount * _MILLION).to_integral_value(ROUND_CEILING))


def cost(tokens: int, per_million: Decimal) -> Decimal:
    """Millionths that `tokens` cost; a price a million tokens is the millionths of one token."""
    return tokens * per_million


def money_text(millionths: int) -> str:
    """An amount as people write it."""
    return f"{Decimal(millionths) / _MILLION:f}"
