"""Python values ↔ the bytes of one schema, for clients without Spark.

Values are those of the official Python client for AVRO: a record is a dict, a moment a datetime in
UTC, a local one a datetime without a zone, a day a date, a time of day a time, a decimal a Decimal,
a UUID a UUID, an enum's symbol its text; for a union, the value itself. The codecs that Spark uses
encode and decode the bytes as columns. Reading truncates times to microseconds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
from struct import Struct
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import binaries, build_array
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
    UnionOf,
    is_null,
    parse_definition,
)
from pulsar_spark.schema.avro.fitting import plan_for_values
from pulsar_spark.schema.avro.resolution import factors
from pulsar_spark.schema.avro.types import arrow_columns, day_of, sole_type
from pulsar_spark.schema.avro.value_writing import WriteValue, value_writer
from pulsar_spark.schema.codec import (
    PLAIN,
    Mismatch,
    Undecodable,
    check_types,
    codec_of,
    decoder_of,
    key_value_parts,
)
from pulsar_spark.schema.key_value import join_pairs, split_pairs
from pulsar_spark.schema.table.names import VALUE

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a Python value to a column's cell, as `build_array` takes it; raises Mismatch."""

Restore: TypeAlias = Callable[[Any], Any]
"""Converts a value of an Arrow column to Python."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_MAX_FLOAT = 3.4028235677973366e38
_NANOS_PER_DAY = 86_400 * 10**9


class PythonEncoder:
    """Encodes values of one schema, one at a time.

    Raises SchemaMismatch for a schema that cannot be encoded.
    """

    def __init__(self, info: SchemaInfo) -> None:
        node = definition_of(info)
        if node is None:
            raise SchemaMismatch(
                f"values of the schema type {info.type_name} are not made of dicts",
                "Give protobuf messages, with ProtobufNativeSchema.",
            )
        self._convert = converter(node)
        self._write = _writer(info, node)

    def encode(self, value: Any) -> bytes:
        """Encode a value that is not None; raises Mismatch that names the field."""
        return self._write(self._convert(value))


def _writer(info: SchemaInfo, node: Node) -> WriteValue:
    """Return the function that encodes one converted value."""
    if info.type == pb.Schema.Avro:
        return value_writer(plan_for_values(node))
    if info.type == pb.Schema.Json:
        from pulsar_spark.schema.json.types import Dialect
        from pulsar_spark.schema.json.value_writing import row_writer
        from pulsar_spark.schema.json.writing import text_plan

        columns = arrow_columns(node, all_nullable=True)
        write = row_writer(text_plan(node, columns, Dialect.of(info), of_python=True))
        return write if isinstance(node, Record) else lambda value: write([value])
    return _by_column(info)


def _by_column(info: SchemaInfo) -> WriteValue:
    codec = codec_of(info)
    columns = codec.arrow_schema(info)
    encoder = codec.encoder(info, columns)

    def write(value: Any) -> bytes:
        arrays = [build_array([value], column.type) for column in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
        payload: bytes = encoder.encode(batch)[0].as_py()
        return payload

    return write


def decoder_between(writer: SchemaInfo, reader: SchemaInfo) -> PythonDecoder | PythonPairDecoder:
    """Return a decoder of values written with `writer` for the schema `reader`.

    Raises SchemaMismatch if one cannot be read as the other.
    """
    if reader.type == pb.Schema.KeyValue:
        return PythonPairDecoder(writer, reader)
    return PythonDecoder(writer, reader)


class PythonDecoder:
    """Decodes values written with one schema to values of another, as columns.

    Raises SchemaMismatch if one cannot be read as the other.
    """

    separated = False
    """Whether keys are message keys, not in the payloads."""

    def __init__(self, writer: SchemaInfo, reader: SchemaInfo) -> None:
        columns = codec_of(reader).arrow_schema(reader)
        self._names: list[str] = columns.names
        node = definition_of(reader)
        if reader.type in (pb.Schema.Avro, pb.Schema.Json) and node is not None:
            # Raises for types that columns hold in their encoding.
            arrow_columns(node)
        self._is_record = isinstance(node, Record) or node is None
        self._restore: dict[str, Restore | None] = dict.fromkeys(self._names)
        if isinstance(node, Record):
            self._restore = {field.name: restorer(field.type) for field in node.fields}
        elif node is not None:
            self._restore[VALUE] = restorer(node)
        self._decoder = decoder_of(writer, reader, self._names)

    def decode(self, raw: pa.Array, keys: pa.Array | None = None) -> list[Any]:
        """Return a value for each element, None for null, Undecodable for an invalid one.

        `keys` are for pairs, as in `PythonPairDecoder`.
        """
        decoded = self._decoder.decode(raw)
        bad: dict[int, Undecodable] = {found.row: found for found in decoded.bad}
        columns = [
            self._values(name, column, bad)
            for name, column in zip(self._names, decoded.columns, strict=True)
        ]
        found: list[Any]
        if self._is_record:
            names = self._names
            found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            # Records without fields have no columns to count.
            found = found if columns else [{} for _ in range(len(raw))]
        else:
            found = columns[0]
        for row, problem in bad.items():
            found[row] = problem
        if raw.null_count:
            found = [
                value if there else None
                for value, there in zip(found, raw.is_valid().to_pylist(), strict=True)
            ]
        return found

    def _values(self, name: str, column: pa.Array, bad: dict[int, Undecodable]) -> list[Any]:
        restore = self._restore[name]
        try:
            found = column.to_pylist(maps_as_pydicts="lossy")
            return found if restore is None else [_unless_none(restore, each) for each in found]
        except (ValueError, OverflowError):
            # Python's type cannot hold some value, usually a time.
            return [self._value(name, column, row, bad) for row in range(len(column))]

    def _value(self, name: str, column: pa.Array, row: int, bad: dict[int, Undecodable]) -> Any:
        try:
            found = column.slice(row, 1).to_pylist(maps_as_pydicts="lossy")[0]
            restore = self._restore[name]
            return found if restore is None else _unless_none(restore, found)
        except (ValueError, OverflowError) as error:
            field = name if self._is_record else ""
            bad.setdefault(row, Undecodable(row, field, f"Python cannot hold it: {error}"))
            return None


def _unless_none(restore: Restore, value: Any) -> Any:
    return None if value is None else restore(value)


# --- what a schema's values are -----------------------------------------------------------


def _logical(kind: str, name: str) -> Primitive:
    return Primitive(kind, Logical(name))


_PRIMITIVES: dict[int, Node] = {
    pb.Schema.String: Primitive("string"),
    pb.Schema.Bool: Primitive("boolean"),
    pb.Schema.Int8: Primitive("int8"),
    pb.Schema.Int16: Primitive("int16"),
    pb.Schema.Int32: Primitive("int"),
    pb.Schema.Int64: Primitive("long"),
    pb.Schema.Float: Primitive("float"),
    pb.Schema.Double: Primitive("double"),
    pb.Schema.Date: _logical("int", "date"),
    pb.Schema.LocalDate: _logical("int", "date"),
    pb.Schema.Time: _logical("long", "time-nanos"),
    pb.Schema.LocalTime: _logical("long", "time-nanos"),
    pb.Schema.Timestamp: _logical("long", "timestamp-micros"),
    pb.Schema.Instant: _logical("long", "timestamp-micros"),
    pb.Schema.LocalDateTime: _logical("long", "local-timestamp-micros"),
}


def definition_of(info: SchemaInfo) -> Node | None:
    """Return a schema's type, as Avro's if it is a primitive.

    None for protobuf messages; raises SchemaMismatch for an invalid definition, and for a record
    that contains itself.
    """
    if info.type in PLAIN:
        return Primitive("string" if info.type == pb.Schema.String else "bytes")
    if info.type == pb.Schema.Avro:
        return parse_definition(info.schema_data, opaque=False)
    if info.type == pb.Schema.Json:
        from pulsar_spark.schema.json.codec import parse_json_definition

        return parse_json_definition(info, opaque=False)
    return _PRIMITIVES.get(info.type)


# --- from Python to Arrow -----------------------------------------------------------------


def converter(node: Node) -> Convert:
    """Return the conversion of a type's values for an Arrow column."""
    if isinstance(node, Opaque):
        node = Primitive("string")
    if isinstance(node, Primitive | Fixed):
        return _leaf(node)
    match node:
        case Record():
            return _record(node)
        case Array():
            return _array(converter(node.items))
        case Map():
            return _map(converter(node.values))
        case Enum():
            return _enum(node)
    assert isinstance(node, UnionOf)
    return _union(node)


