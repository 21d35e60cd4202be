"""Record batches to protobuf's values: which columns fit a schema, and who writes which field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.schema.arrow.arrays import binaries
from pulsar_spark.schema.protobuf import wire
from pulsar_spark.schema.protobuf.columns import column_type, message_type, single_type
from pulsar_spark.schema.protobuf.scalars import accepts, scalar
from pulsar_spark.schema.protobuf.types import Field, Message, Presence, Shape
from pulsar_spark.schema.protobuf.well_known import json_messages, split_duration, split_timestamp
from pulsar_spark.schema.protobuf.writing import (
    EmptyWriter,
    Encode,
    ListWriter,
    MapWriter,
    MessageWriter,
    Row,
    ScalarWriter,
    Writer,
    invalid,
)


class ProtobufEncoder:
    """Encodes rows as one message.

    The fields of a message are written in the order of their numbers. Raises SchemaMismatch that
    names all columns that do not fit.
    """

    def __init__(self, message: Message, columns: pa.Schema) -> None:
        misfits: list[str] = []
        self._encode = _struct(message, list(columns), "", misfits)
        if misfits:
            raise SchemaMismatch(
                f"the columns do not fit the topic's protobuf message {message.name}: "
                f"{'; '.join(misfits)}",
                "Select, cast or add columns until they do.",
            )

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return the value of each row. Raises InvalidRow for what the schema cannot hold."""
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


# --- which columns fit --------------------------------------------------------------------


def _struct(message: Message, columns: Sequence[pa.Field], path: str, misfits: list[str]) -> Encode:
    """Return the encoder of a message from a struct of these columns, and note what is wrong."""
    given = {column.name: index for index, column in enumerate(columns)}
    if len(given) < len(columns):
        misfits.append(f"{path or 'the frame'} has two columns of one name (rename one)")
    known = {field.name for field in message.fields}
    misfits += [f"{_at(path, n)} is not in the schema (drop it)" for n in given if n not in known]
    parts = []
    for field in sorted(message.fields, key=lambda each: each.number):
        here = _at(path, field.name)
        index = given.get(field.name)
        if index is not None:
            writer = _writer(field, columns[index].type, here, misfits)
            if writer is not None:
                parts.append(_Part(field, index, writer))
        elif field.presence is Presence.REQUIRED:
            misfits.append(f"{here} is missing, and the schema requires it (add it)")
        elif field.presence is Presence.IMPLICIT and not field.repeated:
            misfits.append(f"{here} is missing, and has no null in the schema (add it)")
    return _StructEncoder(parts, path)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _writer(field: Field, kind: pa.DataType, path: str, misfits: list[str]) -> Writer | None:
    """Return the writer of a column as a field; None, and a note, where it does not fit."""
    if not field.repeated:
        return _single(field, kind, path, misfits)
    if field.message is not None and field.message.is_entry:
        return _map(field, field.message, kind, path, misfits)
    if not pa.types.is_list(kind):
        misfits.append(_misfit(field, kind, path))
        return None
    if field.message is not None:
        encode = _message(field, field.message, kind.value_type, path, misfits)
        return None if encode is None else ListWriter(field, encode, path)
    if not accepts(field, kind.value_type):
        misfits.append(_misfit_within(field, kind.value_type, path))
        return None
    return ListWriter(field, scalar(field), path)


def _single(field: Field, kind: pa.DataType, path: str, misfits: list[str]) -> Writer | None:
    message = field.message
    if message is None:
        if not accepts(field, kind):
            misfits.append(_misfit(field, kind, path))
            return None
        return ScalarWriter(field, scalar(field), path)
    if message.shape is Shape.EMPTY and pa.types.is_boolean(kind):
        return EmptyWriter(field)
    encode = _message(field, message, kind, path, misfits)
    return None if encode is None else MessageWriter(field, encode, path)


