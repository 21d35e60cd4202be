"""Columns → values of an AVRO topic: matches columns with fields and encodes them.

The topic's definition decides. Columns are matched by name, and must have the same kind of type, or
a smaller one that loses nothing. Nulls are checked in the rows, because nearly all of Spark's
columns are nullable.

Columns are written one at a time, with one function for each kind of type. A writer takes an array
without nulls, unless the type is a union with null, and returns each value's bytes as a binary
array. It raises `Mismatch` for a value that the type cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arithmetic import ONE, ZERO, floor_divide, number, outside, zeros
from pulsar_spark.schema.arrow.arrays import (
    binaries,
    build_array,
    constant,
    fixed_width,
    joined,
    list_array,
    merged,
    offsets_of,
)
from pulsar_spark.schema.arrow.varints import zigzag, zigzags
from pulsar_spark.schema.avro import decimals
from pulsar_spark.schema.avro.definition import (
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    RecordField,
    TooLarge,
    UnionOf,
    encode_default,
    is_null,
)
from pulsar_spark.schema.avro.reference import check_encoding
from pulsar_spark.schema.avro.resolution import describe
from pulsar_spark.schema.avro.types import (
    DURATION,
    LOCAL,
    NOT_A_UUID,
    TOO_LATE,
    UTC,
    UUID_TEXT,
    WRONG_DURATION,
    WRONG_SIZE,
    arrow_type,
    is_nullable,
    usual_type,
)
from pulsar_spark.schema.codec import Mismatch

_INT64 = pa.int64()
_BYTES = pa.binary()
_EMPTY = constant(b"")
_ENDS = binaries([b"", b"\0"])
_TRUTHS = binaries([b"\0", b"\1"])
DAY = 86_400 * 10**9


Write: TypeAlias = Callable[[pa.Array], pa.Array]


def refuse(where: pa.Array, reason: str) -> None:
    """Raise Mismatch for the first row where `where` is true."""
    if where.true_count:
        raise Mismatch(reason, row=pc.indices_nonzero(where)[0].as_py())


def required(write: Write) -> Write:
    """Return a writer that refuses nulls."""

    def checked(values: pa.Array) -> pa.Array:
        if values.null_count:
            refuse(values.is_null(), "it is null, and the topic's schema does not allow null there")
        return write(values)

    return checked


# --- types without parts ----------------------------------------------------------------------


def write_null(values: pa.Array) -> pa.Array:
    """Write nulls, which take no bytes."""
    refuse(values.is_valid(), "it is not null, and the topic's schema allows only null there")
    return joined([], len(values))


def write_long(values: pa.Array) -> pa.Array:
    """Write whole numbers."""
    return zigzags(values.cast(_INT64))


def write_date(values: pa.Array) -> pa.Array:
    """Write dates as days."""
    return write_long(values.view(pa.int32()))


def write_scaled(factor: int, divisor: int) -> Write:
    """Return a writer of timestamps and times that converts from Spark's unit.

    Finer parts are rounded towards the past.
    """

    def write(values: pa.Array) -> pa.Array:
        found = values.view(_INT64)
        if factor != 1:
            bound = 2**63 // factor
            wrong = outside(found, -bound, bound - 1)
            refuse(wrong, TOO_LATE)
            found = pc.multiply(found, number(factor))
        if divisor != 1:
            found = floor_divide(found, divisor)
        return write_long(found)

    return write


def write_time(divisor: int) -> Write:
    """Return a writer of times of day, given in nanoseconds."""
    scaled = write_scaled(1, divisor)

    def write(values: pa.Array) -> pa.Array:
        found = values.view(_INT64)
        refuse(outside(found, 0, DAY - 1), "it is not a time of day in nanoseconds")
        return scaled(found)

    return write


def write_floating(kind: pa.DataType) -> Write:
    """Return a writer of floats or doubles."""

    def write(values: pa.Array) -> pa.Array:
        return fixed_width(values.cast(kind))

    return write


def write_boolean(values: pa.Array) -> pa.Array:
    """Write truth values."""
    return _TRUTHS.take(values.cast(_INT64))


def write_text(values: pa.Array) -> pa.Array:
    """Write text or bytes, after their lengths."""
    return joined(_behind_lengths(values), len(values))


def write_fixed(size: int) -> Write:
    """Return a writer of bytes of a fixed size."""

    def write(values: pa.Array) -> pa.Array:
        wrong = pc.not_equal(pc.binary_length(values).cast(_INT64), number(size))
        refuse(wrong, WRONG_SIZE.format(size))
        return values

    return write


def write_enum(symbols: Sequence[str]) -> Write:
    """Return a writer of an enum's symbols."""
    words = build_array([symbol.encode() for symbol in symbols], pa.string())

    def write(values: pa.Array) -> pa.Array:
        found = pc.index_in(values, value_set=words)
        if found.null_count:
            refuse(
                found.is_null(), f"it is not one of the enum's symbols: {', '.join(symbols[:20])}"
            )
        return write_long(found)

    return write


