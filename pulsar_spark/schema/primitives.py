"""Primitive schemas of a fixed width: one value per message, as one column.

The encodings are those of Java's client; all numbers are big-endian:

    BOOLEAN          1 byte, 0 is false
    INT8 … INT64     1, 2, 4 or 8 bytes, with sign
    FLOAT, DOUBLE    4 or 8 bytes, IEEE 754
    DATE, TIMESTAMP  int64, milliseconds since 1970 in UTC
    TIME             int64, milliseconds, of which only the time of the day in UTC counts
    INSTANT          int64 seconds since 1970 in UTC, int32 nanoseconds
    LOCAL_DATE       int64, days since 1970
    LOCAL_TIME       int64, nanoseconds of the day
    LOCAL_DATE_TIME  int64 days since 1970, int64 nanoseconds of the day

Lost when reading: a DATE is a moment in Java, here it is that moment's day in UTC; times have
microseconds, and finer parts are rounded towards the past. When writing, DATE is midnight in UTC,
and TIMESTAMP and TIME have milliseconds, again rounded towards the past.

Bytes are reversed for whole arrays, without a Python object per value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import unpack_from

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, PRIMITIVE_NAMES, SchemaInfo
from pulsar_spark.schema.arrow.arithmetic import floor_divide, floor_modulo, number, outside
from pulsar_spark.schema.arrow.arrays import as_words, from_words, integers, spread, without
from pulsar_spark.schema.codec import Decoded, Mismatch, Undecodable
from pulsar_spark.schema.table.names import VALUE

_MICROS = pa.timestamp("us", tz="UTC")
_LOCAL_MICROS = pa.timestamp("us")
_MILLIS_PER_DAY = 86_400_000
_MICROS_PER_DAY = _MILLIS_PER_DAY * 1000
_NANOS_PER_DAY = _MICROS_PER_DAY * 1000
_MAX_MICROS = 2**63 - 1
_MAX_DAYS = 2**31 - 1

Numbers = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to read and write a type with a fixed width.

    `word` is the array typecode of a value's numbers. `read` converts them to a column, with null
    for values out of range; `write` converts a column to numbers.
    """

    arrow: pa.DataType
    width: int
    word: str
    read: Callable[[array[int]], pa.Array]
    write: Callable[[pa.Array], array[int]]
    accepts: tuple[pa.DataType, ...] = ()


# --- arithmetic on columns ----------------------------------------------------------------


def _within(numbers: pa.Array, low: int, high: int) -> pa.Array:
    """Return the numbers, null for those outside `low` to `high`."""
    return pc.if_else(outside(numbers, low, high), pa.nulls(1, pa.int64())[0], numbers)


def _micros(whole: pa.Array, factor: int, nanos: pa.Array) -> pa.Array:
    """Return microseconds of seconds or days and the rest of them, null on overflow of 64 bits."""
    limit = _MAX_MICROS // factor
    # The lowest one may exceed 64 bits until the rest is added: the sum has the right sign then.
    product = pc.multiply(_within(whole, -limit - 1, limit), number(factor))
    micros = pc.add(product, pc.divide(nanos, number(1000)))
    wrapped = pc.xor(pc.less(whole, number(0)), pc.less(micros, number(0)))
    return pc.if_else(wrapped, pa.nulls(1, pa.int64())[0], micros)


# --- from numbers to columns and back -----------------------------------------------------


def _plain(arrow: pa.DataType, word: str, *accepts: pa.DataType) -> _Kind:
    return _Kind(
        arrow,
        array(word).itemsize,
        word,
        lambda words: from_words(words, arrow),
        lambda column: as_words(column, word),
        accepts,
    )


def _mapped(arrow: pa.DataType, read: Numbers, write: Numbers) -> _Kind:
    """A type of one int64; `read` and `write` convert from and to the column's numbers."""
    return _Kind(
        arrow,
        8,
        "q",
        lambda words: read(from_words(words, pa.int64())),
        lambda column: as_words(write(column), "q"),
    )


def _read_boolean(words: array[int]) -> pa.Array:
    return pc.not_equal(from_words(words, pa.int8()), integers([0], pa.int32())[0].cast(pa.int8()))


