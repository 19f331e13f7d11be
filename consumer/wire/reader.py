"""A reader of Avro that is written for one schema, in Python, when a plan is built.

fastavro asks its schema at each field of each message, and a bytes stream for each byte. A function that names the
fields in a row needs a third of the time; it can also pass over what nobody reads. fastavro has the last word: bytes
that the function does not read to their exact end, or raises on, are read again by `avro.read`, so what is refused,
with which error, and what a strange but legal form means, is decided there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from consumer.wire.avro import FAULTS, FRAME_BYTES, Schema, named_types, read, resolve

Read = Callable[[bytes], Any]
"""From a framed message to its datum; raises what `avro.read` raises."""

LeftOut = Mapping[str, frozenset[str]]
"""Full name of a record → fields of it that nobody reads; they are missing in what is read."""

_LONGEST_NUMBER: Final = 10
_SMALL: Final = tuple(byte >> 1 ^ -(byte & 1) if byte < 0x80 else None for byte in range(256))
"""A first byte → the number it is alone, or None where more bytes belong to it."""
_RECORDS: Final = ("record", "error")


def reader(schema: Schema, left_out: LeftOut | None = None) -> Read:
    """The reader of a parsed schema."""
    datum_of = _function(schema, left_out or {})
    if datum_of is None:
        return lambda message: read(schema, message)

    def read_message(message: bytes) -> Any:
        try:
            datum, end = datum_of(message, FRAME_BYTES)
        except FAULTS:
            return read(schema, message)
        return datum if end == len(message) else read(schema, message)

    return read_message


def _function(schema: Schema, left_out: LeftOut) -> Callable[[bytes, int], tuple[Any, int]] | None:
    """(message, place) → (datum, where it ends); None where Python does not take the text, as of 20 nested arrays."""
    source = _Source(named_types(schema), left_out)
    names: dict[str, Any] = {
        "_SMALL": _SMALL,
        "_number": _number,
        "_doubled": _doubled,
        "_double": struct.Struct("<d").unpack_from,
        "_float": struct.Struct("<f").unpack_from,
    }
    try:
        source.function("datum", schema)
        # Names and symbols of the schema are Python literals in the text, made by repr, and nothing else.
        exec("\n".join(source.lines), names)
    except (SyntaxError, RecursionError, MemoryError):
        return None
    function: Callable[[bytes, int], tuple[Any, int]] = names["datum"]
    return function


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of more than one byte, which goes on at `at`: (number, where it ends). The first steps are unrolled."""
    first, second = data[at - 1], data[at]
    if second < 0x80:
        value = first + (second << 7) - 0x80
        return value >> 1 ^ -(value & 1), at + 1
    third = data[at + 1]
    if third < 0x80:
        value = first + (second << 7) + (third << 14) - 0x4080
        return value >> 1 ^ -(value & 1), at + 2
    value = first + (second << 7) + (third << 14) - 0x204080
    at += 2
    shift = 21
    for byte in data[at : at + _LONGEST_NUMBER - 3]:
        at += 1
        if byte < 0x80:
            value += byte << shift
            if value >> 64:
                break
            return value >> 1 ^ -(value & 1), at
        value += (byte - 0x80) << shift
        shift += 7
    raise ValueError("a number does not end, or is too large")


def _doubled(data: bytes, at: int) -> tuple[int, int]:
    """A length that `_value` has found to be no even number of one byte: (twice the length, where it ends)."""
    length, at = _number(data, at)
    if length < 0:
        raise ValueError("a negative length")
    return 2 * length, at