def _wrong(value: Any, wanted: str) -> Mismatch:
    found = type(value).__name__
    return Mismatch(f"it is {'None' if value is None else f'of the type {found}'}, not {wanted}")


def _record(node: Record) -> Convert:
    fields = [(field.name, converter(field.type), _default(field)) for field in node.fields]
    known = frozenset(field.name for field in node.fields)

    def convert(value: Any) -> list[Any]:
        found = _fields_of(value)
        unknown = found.keys() - known
        if unknown:
            name = min(map(str, unknown))
            remedy = "Leave it out, or add it to the schema."
            raise Mismatch("the definition has no such field", name, remedy=remedy)
        out = []
        for name, convert_field, default in fields:
            try:
                if name in found:
                    out.append(convert_field(found[name]))
                elif default is not NO_DEFAULT:
                    out.append(default)
                else:
                    raise Mismatch("it is missing, and the definition has no default for it")
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
        return out

    return convert


def _fields_of(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dict, or of an official client's record."""
    if isinstance(value, Mapping):
        return value
    if hasattr(type(value), "schema") and hasattr(value, "__dict__"):
        return {name: each for name, each in vars(value).items() if not name.startswith("_")}
    raise _wrong(value, "a dict")


def _default(field: RecordField) -> Any:
    """Return a missing field's default, converted; NO_DEFAULT if there is none."""
    if field.default is NO_DEFAULT:
        nullable = is_null(field.type) or (isinstance(field.type, UnionOf) and field.type.nullable)
        return None if nullable else NO_DEFAULT
    try:
        return converter(field.type)(_from_json(field.type, field.default))
    except _NO_DEFAULTS:
        return NO_DEFAULT


_NO_DEFAULTS = (Mismatch, ValueError, TypeError, AttributeError, KeyError)
"""What converting a default raises that is none of its type."""


def _from_json(node: Node, value: Any) -> Any:
    """Return a default's Python value (Avro 1.12, Records)."""
    match node:
        case UnionOf():
            return None if value is None else _of_union(node, value)
        case Array() if not isinstance(value, list):
            raise TypeError
        case Array():
            return [_from_json(node.items, item) for item in value]
        case Map():
            return {name: _from_json(node.values, item) for name, item in value.items()}
        case Record():
            types = {field.name: field.type for field in node.fields}
            return {name: _from_json(types[name], item) for name, item in value.items()}
        case Fixed() | Primitive(kind="bytes"):
            return _from_text(node.logical, value.encode("latin-1"))
    return value


def _of_union(union: UnionOf, value: Any) -> Any:
    for member in union.present:
        with suppress(*_NO_DEFAULTS):
            if _accepts(union, made := _from_json(member, value)):
                return made
    raise ValueError


def _from_text(logical: Logical | None, raw: bytes) -> Any:
    name = "" if logical is None else logical.name
    if name == "decimal":
        assert logical is not None
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-logical.scale)
    return UUID(bytes=raw) if name == "uuid" else raw


