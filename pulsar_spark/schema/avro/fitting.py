"""Columns matched with an AVRO definition: which fit, and how each of their values is written.

The topic's definition decides. Columns are matched by name, and must have the same kind of type, or
a smaller one that loses nothing. Nulls are checked in the rows, because nearly all of Spark's
columns are nullable. JSON topics have the same definitions, so that columns match there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arrays import usual_type
from pulsar_spark.schema.avro.definition import (
    MAX_PRECISION,
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
from pulsar_spark.schema.avro.resolution import describe
from pulsar_spark.schema.avro.types import (
    DURATION,
    LOCAL,
    UTC,
    arrow_type,
    is_nullable,
    sole_type,
)


@dataclass(frozen=True, slots=True)
class WriteNull:
    """Writes nothing; only null fits."""


@dataclass(frozen=True, slots=True)
class WriteLeaf:
    """Writes a type without parts from a column of the type `type`."""

    node: Primitive | Fixed | Enum | Opaque
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Writes fields in order: name, place of the column, and how; or the bytes of a default."""

    steps: Sequence[tuple[str, int, WritePlan] | bytes]


@dataclass(frozen=True, slots=True)
class WriteArray:
    """Writes lists of items."""

    node: Array
    items: WritePlan


@dataclass(frozen=True, slots=True)
class WriteMap:
    """Writes maps whose keys are text."""

    values: WritePlan


@dataclass(frozen=True, slots=True)
class WriteMember:
    """Writes one type of a union, behind its number. `null_number` is that of null, if it fits."""

    null_number: int | None
    number: int
    plan: WritePlan


@dataclass(frozen=True, slots=True)
class WriteUnion:
    """Writes structs with a member per type of a union, of which exactly one is not null."""

    null_number: int | None
    members: Sequence[tuple[int, WritePlan]]


WritePlan: TypeAlias = (
    WriteNull | WriteLeaf | WriteRecord | WriteArray | WriteMap | WriteMember | WriteUnion
)
"""How the values of a column are written as a type."""


def plan_for_columns(node: Node, columns: pa.Schema) -> WriteRecord:
    """Return how to write rows of columns as values of a type.

    Raises SchemaMismatch that lists all mismatches.
    """
    columns = pa.schema([field.with_type(usual_type(field.type)) for field in columns])
    fitting = _Fitting()
    found = WriteRecord(())
    if isinstance(node, Record):
        found = fitting.record(node, columns, "")
    elif len(columns) == 1:
        name = columns.names[0]
        found = WriteRecord([(name, 0, fitting.plan(node, columns.field(0).type, name))])
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
    return found


def plan_for_values(node: Node) -> WritePlan:
    """Return how to write values of a type, in the form of the cells of its own column type."""
    found: WritePlan
    match node:
        case Record():
            steps = [(f.name, at, plan_for_values(f.type)) for at, f in enumerate(node.fields)]
            found = WriteRecord(steps)
        case Array():
            found = WriteArray(node, plan_for_values(node.items))
        case Map():
            found = WriteMap(plan_for_values(node.values))
        case UnionOf():
            found = _union_of_values(node)
        case Primitive("null"):
            found = WriteNull()
        case Primitive(_, Logical("decimal") as logical) | Fixed(
            _, _, Logical("decimal") as logical
        ):
            # Python has decimals of more digits than columns.
            found = WriteLeaf(node, pa.decimal128(MAX_PRECISION, logical.scale))
        case _:
            assert isinstance(node, Primitive | Fixed | Enum)
            found = WriteLeaf(node, arrow_type(node))
    return found


def _union_of_values(node: UnionOf) -> WritePlan:
    places, sole = _present_places(node), sole_type(node)
    if not places:
        return WriteMember(_null_number(node), 0, WriteNull())
    if sole is None:
        members = [(place, plan_for_values(node.members[place])) for place in places]
        return WriteUnion(_null_number(node), members)
    number = next(place for place in places if node.members[place] == sole)
    return WriteMember(_null_number(node), number, plan_for_values(sole))


