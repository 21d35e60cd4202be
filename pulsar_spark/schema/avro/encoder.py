"""Encodes columns as the values of an AVRO topic: which column becomes which field, and how.

The topic's definition decides. Columns are found by name, and have to fit: the same kind, or a
smaller one that loses nothing. Nulls are another matter: Spark's columns are nullable nearly
always, so that they are looked for in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.schema.avro import writing
from pulsar_spark.schema.avro.defaults import encode_default
from pulsar_spark.schema.avro.definition import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    UnionOf,
    is_null,
)
from pulsar_spark.schema.avro.resolution import describe
from pulsar_spark.schema.avro.types import DURATION, LOCAL, UTC, is_nullable, usual_type
from pulsar_spark.schema.avro.writing import Unfit, Write, required

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
            fitting.misfits.append(
                f"the topic's values are {describe(node)}, not records, so that they come from "
                f"one column, and there are {len(columns)}: select that one"
            )
        if fitting.misfits:
            shown = "; ".join(fitting.misfits[:50])
            raise SchemaMismatch(
                f"the data frame does not fit the topic's schema: {shown}",
                "Change the frame (select, cast, withColumn), or evolve the topic's schema.",
            )

    def __reduce__(self) -> tuple[type[AvroEncoder], tuple[Node, pa.Schema]]:
        return AvroEncoder, (self._node, self._columns)

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row; raises InvalidRow."""
        arrays = [
            array if array.type == kind else array.cast(kind)
            for array, kind in zip(columns.columns, self._types, strict=True)
        ]
        try:
            return writing.write_fields(self._fields, arrays, columns.num_rows)
        except Unfit as error:
            raise InvalidRow(
                f"row {error.place} of the batch cannot be written: the field {error.field}: "
                f"{error.reason}"
            ) from None


class _Fitting:
    """Finds writers for columns; what does not fit is collected in `misfits`."""

    def __init__(self) -> None:
        self.misfits: list[str] = []

    def fields(self, node: Record, given: Sequence[pa.Field], path: str) -> _Fields:
        """Return how the fields of a record are written from columns."""
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
        self.misfits += [
            f"{prefix}{name} is not in the topic's schema: drop it, or add it to the schema"
            for name in places
            if name not in known
        ]
        if len(places) < len(given):
            self.misfits.append(f"two columns {f'of {path} ' if path else ''}have the same name")
        return out

    def _absent(self, field: Field, path: str) -> bytes:
        if field.default is not NO_DEFAULT:
            data = encode_default(field.type, field.default)
            if data is not None:
                return data
        if is_nullable(field.type):
            return encode_default(field.type, None) or b""
        self.misfits.append(
            f"{path} is missing, and has no default: add it as {describe(field.type)}"
        )
        return b""

    def writer(self, node: Node, kind: pa.DataType, path: str) -> Write:
        """Return the writer of a column for a type."""
        if is_null(node):
            return writing.write_null
        if isinstance(node, UnionOf):
            return self._union(node, kind, path)
        return required(self._present(node, kind, path))

    def _present(self, node: Node, kind: pa.DataType, path: str) -> Write:
        found: Write | None = None
        match node:
            case Record() if pa.types.is_struct(kind):
                found = writing.write_record(self.fields(node, list(kind), path))
            case Array() if pa.types.is_list(kind):
                found = writing.write_array(self.writer(node.items, kind.value_type, f"{path}[]"))
            case Map() if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
                found = writing.write_map(self.writer(node.values, kind.item_type, f"{path}{{}}"))
            case Enum() if pa.types.is_string(kind):
                found = writing.write_enum(node.symbols)
            case Fixed():
                found = _fixed(node, kind)
            case Primitive():
                found = _primitive(node, kind)
        if found is None:
            self.misfits.append(
                f"{path} is {kind}, the topic's schema has {describe(node)}: {_advice(node)}"
            )
            return writing.write_null
        return found

    def _union(self, union: UnionOf, kind: pa.DataType, path: str) -> Write:
        numbers = {place: number for number, place in enumerate(_present_places(union))}
        null_number = next((i for i, m in enumerate(union.members) if is_null(m)), None)
        if pa.types.is_null(kind) and null_number is not None:
            return writing.write_nullable(null_number, 0, writing.write_null)
        names = [f"member{number}" for number in numbers.values()]
        if pa.types.is_struct(kind) and [f.name for f in kind] == names and len(names) > 1:
            members = [
                (place, self._present(union.members[place], field.type, f"{path}.{field.name}"))
                for place, field in zip(numbers, kind, strict=True)
            ]
            write = writing.write_union(members, null_number)
            return write if null_number is not None else required(write)
        before = len(self.misfits)
        # A column may be one of the types by itself: the first that it fits.
        for place in numbers:
            own = self._present(union.members[place], kind, path)
            if len(self.misfits) == before or len(numbers) == 1:
                if null_number is None:
                    return writing.write_branch(place, own)
                return writing.write_nullable(null_number, place, own)
            del self.misfits[before:]
        self.misfits.append(
            f"{path} is {kind}, the topic's schema has {describe(union)}: make it one of these, or "
            f"a struct of {', '.join(names)}"
        )
        return writing.write_null