def _accepts(node: Node, value: Any) -> bool:
    try:
        converter(node)(value)
    except Mismatch:
        return False
    return True


def _array(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list")
        out = []
        for index, item in enumerate(value):
            try:
                out.append(convert_item(item))
            except Mismatch as mismatch:
                raise mismatch.within(f"[{index}]") from None
        return out

    return convert


def _map(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[bytes, Any]]:
        if not isinstance(value, Mapping):
            raise _wrong(value, "a dict")
        out = []
        for name, item in value.items():
            try:
                out.append((_text(name), convert_item(item)))
            except Mismatch as mismatch:
                raise mismatch.within(f"{{{name!r}}}") from None
        return out

    return convert


def _enum(node: Enum) -> Convert:
    symbols = frozenset(node.symbols)

    def convert(value: Any) -> bytes:
        found = value.name if isinstance(value, enum.Enum) else value
        if not isinstance(found, str):
            raise _wrong(value, "a symbol of the enum")
        if found not in symbols:
            raise Mismatch(f"it is none of the enum's symbols: {', '.join(node.symbols[:20])}")
        return found.encode()

    return convert


def _union(node: UnionOf) -> Convert:
    sole = sole_type(node)
    nullable = node.nullable
    members = [(member, converter(member)) for member in node.present]

    def convert(value: Any) -> Any:
        if value is None:
            if nullable:
                return None
            raise Mismatch("it is None, and the definition does not allow null")
        if sole is not None:
            return convert_sole(value)
        # A whole number is a float only in unions without an integer type.
        for floats in (False, True):
            for place, (member, convert_member) in enumerate(members):
                if isinstance(value, int) and floats != _is_float(member):
                    continue
                try:
                    cell = convert_member(value)
                except Mismatch:
                    continue
                return [cell if at == place else None for at in range(len(members))]
        raise Mismatch(f"it is a {type(value).__name__} that fits none of the union's types")

    convert_sole = converter(sole) if sole is not None and not is_null(sole) else _null
    return convert


def _is_float(node: Node) -> bool:
    return isinstance(node, Primitive) and node.kind in ("float", "double")


def _leaf(node: Primitive | Fixed) -> Convert:
    logical = node.logical
    if logical is None:
        return _LEAVES[node.kind] if isinstance(node, Primitive) else _bytes
    if logical.name == "decimal":
        return _decimal(logical)
    return _LOGICAL[logical.name]


def _null(value: Any) -> None:
    if value is not None:
        raise _wrong(value, "None")


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "a bool")
    return value


