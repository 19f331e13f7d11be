"""What pydantic says about a wrong setting or table, in the words of the person who has to correct it."""

from __future__ import annotations

from pydantic import ValidationError


def faults(error: ValidationError, whole: str, document: str) -> str:
    """Each wrong key with its fault, separated by semicolons.

    Args:
        error: What pydantic raised.
        whole: The word for the place of a fault that belongs to no single key.
        document: The manual that lists the keys.
    """
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or whole}: {plain(item['msg'], document)}"
        for item in error.errors(include_input=False)
    )


def plain(message: str, document: str = "") -> str:
    """One fault without pydantic's own words; an unknown key names the manual that has those there are."""
    if message.startswith("Extra inputs"):
        return f"there is no such key; {document} has those there are"
    return message.removeprefix("Value error, ")
