"""One row at a time → bytes of a protobuf message: the reference, and the way without the kernel.

Values are cells, in the form of `arrays.cells_of`. A message's fields are written in the order of
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError

from pulsar_spark.schema.arrow.arrays import double_of
from pulsar_spark.schema.arrow.varints import varint, zigzag
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf.fitting import Plan
from pulsar_spark.schema.protobuf.types import EnumType
from pulsar_spark.schema.protobuf.well_known import json_message, split_duration, split_timestamp
from pulsar_spark.schema.protobuf.wire import signed

Write: TypeAlias = Callable[[Any], bytes]
"""Returns a value's bytes; raises Mismatch for one that the field cannot hold."""

_FILL = "Fill it, for example with coalesce, or drop it."
_CHANGE = "Change the value or drop the row."
_JSON_REMEDY = "Write JSON as RFC 8259 has it: an object for a Struct, an array for a ListValue."


def message_writer(plan: Plan) -> Write:
    """Return the function that writes a message, given the cells of its columns."""
    return _message("", *plan)


def _message(
    path: str,
    fields: Sequence[tuple[int, Plan, str]],
    oneofs: Sequence[Sequence[int]],
    names: Sequence[str],
) -> Write:
    prefix = f"{path}." if path else ""
    writers = [(place, _field(prefix + name, *plan)) for place, plan, name in fields]
    columns = {place: name for place, _, name in fields}

    def write(cells: Sequence[Any]) -> bytes:
        for name, places in zip(names, oneofs, strict=True):
            there = [columns[place] for place in places if cells[place] is not None]
            if len(there) > 1:
                reason = f"it has more than one member: {', '.join(there)}"
                raise Mismatch(reason, prefix + name, remedy="Set all but one of them to null.")
        return b"".join([write_field(cells[place]) for place, write_field in writers])

    return write


def _field(
    path: str,
    form: str,
    head: bytes,
    end: bytes,
    nullable: bool,
    omits_zero: bool,
    value: Plan,
) -> Write:
    """Return the function that writes a column's cell as the records of a field."""
    kind, *parts = value
    if kind in _SCALARS:
        write = _SCALARS[kind](path, *parts)
        null = "it is null, and the schema does not allow null there"
    else:
        message = _MESSAGES[kind](path, *parts)
        write = message if end else lambda value: _sized(message(value))
        null = "it is null, and the schema requires it"
    if form != "single":
        return _list(path, form, head, end, write)

    def write_single(value: Any) -> bytes:
        if value is None and not nullable:
            raise Mismatch(null, path, remedy=_FILL)
        if value is None or (kind == "truth" and not value):
            return b""
        data = write(value)
        # All values but zero, and no text but the empty one, have some bit set.
        return b"" if omits_zero and not any(data) else head + data + end

    return write_single


def _list(path: str, form: str, head: bytes, end: bytes, write: Write) -> Write:
    def write_list(items: list[Any] | None) -> bytes:
        if items is None:
            reason = "it is null, and protobuf has no lists and maps that are null"
            raise Mismatch(reason, path, remedy=_FILL)
        if None in items:
            raise Mismatch("it has an element that is null", path, remedy=_FILL)
        if form == "packed":
            return head + _sized(b"".join(map(write, items))) if items else b""
        return b"".join([head + write(item) + end for item in items])

    return write_list


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


# --- messages -----------------------------------------------------------------------------


def _time(path: str, split: Callable[[int, str, str], Any], tags: Sequence[bytes]) -> Write:
    def write(micros: int) -> bytes:
        numbers = split(micros, path, _CHANGE)
        return b"".join(
            [tag + signed(number) for tag, number in zip(tags, numbers, strict=True) if number]
        )

    return write


def _checked(value: bytes, path: str) -> bytes:
    try:
        empty_pb2.Empty.FromString(value)
    except (DecodeError, RecursionError):
        raise Mismatch("it is not a protobuf message", path, remedy=_CHANGE) from None
    return value


_MESSAGES: Mapping[str, Callable[..., Write]] = {
    "message": _message,
    "field": lambda path, field: _field(path, *field),
    "empty": lambda path: lambda value: b"",
    "truth": lambda path: lambda value: b"",
    "message bytes": lambda path: lambda value: _checked(value, path),
    "json": lambda path, name: lambda value: json_message(name, value, path, _JSON_REMEDY),
    "timestamp": lambda path, *tags: _time(path, split_timestamp, tags),
    "duration": lambda path, *tags: _time(path, split_duration, tags),
}


# --- scalars ------------------------------------------------------------------------------


def _whole(path: str, written: str, low: int, high: int, name: str) -> Write:
    put = _WRITTEN[written]

    def write(value: int) -> bytes:
        if not low <= value <= high:
            reason = f"it is {value}, and the schema's {name} ranges from {low} to {high}"
            raise Mismatch(reason, path, remedy=_CHANGE)
        return put(value)

    return write


_WRITTEN: Mapping[str, Callable[[int], bytes]] = {
    "varint": signed,
    "zigzag": zigzag,
    "fixed32": lambda value: (value & 2**32 - 1).to_bytes(4, "little"),
    "fixed64": lambda value: (value & 2**64 - 1).to_bytes(8, "little"),
}


def _enum(path: str, names: Sequence[tuple[bytes, bytes]], enum: EnumType) -> Write:
    def write(name: bytes) -> bytes:
        number = _number_of(enum, name.decode(errors="replace"))
        if number is None:
            shown = name.decode(errors="replace")[:100]
            raise Mismatch(
                f"it is {shown!r}, which is not a symbol of the enum",
                path,
                remedy=f"It has {', '.join(list(enum.numbers)[:50])}.",
            )
        return signed(number)

    return write


def _number_of(enum: EnumType, name: str) -> int | None:
    if name in enum.numbers:
        return enum.numbers[name]
    # Numbers without a name are read as text, and written from it if the enum is open.
    digits = name.removeprefix("-")
    if enum.closed or not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    value = int(name)
    return value if -(2**31) <= value < 2**31 else None


_SCALARS: Mapping[str, Callable[..., Write]] = {
    "whole": _whole,
    "boolean": lambda path: lambda value: b"\1" if value else b"\0",
    "float": lambda path: bytes,
    "double": lambda path: double_of,
    "bytes": lambda path: _sized,
    "enum": _enum,
}
