"""Columns → the bytes of Avro values, a column at once: one function for each kind of type.

A writer takes an array without nulls, unless the type is a union that has null, and returns the
bytes of each value as a binary array. It raises `Unfit` with the place of a value that the type
cannot hold, and the path to it, innermost first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import binaries
from pulsar_spark.schema.avro import decimals, packing
from pulsar_spark.schema.avro.arrays import build_array
from pulsar_spark.schema.avro.defaults import zigzag
from pulsar_spark.schema.avro.lists import spread
from pulsar_spark.schema.avro.types import UUID_TEXT
from pulsar_spark.schema.avro.vectors import ZERO, number, zeros

_INT64 = pa.int64()
_BYTES = pa.binary()
DAY = 86_400 * 10**9


class Unfit(Exception):
    """A value that its type cannot hold: its place in the array, and why."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason
        self.path: list[str] = []

    @property
    def field(self) -> str:
        """The path as people write it, such as ``address.lines[]``."""
        return ".".join(reversed(self.path)).replace(".[", "[").replace(".{", "{")


Write: TypeAlias = Callable[[pa.Array], pa.Array]


def refuse(where: pa.Array, reason: str) -> None:
    """Raise Unfit for the first place where `where` is true."""
    if pc.any(where).as_py():
        raise Unfit(pc.indices_nonzero(where)[0].as_py(), reason)


def required(write: Write) -> Write:
    """Return a writer that refuses nulls."""

    def checked(values: pa.Array) -> pa.Array:
        if values.null_count:
            refuse(values.is_null(), "it is null, and the topic's schema has no null there")
        return write(values)

    return checked


# --- what has no parts ------------------------------------------------------------------------


def write_null(values: pa.Array) -> pa.Array:
    """Write nulls, which take no bytes."""
    refuse(values.is_valid(), "it is not null, and the topic's schema has only null there")
    return packing.joined([], len(values))


def write_long(values: pa.Array) -> pa.Array:
    """Write whole numbers."""
    return packing.joined(packing.varints(values.cast(_INT64)), len(values))


def write_date(values: pa.Array) -> pa.Array:
    """Write dates as days."""
    return write_long(values.view(pa.int32()))


def write_scaled(factor: int, divisor: int) -> Write:
    """Return a writer of timestamps and times that are in another unit than Spark's.

    What lies below the unit is cut off, towards the past.
    """

    def write(values: pa.Array) -> pa.Array:
        found = values.view(_INT64)
        if factor != 1:
            bound = 2**63 // factor
            outside = pc.or_(pc.less(found, number(-bound)), pc.greater_equal(found, number(bound)))
            refuse(outside, "the time is beyond what 64 bits hold in the schema's unit")
            found = pc.multiply(found, number(factor))
        if divisor != 1:
            quotients = pc.divide(found, number(divisor))
            rests = pc.subtract(found, pc.multiply(quotients, number(divisor)))
            found = pc.subtract(quotients, pc.less(rests, ZERO).cast(_INT64))
        return write_long(found)

    return write


def write_time(divisor: int) -> Write:
    """Return a writer of times of day, which come in nanoseconds."""
    scaled = write_scaled(1, divisor)

    def write(values: pa.Array) -> pa.Array:
        found = values.view(_INT64)
        outside = pc.or_(pc.less(found, ZERO), pc.greater_equal(found, number(DAY)))
        refuse(outside, "it is no time of day in nanoseconds")
        return scaled(found)

    return write


def write_floating(kind: pa.DataType) -> Write:
    """Return a writer of floats or doubles."""
    size = kind.bit_width // 8

    def write(values: pa.Array) -> pa.Array:
        found = values.cast(kind)
        data = found.buffers()[1].slice(found.offset * size, len(found) * size)
        return packing.fixed_sized(data, size, len(found))

    return write


def write_boolean(values: pa.Array) -> pa.Array:
    """Write truth values."""
    return packing.booleans(values)


def write_text(values: pa.Array) -> pa.Array:
    """Write text, or bytes, behind their lengths."""
    return packing.joined(packing.texts(values), len(values))