def _write_boolean(column: pa.Array) -> array[int]:
    return as_words(column.cast(pa.int8()), "b")


def _read_date(millis: pa.Array) -> pa.Array:
    return _days(floor_divide(millis, _MILLIS_PER_DAY))


def _days(days: pa.Array) -> pa.Array:
    return _within(days, -_MAX_DAYS - 1, _MAX_DAYS).cast(pa.int32()).view(pa.date32())


def _day_numbers(dates: pa.Array) -> pa.Array:
    return dates.view(pa.int32()).cast(pa.int64())


def _read_instant(words: array[int]) -> pa.Array:
    seconds = array("i", bytes(len(words) // 3 * 8))
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    seconds[high::2], seconds[low::2] = words[0::3], words[1::3]
    whole = pa.Array.from_buffers(pa.int64(), len(words) // 3, [None, pa.py_buffer(seconds)])
    nanos = from_words(words[2::3], pa.int32()).cast(pa.int64())
    nanos = _within(nanos, 0, 999_999_999)
    return _micros(whole, 1_000_000, nanos).view(_MICROS)


def _write_instant(column: pa.Array) -> array[int]:
    micros = column.view(pa.int64())
    seconds = as_words(floor_divide(micros, 1_000_000), "q")
    nanos = pc.multiply(floor_modulo(micros, 1_000_000), number(1000))
    halves: array[int] = array("i")
    halves.frombytes(seconds.tobytes())
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    words = array("i", bytes(12 * len(column)))
    words[0::3], words[1::3] = halves[high::2], halves[low::2]
    words[2::3] = as_words(nanos.cast(pa.int32()), "i")
    return words


def _read_local_date_time(words: array[int]) -> pa.Array:
    days = from_words(words[0::2], pa.int64())
    nanos = _within(from_words(words[1::2], pa.int64()), 0, _NANOS_PER_DAY - 1)
    return _micros(days, _MICROS_PER_DAY, nanos).view(_LOCAL_MICROS)


def _write_local_date_time(column: pa.Array) -> array[int]:
    micros = column.view(pa.int64())
    words = array("q", bytes(16 * len(column)))
    words[0::2] = as_words(floor_divide(micros, _MICROS_PER_DAY), "q")
    rest = floor_modulo(micros, _MICROS_PER_DAY)
    words[1::2] = as_words(pc.multiply(rest, number(1000)), "q")
    return words


def _write_time_of_day(nanos: pa.Array) -> pa.Array:
    valid = _within(nanos, 0, _NANOS_PER_DAY - 1)
    if valid.null_count > nanos.null_count:
        row = pc.indices_nonzero(pc.and_(nanos.is_valid(), valid.is_null()))[0].as_py()
        raise Mismatch(
            f"it is {nanos[row]}, which is not a time of day",
            VALUE,
            row,
            "Write nanoseconds since midnight, from 0 to 86399999999999.",
        )
    return valid


_INT8, _INT16, _INT32, _INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()

_KINDS: dict[int, _Kind] = {
    pb.Schema.Bool: _Kind(pa.bool_(), 1, "b", _read_boolean, _write_boolean),
    pb.Schema.Int8: _plain(_INT8, "b"),
    pb.Schema.Int16: _plain(_INT16, "h", _INT8),
    pb.Schema.Int32: _plain(_INT32, "i", _INT8, _INT16),
    pb.Schema.Int64: _plain(_INT64, "q", _INT8, _INT16, _INT32),
    # As integers of the same width: only the byte order changes.
    pb.Schema.Float: _plain(pa.float32(), "i", _INT8, _INT16),
    pb.Schema.Double: _plain(pa.float64(), "q", _INT8, _INT16, _INT32, pa.float32()),
    pb.Schema.Date: _mapped(
        pa.date32(),
        _read_date,
        lambda dates: pc.multiply(_day_numbers(dates), number(_MILLIS_PER_DAY)),
    ),
    pb.Schema.Time: _mapped(
        _INT64,
        lambda millis: pc.multiply(floor_modulo(millis, _MILLIS_PER_DAY), number(1_000_000)),
        lambda nanos: pc.divide(_write_time_of_day(nanos), number(1_000_000)),
    ),
    pb.Schema.Timestamp: _mapped(
        _MICROS,
        lambda millis: _micros(millis, 1000, number(0)).view(_MICROS),
        lambda micros: floor_divide(micros.view(_INT64), 1000),
    ),
    pb.Schema.Instant: _Kind(_MICROS, 12, "i", _read_instant, _write_instant),
    pb.Schema.LocalDate: _mapped(pa.date32(), _days, _day_numbers),
    pb.Schema.LocalTime: _mapped(
        _INT64, lambda nanos: _within(nanos, 0, _NANOS_PER_DAY - 1), _write_time_of_day
    ),
    pb.Schema.LocalDateTime: _Kind(
        _LOCAL_MICROS, 16, "q", _read_local_date_time, _write_local_date_time
    ),
}

# The primitive type for a column. Time types keep microseconds, and their zone or its absence.
_SCHEMA_TYPES: dict[pa.DataType, int] = {
    pa.binary(): BYTES,
    pa.string(): pb.Schema.String,
    pa.bool_(): pb.Schema.Bool,
    _INT8: pb.Schema.Int8,
    _INT16: pb.Schema.Int16,
    _INT32: pb.Schema.Int32,
    _INT64: pb.Schema.Int64,
    pa.float32(): pb.Schema.Float,
    pa.float64(): pb.Schema.Double,
    pa.date32(): pb.Schema.LocalDate,
    _MICROS: pb.Schema.Instant,
    _LOCAL_MICROS: pb.Schema.LocalDateTime,
}


# --- the codec's functions ----------------------------------------------------------------


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return the values' one column ``value``.

    Raises SchemaMismatch if the schema is not a primitive.
    """
    return pa.schema([(VALUE, _arrow_type(info))])


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> PrimitiveDecoder:
    """Return a decoder of values written with `writer` to `fields`: its column or none.

    Raises SchemaMismatch if the types differ, unless both are integers or floats and the reader's
    type holds all values exactly; and if another column is requested.
    """
    unknown = [name for name in fields if name != VALUE]
    if unknown:
        raise SchemaMismatch(
            f"values of type {reader.type_name} have no column {unknown[0]!r}",
            f"Their only column is {VALUE!r}.",
        )
    source, target = _arrow_type(writer), _arrow_type(reader)
    if writer.type != reader.type and not _widens(source, reader):
        raise SchemaMismatch(
            f"values were written as {writer.type_name}, and the query reads {reader.type_name}",
            "Read the topic with valueFormat=raw.",
        )
    return PrimitiveDecoder(writer.type, target if fields else None)


def encoder(info: SchemaInfo, columns: pa.Schema) -> PrimitiveEncoder:
    """Return an encoder of the only column, whatever its name, for a topic with schema `info`.

    Raises SchemaMismatch for several columns, or one that the schema's type cannot hold exactly.
    """
    target = _arrow_type(info)
    if len(columns) != 1:
        found = ", ".join(columns.names[:20]) or "none"
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, a single value without fields, and the "
            f"columns to write are: {found}",
            "Select the one column to write, besides columns that start with two underscores.",
        )
    column = columns.field(0)
    found_type = _normal(column.type)
    if found_type != target and not _widens(found_type, info):
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, and column {column.name!r} is {column.type}",
            f"Cast the column to {spark_name(target)}.",
        )
    return PrimitiveEncoder(info.type)


def schema_for(column: pa.DataType) -> SchemaInfo:
    """Return the schema for a single column that is not a record.

    Timestamps become INSTANT or, without a zone, LOCAL_DATE_TIME, and dates LOCAL_DATE: these types
    lose nothing. Raises SchemaMismatch if no primitive type matches.
    """
    number = _SCHEMA_TYPES.get(_normal(column))
    if number is None:
        raise SchemaMismatch(
            f"Pulsar has no primitive schema for a column of type {column}",
            "Cast the column, put it into a struct, or write with valueFormat=avro or json.",
        )
    return SchemaInfo(number, PRIMITIVE_NAMES.get(number, ""))


def _arrow_type(info: SchemaInfo) -> pa.DataType:
    if info.type not in _KINDS:
        raise SchemaMismatch(
            f"{info.type_name} is not a primitive schema", "Read the topic with valueFormat=raw."
        )
    return _KINDS[info.type].arrow


def _widens(source: pa.DataType, target: SchemaInfo) -> bool:
    return source in _KINDS[target.type].accepts


def _normal(kind: pa.DataType) -> pa.DataType:
    """Return a type as in the tables: any time zone only affects how a moment is shown."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    return kind


def spark_name(kind: pa.DataType) -> str:
    """Return what Spark calls a column's type, as far as it is not one that holds others."""
    if kind == _LOCAL_MICROS:
        return "timestamp_ntz"
    if pa.types.is_timestamp(kind):
        return "timestamp_ltz"
    return {
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.float32(): "float",
        pa.bool_(): "boolean",
        pa.date32(): "date",
    }.get(kind, str(kind))


# --- decoding -----------------------------------------------------------------------------


class PrimitiveDecoder:
    """Decodes values of one primitive type to a column, or only checks them."""

    def __init__(self, number: int, target: pa.DataType | None) -> None:
        self._kind = _KINDS[number]
        self._target = target

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a null value."""
        column, bad = _decode_fixed(raw, self._kind)
        if self._target is None:
            return Decoded((), bad)
        return Decoded((column.cast(self._target),), bad)


def _decode_fixed(raw: pa.Array, kind: _Kind) -> tuple[pa.Array, list[Undecodable]]:
    sizes = pc.binary_length(raw)
    fits = pc.equal(sizes, integers([kind.width], pa.int32())[0])
    present = len(raw) - raw.null_count
    if pc.sum(fits).as_py() != (present or None):
        bad = _wrong_widths(sizes, fits, kind.width)
        column, ranges = _decode_fixed(without(raw, [item.row for item in bad]), kind)
        return column, sorted(bad + ranges, key=lambda item: item.row)
    packed = raw.drop_null() if raw.null_count else raw
    column = kind.read(_words(packed, kind))
    if raw.null_count:
        column = spread(column, raw.is_valid())
    if column.null_count == raw.null_count:
        return column, []
    return column, _out_of_range(raw, column)


def _words(packed: pa.Array, kind: _Kind) -> array[int]:
    """Return the numbers of values, all of the right width."""
    words: array[int] = array(kind.word)
    if len(packed):
        _, offsets, data = packed.buffers()
        (start,) = unpack_from("=i", offsets, 4 * packed.offset)
        words.frombytes(memoryview(data)[start : start + len(packed) * kind.width])
        if sys.byteorder == "little":
            words.byteswap()
    return words


def _wrong_widths(sizes: pa.Array, fits: pa.Array, width: int) -> list[Undecodable]:
    return [
        Undecodable(row, "", f"the value has {sizes[row]} bytes, and its type {width}")
        for row in pc.indices_nonzero(pc.invert(fits)).to_pylist()
    ]


def _out_of_range(raw: pa.Array, column: pa.Array) -> list[Undecodable]:
    rows = pc.indices_nonzero(pc.and_(raw.is_valid(), column.is_null())).to_pylist()
    return [
        Undecodable(row, "", f"0x{raw[row].as_py().hex()} is out of the range of the column's type")
        for row in rows
    ]


# --- encoding -----------------------------------------------------------------------------


class PrimitiveEncoder:
    """Encodes the only column of record batches as values of one primitive type."""

    def __init__(self, number: int) -> None:
        self._kind = _KINDS[number]

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row.

        Raises Mismatch for a time of day out of its range.
        """
        column = columns.column(0).cast(self._kind.arrow)
        kind = self._kind
        words = kind.write(column)
        if sys.byteorder == "little":
            words.byteswap()
        count = len(column)
        offsets = array("i", range(0, (count + 1) * kind.width, kind.width))
        values = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(words)]
        )
        if column.null_count:
            return pc.if_else(column.is_valid(), values, pa.nulls(1, pa.binary())[0])
        return values
