"""Record batches → protobuf values: matches columns with a schema and encodes them.

Each field has a writer, which writes it for all rows at once; `Scalar` says how to write each
scalar type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress, count, repeat
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.schema.arrow.arrays import (
    binaries,
    booleans,
    constant,
    fixed_width,
    integers,
    joined,
    offsets_of,
)
from pulsar_spark.schema.arrow.varints import varints, zigzags
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf.types import (
    UNSIGNED,
    EnumType,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    column_type,
    message_type,
    single_type,
    type_name,
)
from pulsar_spark.schema.protobuf.well_known import json_messages, split_duration, split_timestamp
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
    behind,
    delimited,
    regrouped,
    tag,
)


class ProtobufEncoder:
    """Encodes rows as one message.

    A message's fields are written in the order of their numbers. Raises SchemaMismatch that lists
    all mismatched columns.
    """

    def __init__(self, message: MessageType, columns: pa.Schema) -> None:
        mismatches: list[str] = []
        self._encode = _struct(message, list(columns), "", mismatches)
        if mismatches:
            raise SchemaMismatch(
                f"the columns do not match the topic's protobuf message {message.name}: "
                f"{'; '.join(mismatches)}",
                "Select, cast or add columns.",
            )

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return each row's value. Raises Mismatch for a value that the schema cannot hold."""
        rows = pa.StructArray.from_arrays(columns.columns, fields=list(columns.schema))
        if not columns.num_columns:
            return binaries([b""] * columns.num_rows)
        try:
            return self._encode(rows, _same)
        except pa.ArrowInvalid as error:
            if not isinstance(error, pa.lib.ArrowCapacityError):
                raise
            raise InvalidRow(
                "the values of one batch of rows take more than 2 GiB",
                "Lower spark.sql.execution.arrow.maxRecordsPerBatch.",
            ) from None


def _same(index: int) -> int:
    return index


# --- matching columns with fields ---------------------------------------------------------


def _struct(
    message: MessageType, columns: Sequence[pa.Field], path: str, mismatches: list[str]
) -> Encode:
    """Return the encoder of a message for a struct of these columns; add mismatches."""
    given = {column.name: index for index, column in enumerate(columns)}
    if len(given) < len(columns):
        mismatches.append(f"{path or 'the frame'} has two columns of one name (rename one)")
    known = {field.name for field in message.fields}
    mismatches += [
        f"{_at(path, n)} is not in the schema (drop it)" for n in given if n not in known
    ]
    parts = []
    for field in sorted(message.fields, key=lambda each: each.number):
        here = _at(path, field.name)
        index = given.get(field.name)
        if index is not None:
            writer = _writer(field, columns[index].type, here, mismatches)
            if writer is not None:
                parts.append(_Part(field, index, writer))
        elif field.presence is Presence.REQUIRED:
            mismatches.append(f"{here} is missing, and the schema requires it (add it)")
        elif field.presence is Presence.IMPLICIT and not field.repeated:
            mismatches.append(
                f"{here} is missing, and the schema does not allow null there (add it)"
            )
    return _StructEncoder(parts, path)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _writer(
    field: MessageField, kind: pa.DataType, path: str, mismatches: list[str]
) -> Writer | None:
    """Return the writer of a column as a field; None, and a mismatch, if it does not match."""
    if not field.repeated:
        return _single(field, kind, path, mismatches)
    if field.message is not None and field.message.is_entry:
        return _map(field, field.message, kind, path, mismatches)
    if not pa.types.is_list(kind):
        mismatches.append(_mismatch(field, kind, path))
        return None
    if field.message is not None:
        encode = _message(field, field.message, kind.value_type, path, mismatches)
        return None if encode is None else ListWriter(field, encode, path)
    if not accepts(field, kind.value_type):
        mismatches.append(_mismatch_within(field, kind.value_type, path))
        return None
    return ListWriter(field, scalar(field), path)


def _single(
    field: MessageField, kind: pa.DataType, path: str, mismatches: list[str]
) -> Writer | None:
    message = field.message
    if message is None:
        if not accepts(field, kind):
            mismatches.append(_mismatch(field, kind, path))
            return None
        return ScalarWriter(field, scalar(field), path)
    if message.form is Form.EMPTY and pa.types.is_boolean(kind):
        return EmptyWriter(field)
    encode = _message(field, message, kind, path, mismatches)
    return None if encode is None else MessageWriter(field, encode, path)