def _present_places(union: UnionOf) -> list[int]:
    return [place for place, member in enumerate(union.members) if not is_null(member)]


def _fixed(node: Fixed, kind: pa.DataType) -> Write | None:
    name = node.logical.name if node.logical else ""
    if name == "decimal" and node.logical and pa.types.is_decimal128(kind):
        return writing.write_decimal(kind, node.logical.precision, node.logical.scale, node.size)
    if name == "uuid" and pa.types.is_string(kind):
        return writing.write_uuid
    if name == "duration" and pa.types.is_struct(kind):
        names = [field.name for field in kind]
        whole = all(pa.types.is_integer(field.type) for field in kind)
        return writing.write_duration if whole and names == [f.name for f in DURATION] else None
    if name in ("", "uuid", "duration") and pa.types.is_binary(kind):
        return writing.write_fixed(node.size)
    return None


def _primitive(node: Primitive, kind: pa.DataType) -> Write | None:
    if node.logical is not None and node.logical.name != "uuid":
        return _logical(node.logical, kind)
    found: Write | None = None
    is_whole = pa.types.is_signed_integer(kind)
    match node.kind:
        case "boolean" if pa.types.is_boolean(kind):
            found = writing.write_boolean
        case "int" if is_whole and kind.bit_width <= 32:
            found = writing.write_long
        case "long" if is_whole:
            found = writing.write_long
        case "float" if pa.types.is_float32(kind) or (is_whole and kind.bit_width <= 16):
            found = writing.write_floating(pa.float32())
        case "double" if pa.types.is_floating(kind) or (is_whole and kind.bit_width <= 32):
            found = writing.write_floating(pa.float64())
        case "bytes" if pa.types.is_binary(kind):
            found = writing.write_text
        case "string" if pa.types.is_string(kind):
            found = writing.write_uuid_text if node.logical else writing.write_text
    return found


def _logical(logical: Logical, kind: pa.DataType) -> Write | None:
    name, unit = logical.name, logical.name.rpartition("-")[2]
    if name == "decimal":
        fits = pa.types.is_decimal128(kind)
        write = writing.write_decimal(kind, logical.precision, logical.scale) if fits else None
    elif name == "date":
        fits, write = pa.types.is_date32(kind), writing.write_date
    elif name.startswith("time-"):
        fits = kind in (pa.int64(), pa.time64("ns"))
        write = writing.write_time(1_000_000 if unit == "millis" else 1000)
    else:
        fits = kind == (LOCAL if name.startswith("local-") else UTC)
        write = writing.write_scaled(*_RATIOS[unit])
    return write if fits else None


# By what Spark's microseconds are multiplied and divided.
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


def _advice(node: Node) -> str:
    match node:
        case Primitive() | Fixed():
            logical = node.logical
            name = logical.name if logical else getattr(node, "kind", "bytes")
            if name.startswith("timestamp-"):
                return "cast it to timestamp"
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
    return {"Record": "give a struct", "Array": "give an array"}.get(type(node).__name__, "")