def write_fixed(size: int) -> Write:
    """Return a writer of bytes that are always as many."""

    def write(values: pa.Array) -> pa.Array:
        wrong = pc.not_equal(pc.binary_length(values).cast(_INT64), number(size))
        refuse(wrong, f"it does not have the {size} bytes that the topic's schema asks for")
        return values

    return write


def write_enum(symbols: Sequence[str]) -> Write:
    """Return a writer of the words of an enum."""
    words = build_array([symbol.encode() for symbol in symbols], pa.string())

    def write(values: pa.Array) -> pa.Array:
        found = pc.index_in(values, value_set=words)
        if found.null_count:
            refuse(found.is_null(), f"it is none of the enum's symbols: {', '.join(symbols[:20])}")
        return write_long(found)

    return write


def _one_by_one(values: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    out = []
    for place, value in enumerate(values.to_pylist()):
        try:
            out.append(convert(value))
        except (ValueError, OverflowError) as error:
            raise Unfit(place, str(error)) from None
    return binaries(out)


def write_uuid(values: pa.Array) -> pa.Array:
    """Write UUIDs that come as text as their 16 bytes."""

    def convert(value: str) -> bytes:
        try:
            return UUID(value).bytes
        except ValueError:
            raise ValueError("it is no UUID") from None

    return _one_by_one(values, convert)


def write_uuid_text(values: pa.Array) -> pa.Array:
    """Write UUIDs as the text that they come as."""
    unfit = pc.invert(pc.match_substring_regex(values, UUID_TEXT))
    if pc.any(unfit).as_py():
        raise Unfit(pc.indices_nonzero(unfit)[0].as_py(), "it is no UUID")
    return write_text(values)


def write_duration(values: pa.Array) -> pa.Array:
    """Write structs of months, days and milliseconds as three numbers of 32 bits."""

    def convert(value: dict[str, int | None]) -> bytes:
        parts = [number or 0 for number in value.values()]
        if not all(0 <= part < 2**32 for part in parts):
            raise ValueError("a part of the duration is not between 0 and 4294967295")
        return b"".join(part.to_bytes(4, "little") for part in parts)

    return _one_by_one(values, convert)


def write_decimal(given: pa.DataType, precision: int, scale: int, size: int | None = None) -> Write:
    """Return a writer of decimals, as `size` bytes, or as few as they take behind their length."""
    bound: int = 10**precision
    factor: int = 10 ** max(scale - given.scale, 0)
    divisor: int = 10 ** max(given.scale - scale, 0)

    def convert(digits: bytes) -> bytes:
        scaled = int.from_bytes(digits, "little", signed=True) * factor
        if scaled % divisor or not -bound < scaled // divisor < bound:
            raise ValueError(f"it does not fit decimal({precision},{scale})")
        found = scaled // divisor
        bits = (found if found >= 0 else ~found).bit_length()
        return found.to_bytes(size if size is not None else bits // 8 + 1, "big", signed=True)

    def write(values: pa.Array) -> pa.Array:
        if given.precision <= decimals.DIGITS and given.scale == scale:
            found = decimals.without_points(values)
            refuse(
                decimals.beyond(found, precision), f"it does not fit decimal({precision},{scale})"
            )
            if size is None or 1 <= size <= decimals.WIDTH:
                return _write_narrow(found, size)
        kind, start = pa.binary(16), values.offset
        raw = pa.Array.from_buffers(kind, len(values), [None, values.buffers()[1]], offset=start)
        written = _one_by_one(raw, convert)
        return write_text(written) if size is None else written

    return write


def _write_narrow(found: pa.Array, size: int | None) -> pa.Array:
    if size is not None:
        sizes = pc.add(zeros(len(found)), number(size))
        return packing.packed(decimals.to_words(found, sizes), sizes)
    sizes = decimals.sizes_of(found)
    parts = [*packing.varints(sizes), packing.packed(decimals.to_words(found, sizes), sizes)]
    return packing.joined(parts, len(found))


# --- what has parts ---------------------------------------------------------------------------


def write_record(fields: Sequence[tuple[str, int, Write] | bytes]) -> Write:
    """Return a writer of structs: for each field name, place and writer, or bytes as they are."""

    def write(values: pa.Array) -> pa.Array:
        return write_fields(fields, values.flatten(), len(values))

    return write


def write_fields(
    fields: Sequence[tuple[str, int, Write] | bytes], columns: Sequence[pa.Array], count: int
) -> pa.Array:
    """Write the fields of a record from their columns."""
    parts = []
    for field in fields:
        if isinstance(field, bytes):
            parts.append(packing.constant(field))
            continue
        name, place, write = field
        try:
            parts.append(write(columns[place]))
        except Unfit as error:
            error.path.append(name)
            raise
    return packing.joined(parts, count)


def write_array(write_item: Write) -> Write:
    """Return a writer of lists."""

    def write(values: pa.Array) -> pa.Array:
        sizes, items, ends = _contents(values)
        written = _items(write_item, items, ends, "[]")
        return packing.joined(packing.blocks(sizes, written), len(values))

    return write


def write_map(write_value: Write) -> Write:
    """Return a writer of maps."""

    def write(values: pa.Array) -> pa.Array:
        sizes, pairs, ends = _contents(values)
        keys, items = pairs.flatten()
        written = [*packing.texts(keys), _items(write_value, items, ends, "{}")]
        flat = packing.joined(written, len(keys))
        return packing.joined(packing.blocks(sizes, flat), len(values))

    return write


def _contents(values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the sizes of lists, their items, and where each list ends in these."""
    if not len(values):
        return zeros(0), values.values.slice(0, 0), zeros(0)
    offsets = values.offsets.cast(_INT64)
    edges = pc.subtract(offsets, offsets[0])
    sizes = pc.subtract(edges.slice(1), edges.slice(0, len(values)))
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return sizes, values.values.slice(start, end - start), edges.slice(1)


def _items(write: Write, items: pa.Array, ends: pa.Array, step: str) -> pa.Array:
    try:
        return write(items)
    except Unfit as error:
        # From the item's place to that of the list it is in.
        error.place = pc.sum(pc.less_equal(ends, number(error.place))).as_py() or 0
        error.path.append(step)
        raise


def write_nullable(null_number: int, number_of_type: int, write: Write) -> Write:
    """Return a writer of what can be null: the number of the branch, and the value."""
    null, prefix = zigzag(null_number), packing.constant(zigzag(number_of_type))

    def bodies(values: pa.Array) -> pa.Array:
        return packing.joined([prefix, write(values)], len(values))

    def write_all(values: pa.Array) -> pa.Array:
        if not values.null_count:
            return bodies(values)
        present = values.is_valid()
        try:
            written = bodies(values.filter(present))
        except Unfit as error:
            error.place = pc.indices_nonzero(present)[error.place].as_py()
            raise
        return spread([(present, written)], len(values), _BYTES).fill_null(packing.constant(null))

    return write_all


def write_branch(number_of_type: int, write: Write) -> Write:
    """Return a writer of one of a union's types, none of them null."""
    prefix = packing.constant(zigzag(number_of_type))
    return required(lambda values: packing.joined([prefix, write(values)], len(values)))


def write_union(members: Sequence[tuple[int, Write]], null_number: int | None) -> Write:
    """Return a writer of structs with one member for each type; only one of them is not null."""

    def write(values: pa.Array) -> pa.Array:
        columns = values.flatten()
        filled = [column.is_valid() for column in columns]
        several = zeros(len(values))
        for where in filled:
            several = pc.add(several, where.cast(_INT64))
        refuse(pc.greater(several, number(1)), "more than one member of the union is not null")
        if null_number is None:
            refuse(pc.equal(several, ZERO), "no member of the union is set, and it has no null")
        parts = []
        for place, (where, column, member) in enumerate(zip(filled, columns, members, strict=True)):
            prefix = packing.constant(zigzag(member[0]))
            some = column.filter(where)
            try:
                written = packing.joined([prefix, member[1](some)], len(some))
            except Unfit as error:
                error.place = pc.indices_nonzero(where)[error.place].as_py()
                error.path.append(f"member{place}")
                raise
            parts.append((where, written))
        found = spread(parts, len(values), _BYTES)
        return (
            found if null_number is None else found.fill_null(packing.constant(zigzag(null_number)))
        )

    return write