class _Fitting:
    """Finds plans for columns; collects mismatches in `mismatches`."""

    def __init__(self) -> None:
        self.mismatches: list[str] = []

    def record(self, node: Record, given: Sequence[pa.Field], path: str) -> WriteRecord:
        """Return how to write a record's fields from columns."""
        prefix = f"{path}." if path else ""
        places = {column.name: place for place, column in enumerate(given)}
        known = {field.name for field in node.fields}
        steps: list[tuple[str, int, WritePlan] | bytes] = []
        for field in node.fields:
            place = places.get(field.name)
            if place is None:
                steps.append(self._absent(field, prefix + field.name))
                continue
            plan = self.plan(field.type, given[place].type, prefix + field.name)
            steps.append((field.name, place, plan))
        self.mismatches += [
            f"{prefix}{name} is not in the topic's schema: drop it, or add it to the schema"
            for name in places
            if name not in known
        ]
        if len(places) < len(given):
            self.mismatches.append(f"two columns {f'of {path} ' if path else ''}have the same name")
        return WriteRecord(steps)

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

    def plan(self, node: Node, kind: pa.DataType, path: str) -> WritePlan:
        """Return how to write a column as a type."""
        if is_null(node):
            return WriteNull()
        if isinstance(node, UnionOf):
            return self._union(node, kind, path)
        found: WritePlan | None = None
        match node:
            case Record() if pa.types.is_struct(kind):
                found = self.record(node, list(kind), path)
            case Array() if pa.types.is_list(kind):
                found = WriteArray(node, self.plan(node.items, kind.value_type, f"{path}[]"))
            case Map() if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
                found = WriteMap(self.plan(node.values, kind.item_type, f"{path}{{}}"))
            case Primitive() | Fixed() | Enum() | Opaque() if _fits(node, kind):
                found = WriteLeaf(node, kind)
        if found is None:
            self.mismatches.append(
                f"{path} is {kind}, the topic's schema has {describe(node)}: {_advice(node)}"
            )
            return WriteNull()
        return found

    def _union(self, union: UnionOf, kind: pa.DataType, path: str) -> WritePlan:
        places, null_number = _present_places(union), _null_number(union)
        if pa.types.is_null(kind) and null_number is not None:
            return WriteMember(null_number, 0, WriteNull())
        names = [f"member{number}" for number in range(len(places))]
        if pa.types.is_struct(kind) and [f.name for f in kind] == names and len(names) > 1:
            members = [
                (place, self.plan(union.members[place], field.type, f"{path}.{field.name}"))
                for place, field in zip(places, kind, strict=True)
            ]
            return WriteUnion(null_number, members)
        before = len(self.mismatches)
        # A column may match a single member.
        for place in by_likeness(union, kind):
            own = self.plan(union.members[place], kind, path)
            if len(self.mismatches) == before or len(places) == 1:
                return WriteMember(null_number, place, own)
            del self.mismatches[before:]
        self.mismatches.append(
            f"{path} is {kind}, the topic's schema has {describe(union)}: make it one of these, or "
            f"a struct of {', '.join(names)}"
        )
        return WriteNull()


def _present_places(union: UnionOf) -> list[int]:
    return [place for place, member in enumerate(union.members) if not is_null(member)]


def by_likeness(union: UnionOf, kind: pa.DataType) -> list[int]:
    """Return the places of a union's members but null, those of a column's own type first.

    So text is a string rather than an enum's symbol, and an integer a long rather than a double.
    """

    def is_other(place: int) -> bool:
        member = union.members[place]
        if not isinstance(member, Primitive | Fixed):
            return True
        own = arrow_type(member)
        return not (own == kind or (pa.types.is_integer(own) and pa.types.is_integer(kind)))

    return sorted(_present_places(union), key=is_other)


def _null_number(union: UnionOf) -> int | None:
    return next((i for i, member in enumerate(union.members) if is_null(member)), None)


def _fits(node: Primitive | Fixed | Enum | Opaque, kind: pa.DataType) -> bool:
    match node:
        case Enum():
            return bool(pa.types.is_string(kind))
        case Fixed():
            return _fits_fixed(node, kind)
        case Primitive():
            return _fits_primitive(node, kind)
    return bool(kind == arrow_type(node))


def _fits_fixed(node: Fixed, kind: pa.DataType) -> bool:
    name = node.logical.name if node.logical else ""
    if name == "decimal":
        return bool(pa.types.is_decimal128(kind))
    if name == "uuid" and pa.types.is_string(kind):
        return True
    if name == "duration" and pa.types.is_struct(kind):
        whole = all(pa.types.is_integer(field.type) for field in kind)
        return whole and [field.name for field in kind] == [field.name for field in DURATION]
    return bool(pa.types.is_binary(kind))


def _fits_primitive(node: Primitive, kind: pa.DataType) -> bool:
    if node.logical is not None and node.logical.name != "uuid":
        return _fits_logical(node.logical, kind)
    bits = kind.bit_width if pa.types.is_signed_integer(kind) else 0
    fits = False
    match node.kind:
        case "boolean":
            fits = pa.types.is_boolean(kind)
        case "int":
            fits = 0 < bits <= 32
        case "long":
            fits = bits > 0
        case "float":
            fits = pa.types.is_float32(kind) or 0 < bits <= 16
        case "double":
            fits = pa.types.is_float32(kind) or pa.types.is_float64(kind) or 0 < bits <= 32
        case "bytes":
            fits = pa.types.is_binary(kind)
        case "string":
            fits = pa.types.is_string(kind)
    return bool(fits)


def _fits_logical(logical: Logical, kind: pa.DataType) -> bool:
    name = logical.name
    if name == "decimal":
        return bool(pa.types.is_decimal128(kind))
    if name == "date":
        return bool(pa.types.is_date32(kind))
    if name.startswith("time-"):
        return kind in (pa.int64(), pa.time64("ns"))
    return bool(kind == (LOCAL if name.startswith("local-") else UTC))


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