def _one_by_one(values: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    out = []
    for place, value in enumerate(values.to_pylist()):
        try:
            out.append(convert(value))
        except (ValueError, OverflowError) as error:
            raise Mismatch(str(error), row=place) from None
    return binaries(out)


def write_uuid(values: pa.Array) -> pa.Array:
    """Write UUIDs, given as text, as 16 bytes."""

    def convert(value: str) -> bytes:
        try:
            return UUID(value).bytes
        except ValueError:
            raise ValueError(NOT_A_UUID) from None

    return _one_by_one(values, convert)


def write_uuid_text(values: pa.Array) -> pa.Array:
    """Write UUIDs, given as text, as text."""
    unfit = pc.invert(pc.match_substring_regex(values, UUID_TEXT))
    refuse(unfit, NOT_A_UUID)
    return write_text(values)


def write_duration(values: pa.Array) -> pa.Array:
    """Write structs of months, days and milliseconds as three 32-bit numbers."""

    def convert(value: dict[str, int | None]) -> bytes:
        parts = [number or 0 for number in value.values()]
        if not all(0 <= part < 2**32 for part in parts):
            raise ValueError(WRONG_DURATION)
        return b"".join(part.to_bytes(4, "little") for part in parts)

    return _one_by_one(values, convert)


def write_decimal(given: pa.DataType, precision: int, scale: int, size: int | None = None) -> Write:
    """Return a writer of decimals, as `size` bytes, or as few as possible after their length."""
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
        return _lowest_bytes(decimals.to_words(found, sizes), sizes)
    sizes = decimals.sizes_of(found)
    parts = [zigzags(sizes), _lowest_bytes(decimals.to_words(found, sizes), sizes)]
    return joined(parts, len(found))


def _lowest_bytes(words: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return the lowest bytes of each word; `sizes` has their number, 0 to 8."""
    count = len(words)
    bitmap = pc.subtract(pc.shift_left(pc.add(zeros(count), ONE), sizes), ONE)
    keep = pa.Array.from_buffers(
        pa.bool_(), 8 * count, [None, bitmap.cast(pa.uint8()).buffers()[1]]
    )
    data = pa.Array.from_buffers(pa.uint8(), 8 * count, [None, words.buffers()[1]])
    return pa.Array.from_buffers(
        _BYTES, count, [None, offsets_of(sizes).buffers()[1], data.filter(keep).buffers()[1]]
    )


def write_opaque(node: Opaque) -> Write:
    """Return a writer of values that are encoded already."""

    def write(values: pa.Array) -> pa.Array:
        for row, value in enumerate(values.to_pylist()):
            try:
                check_encoding(node.type, value)
            except Mismatch as error:
                reason = f"it is no Avro value of the field's type: {error.reason}"
                raise Mismatch(reason, row=row) from None
        return values

    return write


def _behind_lengths(values: pa.Array) -> list[pa.Array]:
    """Return bytes or text after their lengths, as parts to join."""
    return [zigzags(pc.binary_length(values).cast(_INT64)), values.cast(_BYTES)]


def _blocks(sizes: pa.Array, items: pa.Array) -> list[pa.Array]:
    """Return lists as one block each, as parts to join; `sizes` has the numbers of items."""
    lists = list_array(offsets_of(sizes).buffers()[1], items, pa.list_(_BYTES), len(sizes))
    ends = _ENDS.take(pc.greater(sizes, ZERO).cast(_INT64))
    return [zigzags(sizes), pc.binary_join(lists, _EMPTY), ends]


# --- types with parts -------------------------------------------------------------------------


def write_record(fields: Sequence[tuple[str, int, Write] | bytes]) -> Write:
    """Return a writer of structs: for each field its name, place and writer, or constant bytes."""

    def write(values: pa.Array) -> pa.Array:
        return write_fields(fields, values.flatten(), len(values))

    return write


def write_fields(
    fields: Sequence[tuple[str, int, Write] | bytes], columns: Sequence[pa.Array], count: int
) -> pa.Array:
    """Write a record's fields from their columns."""
    parts = []
    for field in fields:
        if isinstance(field, bytes):
            parts.append(constant(field))
            continue
        name, place, write = field
        try:
            parts.append(write(columns[place]))
        except Mismatch as error:
            raise error.within(name) from None
    return joined(parts, count)


def write_array(write_item: Write) -> Write:
    """Return a writer of lists."""

    def write(values: pa.Array) -> pa.Array:
        sizes, items, ends = _contents(values)
        written = _items(write_item, items, ends, "[]")
        return joined(_blocks(sizes, written), len(values))

    return write


def write_map(write_value: Write) -> Write:
    """Return a writer of maps."""

    def write(values: pa.Array) -> pa.Array:
        sizes, pairs, ends = _contents(values)
        keys, items = pairs.flatten()
        written = [*_behind_lengths(keys), _items(write_value, items, ends, "{}")]
        flat = joined(written, len(keys))
        return joined(_blocks(sizes, flat), len(values))

    return write


def _contents(values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the sizes of lists, their items, and each list's end."""
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
    except Mismatch as error:
        # Convert the item's index to its list's.
        place = pc.sum(pc.less_equal(ends, number(error.row))).as_py() or 0
        raise error.within(step, place) from None


def write_nullable(null_number: int, number_of_type: int, write: Write) -> Write:
    """Return a writer of a nullable type: the branch's number, and the value."""
    null, prefix = zigzag(null_number), constant(zigzag(number_of_type))

    def bodies(values: pa.Array) -> pa.Array:
        return joined([prefix, write(values)], len(values))

    def write_all(values: pa.Array) -> pa.Array:
        if not values.null_count:
            return bodies(values)
        present = values.is_valid()
        try:
            written = bodies(values.filter(present))
        except Mismatch as error:
            raise error.within("", pc.indices_nonzero(present)[error.row].as_py()) from None
        return merged([(present, written)], len(values), _BYTES).fill_null(constant(null))

    return write_all


def write_branch(number_of_type: int, write: Write) -> Write:
    """Return a writer of one of a union's types, without nulls."""
    prefix = constant(zigzag(number_of_type))
    return required(lambda values: joined([prefix, write(values)], len(values)))


def write_union(members: Sequence[tuple[int, Write]], null_number: int | None) -> Write:
    """Return a writer of structs with one member per type, of which exactly one is not null."""

    def write(values: pa.Array) -> pa.Array:
        columns = values.flatten()
        filled = [column.is_valid() for column in columns]
        several = zeros(len(values))
        for where in filled:
            several = pc.add(several, where.cast(_INT64))
        refuse(pc.greater(several, number(1)), "more than one member of the union is not null")
        if null_number is None:
            refuse(
                pc.equal(several, ZERO),
                "no member of the union is set, and it does not allow null",
            )
        parts = []
        for place, (where, column, member) in enumerate(zip(filled, columns, members, strict=True)):
            prefix = constant(zigzag(member[0]))
            some = column.filter(where)
            try:
                written = joined([prefix, member[1](some)], len(some))
            except Mismatch as error:
                row = pc.indices_nonzero(where)[error.row].as_py()
                raise error.within(f"member{place}", row) from None
            parts.append((where, written))
        found = merged(parts, len(values), _BYTES)
        return found if null_number is None else found.fill_null(constant(zigzag(null_number)))

    return write


_Fields = list[tuple[str, int, Write] | bytes]


class AvroEncoder:
    """Encodes record batches that have the Arrow schema `columns` as values of a definition."""

    def __init__(self, node: Node, columns: pa.Schema) -> None:
        self._node, self._columns = node, columns
        columns = pa.schema([field.with_type(usual_type(field.type)) for field in columns])
        self._types = columns.types
        fitting = _Fitting()
        if isinstance(node, Record):
            self._fields = fitting.fields(node, columns, "")
        elif len(columns) == 1:
            name = columns.names[0]
            self._fields = [(name, 0, fitting.writer(node, columns.field(0).type, name))]
        else:
            fitting.mismatches.append(
                f"the topic's values are {describe(node)}, not records, so that they come from "
                f"one column, and there are {len(columns)}: select that one"
            )
        if fitting.mismatches:
            shown = "; ".join(fitting.mismatches[:50])
            raise SchemaMismatch(
                f"the DataFrame does not match the topic's schema: {shown}",
                "Change the DataFrame (select, cast, withColumn), or evolve the topic's schema.",
            )

    def __reduce__(self) -> tuple[type[AvroEncoder], tuple[Node, pa.Schema]]:
        return AvroEncoder, (self._node, self._columns)

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row; raises Mismatch."""
        arrays = [
            array if array.type == kind else array.cast(kind)
            for array, kind in zip(columns.columns, self._types, strict=True)
        ]
        return write_fields(self._fields, arrays, columns.num_rows)


class _Fitting:
    """Finds writers for columns; collects mismatches in `mismatches`."""

    def __init__(self) -> None:
        self.mismatches: list[str] = []

    def fields(self, node: Record, given: Sequence[pa.Field], path: str) -> _Fields:
        """Return how to write a record's fields from columns."""
        prefix = f"{path}." if path else ""
        places = {column.name: place for place, column in enumerate(given)}
        known = {field.name for field in node.fields}
        out: _Fields = []
        for field in node.fields:
            place = places.get(field.name)
            if place is None:
                out.append(self._absent(field, prefix + field.name))
                continue
            write = self.writer(field.type, given[place].type, prefix + field.name)
            out.append((field.name, place, write))
        self.mismatches += [
            f"{prefix}{name} is not in the topic's schema: drop it, or add it to the schema"
            for name in places
            if name not in known
        ]
        if len(places) < len(given):
            self.mismatches.append(f"two columns {f'of {path} ' if path else ''}have the same name")
        return out

    def _absent(self, field: RecordField, path: str) -> bytes:
        if field.default is not NO_DEFAULT:
            try:
                data = encode_default(field.type, field.default)
            except TooLarge:
                self.mismatches.append(f"{path} is missing, and its default is too large")
                return b""
            if data is not None:
                return data
        if is_nullable(field.type):
            return encode_default(field.type, None) or b""
        self.mismatches.append(
            f"{path} is missing, and has no default: add it as {describe(field.type)}"
        )
        return b""

    def writer(self, node: Node, kind: pa.DataType, path: str) -> Write:
        """Return the writer for a column and a type."""
        if is_null(node):
            return write_null
        if isinstance(node, UnionOf):
            return self._union(node, kind, path)
        return required(self._present(node, kind, path))

    def _present(self, node: Node, kind: pa.DataType, path: str) -> Write:
        found: Write | None = None
        match node:
            case Record() if pa.types.is_struct(kind):
                found = write_record(self.fields(node, list(kind), path))
            case Array() if pa.types.is_list(kind):
                found = write_array(self.writer(node.items, kind.value_type, f"{path}[]"))
            case Map() if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
                found = write_map(self.writer(node.values, kind.item_type, f"{path}{{}}"))
            case Enum() if pa.types.is_string(kind):
                found = write_enum(node.symbols)
            case Fixed():
                found = _fixed(node, kind)
            case Primitive():
                found = _primitive(node, kind)
            case Opaque() if kind == arrow_type(node):
                found = write_opaque(node)
        if found is None:
            self.mismatches.append(
                f"{path} is {kind}, the topic's schema has {describe(node)}: {_advice(node)}"
            )
            return write_null
        return found

    def _union(self, union: UnionOf, kind: pa.DataType, path: str) -> Write:
        numbers = {place: number for number, place in enumerate(_present_places(union))}
        null_number = next((i for i, m in enumerate(union.members) if is_null(m)), None)
        if pa.types.is_null(kind) and null_number is not None:
            return write_nullable(null_number, 0, write_null)
        names = [f"member{number}" for number in numbers.values()]
        if pa.types.is_struct(kind) and [f.name for f in kind] == names and len(names) > 1:
            members = [
                (place, self._present(union.members[place], field.type, f"{path}.{field.name}"))
                for place, field in zip(numbers, kind, strict=True)
            ]
            write = write_union(members, null_number)
            return write if null_number is not None else required(write)
        before = len(self.mismatches)
        # A column may match a single member: take the first one.
        for place in numbers:
            own = self._present(union.members[place], kind, path)
            if len(self.mismatches) == before or len(numbers) == 1:
                if null_number is None:
                    return write_branch(place, own)
                return write_nullable(null_number, place, own)
            del self.mismatches[before:]
        self.mismatches.append(
            f"{path} is {kind}, the topic's schema has {describe(union)}: make it one of these, or "
            f"a struct of {', '.join(names)}"
        )
        return write_null


def _present_places(union: UnionOf) -> list[int]:
    return [place for place, member in enumerate(union.members) if not is_null(member)]


def _fixed(node: Fixed, kind: pa.DataType) -> Write | None:
    name = node.logical.name if node.logical else ""
    if name == "decimal" and node.logical and pa.types.is_decimal128(kind):
        return write_decimal(kind, node.logical.precision, node.logical.scale, node.size)
    if name == "uuid" and pa.types.is_string(kind):
        return write_uuid
    if name == "duration" and pa.types.is_struct(kind):
        names = [field.name for field in kind]
        whole = all(pa.types.is_integer(field.type) for field in kind)
        return write_duration if whole and names == [f.name for f in DURATION] else None
    if name in ("", "uuid", "duration") and pa.types.is_binary(kind):
        return write_fixed(node.size)
    return None


def _primitive(node: Primitive, kind: pa.DataType) -> Write | None:
    if node.logical is not None and node.logical.name != "uuid":
        return _logical(node.logical, kind)
    found: Write | None = None
    is_whole = pa.types.is_signed_integer(kind)
    match node.kind:
        case "boolean" if pa.types.is_boolean(kind):
            found = write_boolean
        case "int" if is_whole and kind.bit_width <= 32:
            found = write_long
        case "long" if is_whole:
            found = write_long
        case "float" if pa.types.is_float32(kind) or (is_whole and kind.bit_width <= 16):
            found = write_floating(pa.float32())
        case "double" if pa.types.is_floating(kind) or (is_whole and kind.bit_width <= 32):
            found = write_floating(pa.float64())
        case "bytes" if pa.types.is_binary(kind):
            found = write_text
        case "string" if pa.types.is_string(kind):
            found = write_uuid_text if node.logical else write_text
    return found


def _logical(logical: Logical, kind: pa.DataType) -> Write | None:
    name, unit = logical.name, logical.name.rpartition("-")[2]
    if name == "decimal":
        fits = pa.types.is_decimal128(kind)
        write = write_decimal(kind, logical.precision, logical.scale) if fits else None
    elif name == "date":
        fits, write = pa.types.is_date32(kind), write_date
    elif name.startswith("time-"):
        fits = kind in (pa.int64(), pa.time64("ns"))
        write = write_time(1_000_000 if unit == "millis" else 1000)
    else:
        fits = kind == (LOCAL if name.startswith("local-") else UTC)
        write = write_scaled(*_RATIOS[unit])
    return write if fits else None


# Factors that convert from Spark's microseconds.
_RATIOS = {"millis": (1, 1000), "micros": (1, 1), "nanos": (1000, 1)}

_ADVICE = {
    "null": "make it null",
    "int": "cast it to int",
    "long": "cast it to bigint",
    "bytes": "cast it to binary",
    "date": "cast it to date",
    "time-millis": "give the nanoseconds of the day as bigint",
    "time-micros": "give the nanoseconds of the day as bigint",
    "decimal": "cast it to decimal({precision},{scale})",
    "duration": "give a struct of months, days and milliseconds, or binary",
    "uuid": "cast it to string",
}


_OTHER_ADVICE = {
    "Record": "give a struct",
    "Array": "give an array",
    "Opaque": "give its Avro encoding as binary, in JSON its text as string",
}


def _advice(node: Node) -> str:
    match node:
        case Primitive() | Fixed():
            logical = node.logical
            name = logical.name if logical else getattr(node, "kind", "bytes")
            if name.startswith("timestamp-"):
                return "cast it to timestamp_ltz"
            if name.startswith("local-timestamp-"):
                return "cast it to timestamp_ntz"
            advice = _ADVICE.get(name, f"cast it to {name}")
            return advice.format(
                precision=logical.precision if logical else 0, scale=logical.scale if logical else 0
            )
        case Enum():
            return "cast it to string"
        case Map():
            return "give a map with string keys"
    return _OTHER_ADVICE.get(type(node).__name__, "")
