"""Columns matched with an AVRO definition: which fit, and how each of their values is written.

The topic's definition decides. Columns are matched by name, and must have the same kind of type, or
a smaller one that loses nothing. Nulls are checked in the rows, because nearly all of Spark's
columns are nullable. JSON topics have the same definitions, so that columns match there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arrays import usual_type
from pulsar_spark.schema.arrow.varints import zigzag
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
from pulsar_spark.schema.avro.resolution import describe, units
from pulsar_spark.schema.avro.types import (
    DURATION,
    LOCAL,
    NANOS_PER_DAY,
    UTC,
    arrow_type,
    is_nullable,
    sole_type,
)
from pulsar_spark.schema.primitives import spark_name

Plan: TypeAlias = tuple[Any, ...]
"""How the values of a column are written as a type: a name, and what it takes.

The kernel (`native/src/value_encoder.rs`) and the reference (`avro/value_writing.py`) take it.
"""

_NULL: Plan = ("null",)


def plan_for_columns(node: Node, columns: pa.Schema) -> Plan:
    """Return how to write rows of columns as values of a type.

    Raises SchemaMismatch that lists all mismatches.
    """
    columns = pa.schema([field.with_type(usual_type(field.type)) for field in columns])
    fitting = _Fitting()
    found = _NULL
    if isinstance(node, Record):
        found = fitting.record(node, columns, "")
    elif len(columns) == 1:
        name = columns.names[0]
        found = "record", [(0, fitting.plan(node, columns.field(0).type, name), name)]
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


def plan_for_values(node: Node) -> Plan:
    """Return how to write values of a type, in the form of the cells of its own column type."""
    match node:
        case Record():
            return "record", [
                (at, plan_for_values(f.type), f.name) for at, f in enumerate(node.fields)
            ]
        case Array():
            return "array", plan_for_values(node.items)
        case Map():
            return "map", plan_for_values(node.values)
        case UnionOf():
            return _union_of_values(node)
        case Primitive(_, Logical("decimal") as logical) | Fixed(
            _, _, Logical("decimal") as logical
        ):
            # Python has decimals of more digits than columns.
            return _leaf(node, pa.decimal128(MAX_PRECISION, logical.scale))
    assert isinstance(node, Primitive | Fixed | Enum)
    return _NULL if is_null(node) else _leaf(node, arrow_type(node))


def _union_of_values(node: UnionOf) -> Plan:
    places, sole = _present_places(node), sole_type(node)
    if sole is not None:
        places = [next(place for place in places if node.members[place] == sole)]
    members = {place: plan_for_values(node.members[place]) for place in places}
    return _union(node, members, apart=sole is None)


def _union(node: UnionOf, members: Mapping[int, Plan], *, apart: bool) -> Plan:
    """Return how to write members by their numbers; those `apart` are a struct's columns."""
    null = next((i for i, member in enumerate(node.members) if is_null(member)), None)
    numbered = [(zigzag(number), plan) for number, plan in members.items()]
    return "union", None if null is None else zigzag(null), numbered, apart