def _integer(bits: int) -> Convert:
    bound = 2 ** (bits - 1)

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(value, "an int")
        if not -bound <= value < bound:
            raise Mismatch(f"it is {value}, which does not fit {bits} bits")
        return int(value)

    return convert


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(value, "a float")
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("it is a whole number beyond what a double holds") from None


def _double(value: Any) -> bytes:
    return _DOUBLE.pack(_number(value))


def _float(value: Any) -> bytes:
    found = _number(value)
    if math.isfinite(found) and abs(found) >= _MAX_FLOAT:
        raise Mismatch(f"it is {found!r}, which is beyond what a float of 32 bits holds")
    return _FLOAT.pack(found)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong(value, "bytes")
    return bytes(value)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, "a str")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Mismatch("it is text that UTF-8 cannot express") from None


def _uuid(value: Any) -> bytes:
    if not isinstance(value, str | UUID):
        raise _wrong(value, "a UUID")
    return _text(str(value))


def _decimal(logical: Logical) -> Convert:
    context = Context(prec=logical.precision)
    unit = Decimal(1).scaleb(-logical.scale)

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise _wrong(value, "a Decimal")
        given = Decimal(value)
        try:
            found = given.quantize(unit, context=context)
        except InvalidOperation:
            found = None
        if found is None or found != given:
            raise Mismatch(
                f"it is {value}, which does not fit decimal({logical.precision},{logical.scale})"
            )
        sign, digits, _ = found.as_tuple()
        return int("".join(map(str, digits))) * (-1 if sign else 1)

    return convert


def _duration(value: Any) -> list[int]:
    names = ("months", "days", "milliseconds")
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise _wrong(value, "a dict of months, days and milliseconds")
    return [_LEAVES["long"](value[name]) for name in names]


# --- times --------------------------------------------------------------------------------


def _day(value: Any) -> int:
    if isinstance(value, datetime) or not isinstance(value, date):
        if isinstance(value, int) and not isinstance(value, bool):
            return int(_LEAVES["int"](value))
        raise _wrong(value, "a date")
    return day_of(value)


