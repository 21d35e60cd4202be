"""Limits how many fields the messages in a value have, before protobuf parses it.

An empty message takes two bytes in a value. With a hundred fields it takes a kilobyte in protobuf's
objects and in columns, so a value of a few megabytes could use all memory. The messages of values
that are long enough for this are counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf.types import MessageField, Type
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
)

# An empty message needs a byte for the tag and one for the length.
_SMALLEST = 2
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 70

_Messages = dict[int, "tuple[int, _Messages]"]
"""By tag, the messages in a message: as how many fields each counts, and the messages in it."""


def limit(fields: Sequence[MessageField]) -> Callable[[bytes], None]:
    """Return a function that raises Mismatch for a value whose messages have too many fields."""
    messages = _messages(fields)
    harmless = _SMALLEST * MAX_CELLS // max(_widest(messages), 1)

    def check(value: bytes) -> None:
        if len(value) > harmless and _count(value, messages) > MAX_CELLS:
            raise Mismatch(f"its messages have more than {MAX_CELLS} fields")

    return check


def _messages(fields: Sequence[MessageField]) -> _Messages:
    found: _Messages = {}
    for field in fields:
        if field.message is not None:
            wire_type = START_GROUP if field.type == Type.TYPE_GROUP else DELIMITED
            # Protobuf makes a new message of a oneof whenever the member changes.
            cells = field.message.leaves if field.repeated or field.oneof else 0
            found[field.number << 3 | wire_type] = cells, _messages(field.message.fields)
    return found


def _widest(messages: _Messages) -> int:
    return max((max(cells, _widest(inner)) for cells, inner in messages.values()), default=0)


def _count(value: bytes, messages: _Messages) -> int:
    """Return the number of fields of the messages up to where the bytes are malformed."""
    cells = pos = 0
    levels = [(messages, len(value))]
    try:
        while levels and cells <= MAX_CELLS:
            known, end = levels[-1]
            if pos >= end:
                levels.pop()
                continue
            tag, pos = _varint(value, pos)
            wire_type = tag & 7
            own, inner = known.get(tag, (0, {}))
            cells += own
            if wire_type == DELIMITED:
                size, pos = _varint(value, pos)
                if inner:
                    levels.append((inner, pos + size))
                else:
                    pos += size
            elif wire_type == START_GROUP:
                levels.append((inner, end))
            elif wire_type == END_GROUP:
                levels.pop()
            elif wire_type == VARINT:
                _, pos = _varint(value, pos)
            else:
                pos += _SIZES[wire_type]
    except (IndexError, KeyError):
        pass
    return cells


def _varint(value: bytes, pos: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    number = 0
    for shift in range(0, _LONGEST, 7):
        byte = value[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, pos
    raise IndexError