class _Fitting:
    """Finds plans for columns; collects mismatches in `mismatches`."""

    def __init__(self) -> None:
        self.mismatches: list[str] = []

    def record(self, node: Record, given: Sequence[pa.Field], path: str) -> Plan:
        """Return how to write a record's fields from columns."""
        prefix = f"{path}." if path else ""
        places = {column.name: place for place, column in enumerate(given)}
        known = {field.name for field in node.fields}
        steps: list[tuple[int | None, Plan | bytes, str]] = []
        for field in node.fields:
            place = places.get(field.name)
            if place is None:
                steps.append((None, self._absent(field, prefix + field.name), field.name))
                continue
            plan = self.plan(field.type, given[place].type, prefix + field.name)
            steps.append((place, plan, field.name))
        self.mismatches += [
            f"{prefix}{name} is not in the topic's schema: drop it, or add it to the schema"
            for name in places
            if name not in known
        ]
        if len(places) < len(given):
            self.mismatches.append(f"two columns {f'of {path} ' if path else ''}have the same name")
        return "record", steps

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

    def plan(self, node: Node, kind: pa.DataType, path: str) -> Plan:
        """Return how to write a column as a type."""
        if is_null(node):
            return _NULL
        if isinstance(node, UnionOf):
            return self._union(node, kind, path)
        found: Plan | None = None
        match node:
            case Record() if pa.types.is_struct(kind):
                found = self.record(node, list(kind), path)
            case Array() if pa.types.is_list(kind):
                found = "array", self.plan(node.items, kind.value_type, f"{path}[]")
            case Map() if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
                found = "map", self.plan(node.values, kind.item_type, f"{path}{{}}")
            case Primitive() | Fixed() | Enum() | Opaque() if _fits(node, kind):
                found = _leaf(node, kind)
        if found is None:
            self.mismatches.append(
                f"{path} is {spark_name(kind)}, the topic's schema has {describe(node)}: "
                f"{_advice(node)}"
            )
            return _NULL
        return found

    def _union(self, union: UnionOf, kind: pa.DataType, path: str) -> Plan:
        places = _present_places(union)
        if pa.types.is_null(kind) and is_nullable(union):
            return _union(union, {0: _NULL}, apart=False)
        names = [f"member{number}" for number in range(len(places))]
        if pa.types.is_struct(kind) and [f.name for f in kind] == names and len(names) > 1:
            members = {
                place: self.plan(union.members[place], field.type, f"{path}.{field.name}")
                for place, field in zip(places, kind, strict=True)
            }
            return _union(union, members, apart=True)
        before = len(self.mismatches)
        # A column may match a single member.
        for place in by_likeness(union, kind):
            own = self.plan(union.members[place], kind, path)
            if len(self.mismatches) == before or len(places) == 1:
                return _union(union, {place: own}, apart=False)
            del self.mismatches[before:]
        self.mismatches.append(
            f"{path} is {spark_name(kind)}, the topic's schema has {describe(union)}: make it one "
            f"of these, or a struct of {', '.join(names)}"
        )
        return _NULL


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


def _leaf(node: Primitive | Fixed | Enum | Opaque, kind: pa.DataType) -> Plan:
    """Return how to write a type without parts from a column of a type that fits."""
    match node:
        case Opaque():
            return "opaque", node.type
        case Enum():
            return "enum", [(symbol.encode(), zigzag(n)) for n, symbol in enumerate(node.symbols)]
        case Fixed(_, size):
            if node.logical is not None and node.logical.name == "decimal":
                return _decimal(node.logical, kind, size)
            if pa.types.is_string(kind):
                return ("uuid",)
            return ("duration",) if pa.types.is_struct(kind) else ("fixed", size)
    return _primitive(node, kind) if node.logical is None else _logical(node.logical, kind)


def _primitive(node: Primitive, kind: pa.DataType) -> Plan:
    if node.kind in ("int", "long"):
        return "whole", 1, 1, 0
    if node.kind in ("float", "double"):
        return node.kind, pa.types.is_floating(kind)
    return ("boolean",) if node.kind == "boolean" else ("bytes",)


def _logical(logical: Logical, kind: pa.DataType) -> Plan:
    if logical.name == "decimal":
        return _decimal(logical, kind, None)
    if logical.name == "uuid":
        return ("uuid text",)
    if logical.name == "date":
        return "whole", 1, 1, 0
    factor, divisor = units(logical)
    return "whole", divisor, factor, NANOS_PER_DAY if logical.name.startswith("time-") else 0


def _decimal(logical: Logical, kind: pa.DataType, size: int | None) -> Plan:
    finer = kind.scale - logical.scale
    return "decimal", max(-finer, 0), max(finer, 0), logical.precision, logical.scale, size


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