def _scaled(value: Any, times: int, divided: int, wanted: str) -> int:
    """Convert a whole number from the type's own unit to Spark's."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, wanted)
    found = value * times // divided
    if not -(2**63) <= found < 2**63:
        raise Mismatch(f"it is {value}, which lies beyond what 64 bits hold in microseconds")
    return found


def _moment(times: int, divided: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, datetime):
            if value.utcoffset() is None:
                # As in Python, it is in the machine's zone.
                try:
                    value = value.astimezone(timezone.utc)
                except (OverflowError, ValueError):
                    raise Mismatch(f"it is {value}, which is no time in UTC") from None
            return int((value - _EPOCH) // _MICROSECOND)
        return _scaled(value, times, divided, "a datetime")

    return convert


def _local_moment(times: int, divided: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, datetime):
            if value.tzinfo is not None:
                raise Mismatch("it is a datetime with a zone, and the definition has a local one")
            return (value - _LOCAL_EPOCH) // _MICROSECOND
        return _scaled(value, times, divided, "a datetime")

    return convert


def _time_of_day(times: int, divided: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, time):
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return (seconds * 1_000_000 + value.microsecond) * 1000
        found = _scaled(value, times, divided, "a time")
        if not 0 <= found < _NANOS_PER_DAY:
            raise Mismatch(f"it is {value}, which is not a time of day")
        return found

    return convert


_TIMES: dict[str, Callable[[int, int], Convert]] = {
    "time": _time_of_day,
    "timestamp": _moment,
    "local-timestamp": _local_moment,
}

_LOGICAL: dict[str, Convert] = {
    "uuid": _uuid,
    "duration": _duration,
    "date": _day,
} | {
    f"{family}-{unit}": make(*factors(family, unit))
    for family, make in _TIMES.items()
    for unit in ("millis", "micros", "nanos")
}

_LEAVES: dict[str, Convert] = {
    "null": _null,
    "boolean": _boolean,
    "int8": _integer(8),
    "int16": _integer(16),
    "int": _integer(32),
    "long": _integer(64),
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
}


# --- from Arrow to Python -----------------------------------------------------------------


def restorer(node: Node) -> Restore | None:
    """Return the conversion from Arrow's values to Python's, None if they are equal."""
    match node:
        case Record():
            parts = {field.name: restorer(field.type) for field in node.fields}
            return _restored_record({n: part for n, part in parts.items() if part is not None})
        case Array():
            return _restored_items(restorer(node.items))
        case Map():
            return _restored_entries(restorer(node.values))
        case UnionOf():
            return _restored_union(node)
        case Enum() | Opaque():
            return None
    assert isinstance(node, Primitive | Fixed)
    name = node.logical.name if node.logical is not None else ""
    return UUID if name == "uuid" else _restored_time if name.startswith("time-") else None


def _restored_items(item: Restore | None) -> Restore | None:
    if item is None:
        return None
    return lambda value: [_unless_none(item, each) for each in value]


def _restored_entries(item: Restore | None) -> Restore | None:
    if item is None:
        return None
    return lambda value: {name: _unless_none(item, each) for name, each in value.items()}


def _restored_record(parts: Mapping[str, Restore]) -> Restore | None:
    if not parts:
        return None

    def restore(value: dict[str, Any]) -> dict[str, Any]:
        for name, part in parts.items():
            value[name] = _unless_none(part, value[name])
        return value

    return restore


def _restored_union(node: UnionOf) -> Restore | None:
    sole = sole_type(node)
    if sole is not None:
        return restorer(sole)
    members = [restorer(member) for member in node.present]

    def restore(value: dict[str, Any]) -> Any:
        for member, found in zip(members, value.values(), strict=True):
            if found is not None:
                return found if member is None else member(found)
        return None

    return restore


def _restored_time(nanos: int) -> time:
    seconds, micros = divmod(nanos // 1000, 1_000_000)
    if not 0 <= seconds < 86_400:
        raise ValueError(f"{nanos} nanoseconds are no time of day")
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)


# --- pairs --------------------------------------------------------------------------------


class KeyValue(NamedTuple):
    """A value of a KEY_VALUE topic."""

    key: Any
    value: Any


class PairEncoder:
    """Encodes the pairs of a KEY_VALUE schema, one at a time."""

    def __init__(self, info: SchemaInfo) -> None:
        parts = key_value_parts(info)
        self.separated = parts.separated
        self._sides = PythonEncoder(parts.key), PythonEncoder(parts.value)

    def encode(self, pair: Any) -> tuple[bytes | None, bytes | None]:
        """Encode both, None for None; raises Mismatch."""
        if not isinstance(pair, tuple) or len(pair) != len(KeyValue._fields):
            raise _wrong(pair, "a pair of a key and a value")
        found: list[bytes | None] = []
        for name, side, encoder in zip(KeyValue._fields, pair, self._sides, strict=True):
            try:
                found.append(None if side is None else encoder.encode(side))
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
        return found[0], found[1]

    def payload(self, key: bytes | None, value: bytes | None) -> bytes:
        """Return the payload of a message that contains the key too."""
        joined: bytes = join_pairs(binaries([key]), binaries([value]))[0].as_py()
        return joined


class PythonPairDecoder:
    """Decodes pairs written with one KEY_VALUE schema to pairs of another."""

    def __init__(self, writer: SchemaInfo, reader: SchemaInfo) -> None:
        check_types(writer, reader)
        written, wanted = key_value_parts(writer), key_value_parts(reader)
        self.separated = written.separated
        self._key = PythonDecoder(written.key, wanted.key)
        self._value = PythonDecoder(written.value, wanted.value)

    def decode(self, raw: pa.Array, keys: pa.Array | None = None) -> list[Any]:
        """Return a KeyValue for each payload; `keys` are the message keys, if separated.

        None for a null payload without a key, Undecodable for an invalid pair.
        """
        bad: dict[int, Undecodable] = {}
        values = raw
        if not self.separated:
            keys, values, found = split_pairs(raw)
            bad = {each.row: each for each in found}
        both = zip(self._key.decode(keys), self._value.decode(values), strict=True)
        pairs: list[Any] = [_pair(key, value) for key, value in both]
        for row, problem in bad.items():
            pairs[row] = problem
        if not self.separated and raw.null_count:
            there = raw.is_valid().to_pylist()
            pairs = [pair if here else None for pair, here in zip(pairs, there, strict=True)]
        return pairs


def _pair(key: Any, value: Any) -> KeyValue | Undecodable:
    for name, side in zip(KeyValue._fields, (key, value), strict=True):
        if isinstance(side, Undecodable):
            return replace(side, field=f"{name}.{side.field}" if side.field else name)
    return KeyValue(key, value)
