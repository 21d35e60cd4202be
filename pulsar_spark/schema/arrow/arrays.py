"""Arrow arrays: made from Python values or buffers, and with some rows set to null.

If pandas is installed, pyarrow's own `array` and `scalar` import it, which costs each of Spark's
Python workers a second and 50 MB. They also never release memory views passed to them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol.blocks import Buffer

MAX_CELLS = 32 * 1024 * 1024
"""Most fields of all list items in one value, counting absent ones: 256 MiB as columns."""


def width(kind: pa.DataType) -> int:
    """Return how many flat columns a value of a type needs; a list counts as one."""
    if not pa.types.is_struct(kind):
        return 1
    return max(sum(width(field.type) for field in kind), 1)


def widest_item(kind: pa.DataType) -> int:
    """Return the largest width of a list's or map's items in a type, 0 without lists and maps.

    An item of any width may take only a byte or two of a value.
    """
    if pa.types.is_struct(kind):
        return max((widest_item(field.type) for field in kind), default=0)
    if pa.types.is_map(kind):
        return max(1 + width(kind.item_type), widest_item(kind.item_type))
    if pa.types.is_list(kind):
        return max(width(kind.value_type), widest_item(kind.value_type))
    return 0


_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_FLOAT_BITS, _DOUBLE_BITS = Struct("<I"), Struct("<Q")
_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return an array of signed integers, or of a type stored as such, like timestamps."""
    there = validity(values)
    present: Any = values
    if there is not None:
        present = [0 if value is None else value for value in values]
    numbers: array[int] = array(_CODES[kind.bit_width], present)
    return pa.Array.from_buffers(kind, len(values), [there, pa.py_buffer(numbers)])


def binaries(values: Sequence[Buffer | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return an array of bytes, in one copy; `kind` can be `pa.string()` for UTF-8."""
    there = validity(values)
    present: Sequence[Any] = values
    if there is not None:
        present = [value for value in values if value is not None]
    offsets = array("i", accumulate((len(value or b"") for value in values), initial=0))
    buffers = [there, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(kind or pa.binary(), len(values), buffers)


def strings(values: Sequence[str | None]) -> pa.Array:
    """Return an array of text."""
    encoded = [None if value is None else value.encode() for value in values]
    return binaries(encoded, pa.string())


def booleans(values: Sequence[bool]) -> pa.Array:
    """Return an array of truth values."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def from_words(words: array[int], kind: pa.DataType) -> pa.Array:
    """Return an array of a fixed-width type with these stored values, none of them null."""
    return pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(words)])


def as_words(column: pa.Array, code: str) -> array[int]:
    """Return a copy of an array's numbers; `code` is their type in the module `array`."""
    words: array[int] = array(code)
    size = words.itemsize
    # An empty array may have no buffer.
    if len(column):
        words.frombytes(column.buffers()[1].slice(size * column.offset, size * len(column)))
    return words