def _map(
    field: MessageField, entry: MessageType, kind: pa.DataType, path: str, mismatches: list[str]
) -> Writer | None:
    if not pa.types.is_map(kind):
        mismatches.append(_mismatch(field, kind, path))
        return None
    key = _writer(entry.fields[0], kind.key_type, f"{path}.key", mismatches)
    value = _writer(entry.fields[1], kind.item_type, f"{path}.value", mismatches)
    return None if key is None or value is None else MapWriter(field, key, value, path)


def _message(
    field: MessageField, message: MessageType, kind: pa.DataType, path: str, mismatches: list[str]
) -> Encode | None:
    """Return the encoder of a type's values as messages."""
    if message.form is Form.STRUCT and pa.types.is_struct(kind):
        columns = [kind.field(index) for index in range(kind.num_fields)]
        return _struct(message, columns, path, mismatches)
    if message.form in (Form.WRAPPER, Form.FIELD_MASK):
        inner = _writer(message.fields[0], kind, path, mismatches)
        return None if inner is None else inner.write
    if message.form in _WHOLE and kind == message_type(message):
        return _WHOLE[message.form](message, path)
    if message.form in _TIMES and _is_time(kind, message_type(message)):
        return _time(message, path)
    mismatches.append(_mismatch_within(field, kind, path))
    return None


def _empty(message: MessageType, path: str) -> Encode:
    return lambda values, row: binaries([b""] * len(values))


def _json(message: MessageType, path: str) -> Encode:
    return lambda values, row: json_messages(
        message.name,
        values,
        lambda index, text: Mismatch(f"it {text}", path, row(index), _JSON_REMEDY),
    )


def _unknown(message: MessageType, path: str) -> Encode:
    return lambda values, row: _checked_messages(values, path, row)


_WHOLE: dict[Form, Callable[[MessageType, str], Encode]] = {
    Form.EMPTY: _empty,
    Form.JSON: _json,
    Form.BYTES: _unknown,
}


def _checked_messages(values: pa.Array, path: str, row: Row) -> pa.Array:
    """Return the messages unchanged; raises Mismatch for bytes that are no message."""
    for index, value in enumerate(values.to_pylist()):
        try:
            empty_pb2.Empty.FromString(value)
        except (DecodeError, RecursionError):
            raise Mismatch("it is not a protobuf message", path, row(index), _CHANGE) from None
    return values


_FILL = "Fill it, for example with coalesce, or drop it."
_CHANGE = "Change the value or drop the row."
_JSON_REMEDY = "Write JSON as RFC 8259 has it: an object for a Struct, an array for a ListValue."
_TIMES = {Form.TIMESTAMP: split_timestamp, Form.DURATION: split_duration}