class _Source:
    """Writes the functions. In each, `d` is the message and `i` the place in it.

    `i` never goes back, so a read past the end, which a slice does not refuse, is seen at the end.
    """

    def __init__(self, names: Mapping[str, Schema], left_out: LeftOut) -> None:
        self.lines: list[str] = []
        self._names = names
        self._left_out = left_out
        self._records: dict[str, str] = {}
        self._variables = 0

    def function(self, name: str, schema: Any) -> None:
        """A function `name` (data, place) → (datum, place)."""
        body = self._record(schema) if schema["type"] in _RECORDS else self._value(schema, "v")
        self.lines += [f"def {name}(d, i):", *_indented(body), "    return v, i"]

    def _record(self, record: Schema) -> list[str]:
        lines, entries = [], []
        left_out = self._left_out.get(record["name"], frozenset())
        for field in record["fields"]:
            variable = self._variable()
            if field["name"] in left_out:
                lines += self._skip(field["type"], variable)
            else:
                lines += self._value(field["type"], variable)
                entries.append(f"{field['name']!r}: {variable}")
        return [*lines, f"v = {{{', '.join(entries)}}}"]

    def _value(self, schema: Any, to: str, ahead: int = 0) -> list[str]:
        """Statements that read a value, which begins `ahead` bytes after `i`, into the variable `to`."""
        known = resolve(schema, self._names)
        base = known["type"]
        if isinstance(base, list):
            return self._union(base, ahead, lambda branch: self._value(branch, to, ahead + 1))
        match base:
            case "null":
                return [f"{to} = None", *_on(ahead)]
            case "boolean":
                return [f"{to} = {_byte(ahead)} != 0", *_on(ahead + 1)]
            case "int" | "long":
                return _number_into(to, ahead)
            case "float" | "double":
                size = 8 if base == "double" else 4
                return [f"{to} = _{base}(d, {_place(ahead)})[0]", *_on(ahead + size)]
            case "string":
                return [*_end_of_text(ahead), f"{to} = d[i:j].decode()", "i = j"]
            case "bytes":
                return [*_end_of_text(ahead), f"{to} = d[i:j]", "i = j"]
            case "fixed":
                end = ahead + int(known["size"])
                return [f"{to} = d[{_place(ahead)}:{_place(end)}]", *_on(end)]
            case "enum":
                return [*_number_into(to, ahead), _refuse(f"{to} < 0"), f"{to} = {tuple(known['symbols'])!r}[{to}]"]
            case "array":
                body = self._blocks(to, "[]", lambda item: [*self._value(known["items"], item), f"{to}.append({item})"])
            case "map":
                body = self._blocks(to, "{}", lambda item: self._entry(known["values"], to, item))
            case _:
                return [f"{to}, i = {self._function_of(known)}(d, {_place(ahead)})"]
        return [*_on(ahead), *body]

    def _skip(self, schema: Any, variable: str, ahead: int = 0) -> list[str]:
        """Statements that pass over a value; bytes that are no text are not noticed then."""
        known = resolve(schema, self._names)
        base = known["type"]
        if isinstance(base, list):
            return self._union(base, ahead, lambda branch: self._skip(branch, variable, ahead + 1))
        match base:
            case "null":
                return _on(ahead)
            case "int" | "long":
                return [*_on(ahead), "while d[i] > 127:", "    i += 1", "i += 1"]
            case "string" | "bytes":
                return [*_end_of_text(ahead), "i = j"]
            case "record":
                fields = [line for field in known["fields"] for line in self._skip(field["type"], variable)]
                return [*_on(ahead), *fields]
        return self._value(schema, variable, ahead)

    def _union(self, branches: Sequence[Any], ahead: int, write: Callable[[Any], list[str]]) -> list[str]:
        # The number of a branch is one byte in zigzag: 0, 2, 4, … The last of two is the likelier: the first is null.
        lines = [f"u = {_byte(ahead)}"]
        word = "if"
        for number in reversed(range(len(branches))):
            lines += [f"{word} u == {number * 2}:", *_indented(write(branches[number]))]
            word = "elif"
        return [*lines, "else:", "    raise ValueError('no such branch')"]

    def _blocks(self, to: str, empty: str, write: Callable[[str], list[str]]) -> list[str]:
        count, item = self._variable(), self._variable()
        # Blocks with a size in front have a negative count; they are rare, and fastavro knows them.
        each = [f"for {count} in range({count}):", *_indented(write(item))]
        block = [*_number_into(count, 0), f"if {count} == 0:", "    break", _refuse(f"{count} < 0"), *each]
        return [f"{to} = {empty}", "while True:", *_indented(block)]

    def _entry(self, values: Any, to: str, name: str) -> list[str]:
        value = self._variable()
        return [*self._value("string", name), *self._value(values, value), f"{to}[{name}] = {value}"]

    def _function_of(self, record: Schema) -> str:
        name = self._records.get(record["name"])
        if name is None:
            name = self._records[record["name"]] = f"record_{len(self._records)}"
            self.function(name, record)
        return name

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"


def _number_into(to: str, ahead: int) -> list[str]:
    """Most numbers have one byte, whose zigzag is looked up."""
    return [f"{to} = _SMALL[{_byte(ahead)}]", *_on(ahead + 1), f"if {to} is None: {to}, i = _number(d, i)"]


def _end_of_text(ahead: int) -> list[str]:
    """The place of a text in `i` and where it ends in `j`. The length is doubled by zigzag; an odd one is negative."""
    return [f"j = {_byte(ahead)}", *_on(ahead + 1), "if j & 129: j, i = _doubled(d, i)", "j = i + (j >> 1)"]


def _place(ahead: int) -> str:
    return f"i + {ahead}" if ahead else "i"


def _byte(ahead: int) -> str:
    return f"d[{_place(ahead)}]"


def _on(ahead: int) -> list[str]:
    return [f"i += {ahead}"] if ahead else ["pass"]


def _refuse(condition: str) -> str:
    return f"if {condition}: raise ValueError('left to fastavro')"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