def repeated_by_run(values: pa.Array, stops: array[int]) -> pa.Array:
    """Return an array that repeats each value up to the row where its run stops."""
    ends = from_words(stops, pa.int32())
    # `from_arrays` would import pandas.
    encoded = pa.RunEndEncodedArray.from_buffers(
        pa.run_end_encoded(pa.int32(), values.type),
        stops[-1],
        [None],
        children=[ends, values],
    )
    return pc.run_end_decode(encoded)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    # The first flag is the lowest bit of the first byte.
    digits = "".join(["1" if flag else "0" for flag in reversed(flags)])
    return pa.py_buffer(int(digits or "0", 2).to_bytes((len(flags) + 7) // 8, "little"))


def build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of the type `kind`.

    Values are None, bool, int (for dates, times and timestamps: as Arrow stores them; for decimals:
    the unscaled number), bytes (for text: UTF-8; for floats: as Arrow stores them, because Python's
    floats do not keep every NaN), lists of items, lists of pairs for maps, and lists of fields for
    structs.
    """
    if pa.types.is_nested(kind):
        return _nested(values, kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), kind)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return binaries(values, kind)
    data: Any
    if pa.types.is_boolean(kind):
        data = booleans([bool(value) for value in values]).buffers()[1]
    elif pa.types.is_floating(kind):
        zero = bytes(kind.bit_width // 8)
        data = b"".join([value or zero for value in values])
    elif pa.types.is_decimal(kind):
        data = b"".join([(value or 0).to_bytes(16, "little", signed=True) for value in values])
    else:
        return integers(values, kind)
    return pa.Array.from_buffers(kind, len(values), [validity(values), pa.py_buffer(data)])


def validity(values: Sequence[Any]) -> pa.Buffer | None:
    """Return the validity bitmap, None if no value is null."""
    return _bits([value is not None for value in values]) if None in values else None


def struct_array(
    count: int, children: Sequence[pa.Array], kind: pa.DataType, present: pa.Buffer | None = None
) -> pa.Array:
    """Return an array of structs with `children`, of which there may be none."""
    return pa.Array.from_buffers(kind, count, [present], children=list(children))


def offsets_of(sizes: pa.Array) -> pa.Array:
    """Return the 32-bit offsets of parts with these sizes; true counts as 1, false as 0."""
    ends = pc.cumulative_sum_checked(sizes.cast(pa.int32()))
    return pa.concat_arrays([_START, ends])


_START = integers([0], pa.int32())


def usual_type(kind: pa.DataType) -> pa.DataType:
    """Convert types with 64-bit offsets, which Spark may be set to use, to 32-bit offsets."""
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_usual_field(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_usual_field(kind.key_field), _usual_field(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_usual_field(field) for field in kind])
    return kind


def _usual_field(field: pa.Field) -> pa.Field:
    return field.with_type(usual_type(field.type))


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as a type like its own, which may have other names and widths of offsets.

    Fields of structs are the same by their place: Arrow would look for their names, and find null
    where only the case is another one.
    """
    return column if column.type == kind else _renamed(column, kind).cast(kind)


def _renamed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column whose structs' fields have the wanted names."""
    kind = column.type
    if pa.types.is_struct(kind):
        places = range(kind.num_fields)
        parts = [_renamed(column.field(place), wanted.field(place).type) for place in places]
        fields = [
            kind.field(place).with_name(wanted.field(place).name).with_type(parts[place].type)
            for place in places
        ]
        if pa.struct(fields) == kind:
            return column
        present = column.is_valid().buffers()[1] if column.null_count else None
        return struct_array(len(column), parts, pa.struct(fields), present)
    if not (pa.types.is_list(kind) or pa.types.is_map(kind)):
        return column
    is_map = pa.types.is_map(kind)
    inner, to = column.values, pair_type(wanted) if is_map else wanted.value_type
    items = _renamed(inner, to)
    if items is inner:
        return column
    kind = (
        pa.map_(*(items.type.field(place).with_nullable(place > 0) for place in (0, 1)))
        if is_map
        else pa.list_(kind.value_field.with_type(items.type))
    )
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:2], offset=column.offset, children=[items]
    )


def pair_type(kind: pa.DataType) -> pa.DataType:
    """Return the struct type of a map's entries."""
    return pa.struct([kind.key_field, kind.item_field])