def _is_time(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether columns have the time type of a message; time zones do not matter."""
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None)
    return bool(kind == wanted)


def _time(message: MessageType, path: str) -> Encode:
    split = _TIMES[message.form]
    kind = [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())]
    fields = [
        _Part(field, index, ScalarWriter(field, scalar(field), path))
        for index, field in enumerate(sorted(message.fields, key=lambda each: each.number))
    ]
    encode = _StructEncoder(fields, path)

    def write(values: pa.Array, row: Row) -> pa.Array:
        parts = split(
            values,
            lambda index, text: Mismatch(f"it {text}", path, row(index), _CHANGE),
        )
        return encode(pa.StructArray.from_arrays(parts, fields=kind), row)

    return write


def _mismatch(field: MessageField, kind: pa.DataType, path: str) -> str:
    return f"{path} is {kind}, and the schema has {column_type(field)} (cast it)"


def _mismatch_within(field: MessageField, kind: pa.DataType, path: str) -> str:
    """Return the mismatch of a single value of a field, "" if there is none."""
    where = f"the element of {path}" if field.repeated else path
    return f"{where} is {kind}, and the schema has {single_type(field)} (cast it)"


# --- messages -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    field: MessageField
    index: int
    writer: Writer


class _StructEncoder:
    """Encodes structs without nulls as messages."""

    def __init__(self, parts: Sequence[_Part], path: str) -> None:
        self._parts = parts
        self._path = path
        oneofs: dict[str, list[_Part]] = {}
        for part in parts:
            if part.field.oneof:
                oneofs.setdefault(part.field.oneof, []).append(part)
        self._oneofs = {name: members for name, members in oneofs.items() if len(members) > 1}

    def __call__(self, structs: pa.StructArray, row: Row) -> pa.Array:
        for name, members in self._oneofs.items():
            self._check_oneof(name, members, structs, row)
        records = [part.writer.write(structs.field(part.index), row) for part in self._parts]
        if not records:
            return binaries([b""] * len(structs))
        return joined(records, len(structs)) if len(records) > 1 else records[0]

    def _check_oneof(
        self, name: str, members: Sequence[_Part], structs: pa.StructArray, row: Row
    ) -> None:
        there = [structs.field(part.index).is_valid().cast(pa.int32()) for part in members]
        total = there[0]
        for flags in there[1:]:
            total = pc.add(total, flags)
        if len(structs) and pc.max(total).as_py() > 1:
            index = next(i for i, count in enumerate(total.to_pylist()) if count > 1)
            names = [
                part.field.name for part in members if structs.field(part.index)[index].is_valid
            ]
            raise Mismatch(
                f"it has more than one member: {', '.join(names)}",
                _at(self._path, name),
                row(index),
                "Set all but one of them to null.",
            )


Row = Callable[[int], int]
"""Returns the row of the value at an index."""

Encode = Callable[[pa.Array, Row], pa.Array]
"""Encodes messages without nulls."""


class Writer(Protocol):
    """Writes one field."""

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the field's records for each value of the column."""


def chosen(row: Row, flags: pa.Array) -> Row:
    """Return the rows of the values that these flags select."""

    @cache
    def left() -> list[int]:
        return list(compress(count(), flags.to_pylist()))

    return lambda index: row(left()[index])


def _refuse_nulls(column: pa.Array, path: str, row: Row, problem: str) -> None:
    if column.null_count:
        first = column.is_valid().to_pylist().index(False)
        raise Mismatch(f"it {problem}", path, row(first), _FILL)


class ScalarWriter:
    """A field of one scalar."""

    def __init__(self, field: MessageField, scalar: Scalar, path: str) -> None:
        self._path = path
        self._scalar = scalar
        self._nullable = field.presence is Presence.EXPLICIT
        # With a default other than zero, zero must be written.
        self._omits_default = field.presence is Presence.IMPLICIT and not field.default
        self._head = tag(field.number, scalar.wire_type)

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the records of scalars that are neither null nor the default."""
        if not column.null_count:
            return self._write(column, row)
        if not self._nullable:
            _refuse_nulls(
                column, self._path, row, "is null, and the schema does not allow null there"
            )
        there = column.is_valid()
        records = self._write(column.drop_null(), chosen(row, there))
        return regrouped(records, offsets_of(there))

    def _write(self, values: pa.Array, row: Row) -> pa.Array:
        values = self._scalar.convert(values, self._path, row)
        if self._omits_default:
            said = self._scalar.not_default(values)
            if len(said) and not pc.all(said).as_py():
                records = self._scalar.encode(values.filter(said), self._head)
                return regrouped(records, offsets_of(said))
        return self._scalar.encode(values, self._head)


class MessageWriter:
    """A field of one message."""

    def __init__(self, field: MessageField, encode: Encode, path: str) -> None:
        self._path = path
        self._required = field.presence is Presence.REQUIRED
        self._encode = encode
        self._field = field

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the records of the messages that are not null."""
        if not column.null_count:
            return framed(self._field, self._encode(column, row))
        if self._required:
            _refuse_nulls(column, self._path, row, "is null, and the schema requires it")
        there = column.is_valid()
        records = framed(self._field, self._encode(column.drop_null(), chosen(row, there)))
        return regrouped(records, offsets_of(there))


class EmptyWriter:
    """A field with a message without fields: it is present if the column is true."""

    def __init__(self, field: MessageField) -> None:
        self._record = framed(field, binaries([b""]))[0]

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return an empty record where the column is true."""
        there = pc.if_else(column.is_valid(), column, booleans([False])[0])
        return pc.if_else(there, self._record, constant(b""))


def framed(field: MessageField, messages: pa.Array) -> pa.Array:
    """Return messages as records of a field."""
    if field.type == Type.TYPE_GROUP:
        start = tag(field.number, START_GROUP)
        end = tag(field.number, END_GROUP)
        return joined([constant(start), messages, constant(end)], len(messages))
    return delimited(messages, tag(field.number, DELIMITED))


# --- repeated fields ----------------------------------------------------------------------


class ListWriter:
    """A repeated field of scalars, packed or not, or of messages."""

    def __init__(self, field: MessageField, element: Scalar | Encode, path: str) -> None:
        self._field = field
        self._element = element
        self._path = path

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the records of each list's elements."""
        _refuse_nulls(column, self._path, row, "is null, and protobuf has no lists that are null")
        lengths = pc.list_value_length(column)
        elements = _children(column, column.values)
        inner = _within(row, lengths)
        _refuse_nulls(elements, self._path, inner, "has an element that is null")
        places = offsets_of(lengths)
        if not isinstance(self._element, Scalar):
            return regrouped(framed(self._field, self._element(elements, inner)), places)
        values = self._element.convert(elements, self._path, inner)
        if not self._field.packed:
            head = tag(self._field.number, self._element.wire_type)
            return regrouped(self._element.encode(values, head), places)
        return self._pack(regrouped(self._element.encode(values, b""), places))

    def _pack(self, lists: pa.Array) -> pa.Array:
        there = pc.not_equal(lists, constant(b""))
        records = delimited(lists.filter(there), tag(self._field.number, DELIMITED))
        return regrouped(records, offsets_of(there))


class MapWriter:
    """A map, a message of key and value for each entry."""

    def __init__(self, field: MessageField, key: Writer, value: Writer, path: str) -> None:
        self._field = field
        self._key = key
        self._value = value
        self._path = path

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the records of each map's entries."""
        _refuse_nulls(column, self._path, row, "is null, and protobuf has no maps that are null")
        offsets = column.offsets
        lengths = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
        inner = _within(row, lengths)
        values = _children(column, column.items)
        _refuse_nulls(values, self._path, inner, "has a value that is null")
        keys = self._key.write(_children(column, column.keys), inner)
        entries = joined([keys, self._value.write(values, inner)], len(keys))
        return regrouped(framed(self._field, entries), offsets_of(lengths))


def _children(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the elements of lists that are a slice of an array."""
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    return values.slice(start, end - start)


def _within(row: Row, lengths: pa.Array) -> Row:
    @cache
    def owners() -> Sequence[int]:
        return list(chain.from_iterable(map(repeat, count(), lengths.to_pylist())))

    return lambda index: row(owners()[index])


_INT64, _UINT64 = pa.int64(), pa.uint64()
_ZIGZAG = frozenset((Type.TYPE_SINT32, Type.TYPE_SINT64))
_FIXED: dict[int, pa.DataType] = {
    Type.TYPE_FIXED32: pa.uint32(),
    Type.TYPE_SFIXED32: pa.int32(),
    Type.TYPE_FIXED64: pa.uint64(),
    Type.TYPE_SFIXED64: pa.int64(),
}
_SHORT = frozenset(
    (
        Type.TYPE_INT32,
        Type.TYPE_SINT32,
        Type.TYPE_SFIXED32,
        Type.TYPE_UINT32,
        Type.TYPE_FIXED32,
        Type.TYPE_ENUM,
    )
)

Convert = Callable[[pa.Array, str, Callable[[int], int]], pa.Array]


@dataclass(frozen=True, slots=True)
class Scalar:
    """How to write values, none of them null.

    `convert` converts to the written type; it raises Mismatch for invalid values, and for that
    takes a path and a function that returns a value's row. `encode` appends each value's bytes to
    the given ones; `not_default` tells which values are not zero or empty.
    """

    wire_type: int
    convert: Convert
    encode: Callable[[pa.Array, bytes], pa.Array]
    not_default: Callable[[pa.Array], pa.Array]


def accepts(field: MessageField, kind: pa.DataType) -> bool:
    """Whether columns of a type can be written as a field's values."""
    types = pa.types
    if field.type in (Type.TYPE_STRING, Type.TYPE_ENUM):
        return bool(types.is_string(kind))
    if field.type == Type.TYPE_BYTES:
        return bool(types.is_binary(kind))
    if field.type == Type.TYPE_BOOL:
        return bool(types.is_boolean(kind))
    if field.type == Type.TYPE_FLOAT:
        return bool(types.is_float32(kind))
    if field.type == Type.TYPE_DOUBLE:
        return bool(types.is_float64(kind) or types.is_float32(kind))
    return bool(types.is_integer(kind) or (types.is_decimal128(kind) and kind.scale == 0))


def scalar(field: MessageField) -> Scalar:
    """Return how to write a field's values."""
    if field.enum is not None:
        return Scalar(VARINT, _enum_numbers(field.enum), _signed_varints, _not_zero)
    if field.type in (Type.TYPE_STRING, Type.TYPE_BYTES):
        return Scalar(DELIMITED, _as_binary, delimited, _not_empty)
    if field.type == Type.TYPE_BOOL:
        return Scalar(VARINT, _unchanged, _truths, _unchanged_flags)
    if field.type in (Type.TYPE_FLOAT, Type.TYPE_DOUBLE):
        single = field.type == Type.TYPE_FLOAT
        kind = pa.float32() if single else pa.float64()
        wire_type = FIXED32 if single else FIXED64
        return Scalar(wire_type, _cast_to(kind), _fixed_width, _not_zero_bits)
    convert = _integers(field.type)
    if field.type in _FIXED:
        wire_type = FIXED32 if field.type in _SHORT else FIXED64
        return Scalar(wire_type, convert, _fixed_width, _not_zero)
    encode = _zigzag_varints if field.type in _ZIGZAG else _signed_varints
    return Scalar(VARINT, convert, encode, _not_zero)


# --- conversions --------------------------------------------------------------------------


def _unchanged(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
    return values


def _as_binary(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
    return values.cast(pa.binary())


def _cast_to(kind: pa.DataType) -> Convert:
    return lambda values, path, row: values.cast(kind)


def _integers(kind: int) -> Convert:
    """Return the check and conversion to an integer type, with 64 bits unless fixed."""
    bits = 32 if kind in _SHORT else 64
    low, high = (0, 2**bits - 1) if kind in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    name = type_name(kind)
    target = _FIXED.get(kind) or (_UINT64 if kind in UNSIGNED else _INT64)

    def convert(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
        found = pc.min_max(values)
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is not None and (least < low or most > high):
            index, value = next(
                (index, value)
                for index, value in enumerate(values.to_pylist())
                if not low <= value <= high
            )
            raise Mismatch(
                f"it is {value}, and the schema's {name} ranges from {low} to {high}",
                path,
                row(index),
                _CHANGE,
            )
        return values.cast(target)

    return convert


def _enum_numbers(enum: EnumType) -> Convert:
    def number_of(name: str) -> int | None:
        if name in enum.numbers:
            return enum.numbers[name]
        # Numbers without a name are read as text, and written from it if the enum is open.
        digits = name.removeprefix("-")
        if enum.closed or not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            return None
        value = int(name)
        return value if -(2**31) <= value < 2**31 else None

    def convert(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
        found = values.dictionary_encode()
        names = found.dictionary.to_pylist()
        numbers = [number_of(name) for name in names]
        if None in numbers:
            unknown = names[numbers.index(None)]
            index = values.to_pylist().index(unknown)
            raise Mismatch(
                f"it is {unknown[:100]!r}, which is not a symbol of the enum",
                path,
                row(index),
                f"It has {', '.join(list(enum.numbers)[:50])}.",
            )
        return integers(numbers, _INT64).take(found.indices)

    return convert


# --- bytes --------------------------------------------------------------------------------


def _signed_varints(values: pa.Array, head: bytes) -> pa.Array:
    # Negative numbers have all 64 bits, whatever their type: Encoding, Signed Integers.
    return behind(head, varints(values))


def _zigzag_varints(values: pa.Array, head: bytes) -> pa.Array:
    return behind(head, zigzags(values))


def _fixed_width(values: pa.Array, head: bytes) -> pa.Array:
    return behind(head, fixed_width(values))


def _truths(values: pa.Array, head: bytes) -> pa.Array:
    return pc.if_else(values, constant(head + b"\x01"), constant(head + b"\x00"))


# --- defaults -----------------------------------------------------------------------------


def _not_zero(values: pa.Array) -> pa.Array:
    zero = pa.Array.from_buffers(values.type, 1, [None, pa.py_buffer(bytes(8))])[0]
    return pc.not_equal(values, zero)


def _not_zero_bits(values: pa.Array) -> pa.Array:
    # -0.0 equals zero, but is a different value.
    return _not_zero(values.view(pa.int32() if values.type.bit_width == 32 else _INT64))


def _not_empty(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, constant(b""))


def _unchanged_flags(values: pa.Array) -> pa.Array:
    return values