def _map(
    field: Field, entry: Message, kind: pa.DataType, path: str, misfits: list[str]
) -> Writer | None:
    if not pa.types.is_map(kind):
        misfits.append(_misfit(field, kind, path))
        return None
    key = _writer(entry.fields[0], kind.key_type, f"{path}.key", misfits)
    value = _writer(entry.fields[1], kind.item_type, f"{path}.value", misfits)
    return None if key is None or value is None else MapWriter(field, key, value, path)


def _message(
    field: Field, message: Message, kind: pa.DataType, path: str, misfits: list[str]
) -> Encode | None:
    """Return the encoder of the messages that values of a type are."""
    if message.shape is Shape.STRUCT and pa.types.is_struct(kind):
        columns = [kind.field(index) for index in range(kind.num_fields)]
        return _struct(message, columns, path, misfits)
    if message.shape in (Shape.WRAPPER, Shape.FIELD_MASK):
        inner = _writer(message.fields[0], kind, path, misfits)
        return None if inner is None else inner.write
    if message.shape is Shape.EMPTY and pa.types.is_boolean(kind):
        return lambda values, row: binaries([b""] * len(values))
    if message.shape is Shape.JSON and pa.types.is_string(kind):
        name = message.name
        return lambda values, row: json_messages(
            name, values, lambda index, text: invalid(path, row(index), text, _JSON_REMEDY)
        )
    if message.shape in _TIMES and _is_time(kind, message_type(message)):
        return _time(message, path)
    misfits.append(_misfit_within(field, kind, path))
    return None


_JSON_REMEDY = "Write JSON as RFC 8259 has it: an object for a Struct, an array for a ListValue."
_TIMES = {Shape.TIMESTAMP: split_timestamp, Shape.DURATION: split_duration}


def _is_time(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether columns are the times that a message is; any zone is only how they are shown."""
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None)
    return bool(kind == wanted)


def _time(message: Message, path: str) -> Encode:
    split = _TIMES[message.shape]
    kind = [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())]
    fields = [
        _Part(field, index, ScalarWriter(field, scalar(field), path))
        for index, field in enumerate(sorted(message.fields, key=lambda each: each.number))
    ]
    encode = _StructEncoder(fields, path)

    def write(values: pa.Array, row: Row) -> pa.Array:
        parts = split(
            values,
            lambda index, text: invalid(
                path, row(index), text, "Change the value or drop the row."
            ),
        )
        return encode(pa.StructArray.from_arrays(parts, fields=kind), row)

    return write


def _misfit(field: Field, kind: pa.DataType, path: str) -> str:
    return f"{path} is {kind}, and the schema has {column_type(field)} (cast it)"


def _misfit_within(field: Field, kind: pa.DataType, path: str) -> str:
    """Return what is wrong with one value of a field."""
    where = f"the element of {path}" if field.repeated else path
    return f"{where} is {kind}, and the schema has {single_type(field)} (cast it)"


# --- messages -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    field: Field
    index: int
    writer: Writer


class _StructEncoder:
    """Encodes structs without nulls as messages."""

    def __init__(self, parts: Sequence[_Part], path: str) -> None:
        self._parts = parts
        self._path = path
        names = dict.fromkeys(part.field.oneof for part in parts if part.field.oneof)
        oneofs = {name: [part for part in parts if part.field.oneof == name] for name in names}
        self._oneofs = {name: members for name, members in oneofs.items() if len(members) > 1}

    def __call__(self, structs: pa.StructArray, row: Row) -> pa.Array:
        for name, members in self._oneofs.items():
            self._check_oneof(name, members, structs, row)
        records = [part.writer.write(structs.field(part.index), row) for part in self._parts]
        if not records:
            return binaries([b""] * len(structs))
        return wire.joined(*records) if len(records) > 1 else records[0]

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
            raise invalid(
                _at(self._path, name),
                row(index),
                f"has more than one member: {', '.join(names)}",
                "Set all but one of them to null.",
            )