def _nested(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    present = validity(values)
    if pa.types.is_struct(kind):
        missing = [None] * kind.num_fields
        rows = [missing if value is None else value for value in values]
        fields = list(kind)
        columns = [
            build_array([row[place] for row in rows], field.type)
            for place, field in enumerate(fields)
        ]
        return struct_array(len(values), columns, kind, present)
    lengths = (0 if value is None else len(value) for value in values)
    offsets = pa.py_buffer(array("i", accumulate(lengths, initial=0)))
    flat = [item for value in values if value is not None for item in value]
    inner = pair_type(kind) if pa.types.is_map(kind) else kind.value_type
    items = build_array(flat, inner)
    return pa.Array.from_buffers(kind, len(values), [present, offsets], children=[items])


def cells_of(column: pa.Array) -> list[Any]:
    """Return an array's values in the form that `build_array` takes, but structs as tuples."""
    kind = column.type
    found: list[Any]
    if pa.types.is_struct(kind):
        parts = [cells_of(part) for part in column.flatten()]
        found = list(zip(*parts, strict=True)) if parts else [()] * len(column)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        edges = as_words(column.offsets, "i")
        items = cells_of(column.values.slice(edges[0], edges[-1] - edges[0]))
        edges = array("i", [edge - edges[0] for edge in edges])
        found = [items[start:end] for start, end in pairwise(edges)]
    elif pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    else:
        found = _flat_cells(column)
    if not column.null_count:
        return found
    valid = column.is_valid().to_pylist()
    return [cell if there else None for cell, there in zip(found, valid, strict=True)]


def _flat_cells(column: pa.Array) -> list[Any]:
    kind, buffers = column.type, column.buffers()
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        data = b"" if buffers[2] is None else buffers[2].to_pybytes()
        edges = memoryview(buffers[1]).cast("i")[column.offset :][: len(column) + 1]
        return [data[start:end] for start, end in pairwise(edges)]
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return as_words(column, _CODES[kind.bit_width]).tolist()
    width = kind.bit_width // 8
    data = buffers[1].slice(column.offset * width, len(column) * width).to_pybytes()
    found = [data[start : start + width] for start in range(0, len(data), width)]
    if pa.types.is_floating(kind):
        return found
    return [int.from_bytes(each, "little", signed=True) for each in found]


def double_of(cell: bytes) -> bytes:
    """Return the cell of a double, given that of a double or float."""
    return widened(cell) if len(cell) == _FLOAT.size else cell


def widened(data: bytes) -> bytes:
    """Return the cell of a double, given that of a float."""
    (bits,) = _FLOAT_BITS.unpack(data)
    if bits & 0x7FFFFFFF <= 0x7F800000:
        return _DOUBLE.pack(*_FLOAT.unpack(data))
    # Processors make signalling NaNs quiet, and keep the other bits.
    sign, payload = bits >> 31, bits & 0x007FFFFF
    return _DOUBLE_BITS.pack(sign << 63 | 0x7FF8 << 48 | payload << 29)


def spread(packed: pa.Array, present: pa.BooleanArray) -> pa.Array:
    """Return a column with the values of `packed`, in order, where `present` is true."""
    counts = pc.cumulative_sum(present.cast(pa.int64()))
    ranks = pc.subtract(counts, integers([1], pa.int64())[0])
    return packed.take(pc.if_else(present, ranks, pa.nulls(1, pa.int64())[0]))


def first_not_text(column: pa.Array) -> int | None:
    """Return the first row with a string, at any depth, that is not UTF-8; None if there is none.

    Spark makes such strings: ``CAST(binary AS STRING)`` checks nothing.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(column):
            try:
                value.as_py()
            except UnicodeDecodeError:
                return row
    return None


def without(column: pa.Array, rows: Iterable[int]) -> pa.Array:
    """Return a column with null in these rows."""
    flags = bytearray(b"\x01") * len(column)
    for row in rows:
        flags[row] = 0
    if all(flags):
        return column
    places = integers([row if flag else None for row, flag in enumerate(flags)], pa.int64())
    return column.take(places)


# --- bytes, row by row ------------------------------------------------------------------------


def constant(data: bytes) -> pa.Scalar:
    """Return bytes as an Arrow scalar."""
    return binaries([data])[0]


_NOTHING = constant(b"")


def joined(parts: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Array:
    """Return, for each of `count` rows, the joined bytes of all parts; scalars repeat."""
    found = pc.binary_join_element_wise(*parts, _NOTHING) if parts else _NOTHING
    return found if isinstance(found, pa.Array) else pa.repeat(found, count)
