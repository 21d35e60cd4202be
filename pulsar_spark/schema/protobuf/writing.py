"""Columns to protobuf's records: one writer per field writes it for all rows at once.

A writer returns a binary array with what a message holds of its field: empty where it holds
nothing, several records where the field is repeated. What is in rows that are null is left out
before it is encoded, and lists are encoded element by element over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import compress, count
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import InvalidRow
from pulsar_spark.schema.arrow.arrays import binaries, booleans
from pulsar_spark.schema.protobuf import wire
from pulsar_spark.schema.protobuf.reading import parents
from pulsar_spark.schema.protobuf.scalars import Scalar
from pulsar_spark.schema.protobuf.types import Field, Presence, Type

Row = Callable[[int], int]
"""Tells for the index of a value which row it is in."""

Encode = Callable[[pa.Array, Row], pa.Array]
"""Encodes messages without nulls."""


class Writer(Protocol):
    """Writes one field."""

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        """Return the records of the field, for each value of the column."""


def chosen(row: Row, flags: pa.Array) -> Row:
    """Return which rows the values are in that are left of those with these flags."""

    @cache
    def left() -> list[int]:
        return list(compress(count(), flags.to_pylist()))

    return lambda index: row(left()[index])


def invalid(path: str, row: int, problem: str, remedy: str) -> InvalidRow:
    """Return the error for a value that a field cannot hold."""
    return InvalidRow(f"row {row} cannot be written: {path} {problem}", remedy)


def _refuse_nulls(column: pa.Array, path: str, row: Row, problem: str) -> None:
    if column.null_count:
        first = column.is_valid().to_pylist().index(False)
        raise invalid(path, row(first), problem, "Fill it, for example with coalesce, or drop it.")


class ScalarWriter:
    """A field of one scalar."""

    def __init__(self, field: Field, scalar: Scalar, path: str) -> None:
        self._path = path
        self._scalar = scalar
        self._nullable = field.presence is Presence.EXPLICIT
        # Where the default is another than zero, zero must be said.
        self._omits_default = field.presence is Presence.IMPLICIT and field.default is None
        self._head = wire.tag(field.number, scalar.wire_type)

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        if not column.null_count:
            return self._write(column, row)
        if not self._nullable:
            _refuse_nulls(column, self._path, row, "is null, and the schema has no null there")
        there = column.is_valid()
        records = self._write(column.drop_null(), chosen(row, there))
        return wire.regrouped(records, wire.positions(there))

    def _write(self, values: pa.Array, row: Row) -> pa.Array:
        values = self._scalar.convert(values, self._path, row)
        if self._omits_default:
            said = self._scalar.not_default(values)
            if len(said) and not pc.all(said).as_py():
                records = self._scalar.encode(values.filter(said), self._head)
                return wire.regrouped(records, wire.positions(said))
        return self._scalar.encode(values, self._head)


class MessageWriter:
    """A field of one message."""

    def __init__(self, field: Field, encode: Encode, path: str) -> None:
        self._path = path
        self._required = field.presence is Presence.REQUIRED
        self._encode = encode
        self._field = field

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        if not column.null_count:
            return framed(self._field, self._encode(column, row))
        if self._required:
            _refuse_nulls(column, self._path, row, "is null, and the schema requires it")
        there = column.is_valid()
        records = framed(self._field, self._encode(column.drop_null(), chosen(row, there)))
        return wire.regrouped(records, wire.positions(there))


class EmptyWriter:
    """A field of a message without fields: it is there where the column is true."""

    def __init__(self, field: Field) -> None:
        self._record = framed(field, binaries([b""]))[0]

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        there = pc.if_else(column.is_valid(), column, booleans([False])[0])
        return pc.if_else(there, self._record, wire.constant(b""))


def framed(field: Field, messages: pa.Array) -> pa.Array:
    """Return messages as records of a field."""
    if field.type == Type.TYPE_GROUP:
        start = wire.tag(field.number, wire.START_GROUP)
        end = wire.tag(field.number, wire.END_GROUP)
        return wire.joined(wire.constant(start), messages, wire.constant(end))
    return wire.delimited(messages, wire.tag(field.number, wire.DELIMITED))


# --- repeated fields ----------------------------------------------------------------------


class ListWriter:
    """A repeated field of scalars, packed or not, or of messages."""

    def __init__(self, field: Field, element: Scalar | Encode, path: str) -> None:
        self._field = field
        self._element = element
        self._path = path

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        _refuse_nulls(column, self._path, row, "is null, and protobuf's lists are empty at most")
        lengths = pc.list_value_length(column)
        elements = _children(column, column.values)
        inner = _within(row, lengths)
        _refuse_nulls(elements, self._path, inner, "has an element that is null")
        places = wire.positions(lengths)
        if not isinstance(self._element, Scalar):
            return wire.regrouped(framed(self._field, self._element(elements, inner)), places)
        values = self._element.convert(elements, self._path, inner)
        if not self._field.packed:
            head = wire.tag(self._field.number, self._element.wire_type)
            return wire.regrouped(self._element.encode(values, head), places)
        return self._pack(wire.regrouped(self._element.encode(values, b""), places))

    def _pack(self, lists: pa.Array) -> pa.Array:
        there = pc.not_equal(lists, wire.constant(b""))
        records = wire.delimited(lists.filter(there), wire.tag(self._field.number, wire.DELIMITED))
        return wire.regrouped(records, wire.positions(there))


class MapWriter:
    """A map, a message of key and value for each entry."""

    def __init__(self, field: Field, key: Writer, value: Writer, path: str) -> None:
        self._field = field
        self._key = key
        self._value = value
        self._path = path

    def write(self, column: pa.Array, row: Row) -> pa.Array:
        _refuse_nulls(column, self._path, row, "is null, and protobuf's maps are empty at most")
        offsets = column.offsets
        lengths = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
        inner = _within(row, lengths)
        values = _children(column, column.items)
        _refuse_nulls(values, self._path, inner, "has a value that is null")
        entries = wire.joined(
            self._key.write(_children(column, column.keys), inner), self._value.write(values, inner)
        )
        return wire.regrouped(framed(self._field, entries), wire.positions(lengths))


def _children(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the elements of lists that are a part of an array."""
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    return values.slice(start, end - start)


def _within(row: Row, lengths: pa.Array) -> Row:
    @cache
    def owners() -> Sequence[int]:
        return parents(lengths.to_pylist())

    return lambda index: row(owners()[index])
