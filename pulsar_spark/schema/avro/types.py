"""Avro types → the Arrow types that Spark takes.

Spark's own Avro source sets the names: of unions the members become `member0`, `member1`, …, a
union of int and long is a long, one of float and double a double. Times of day are nanoseconds,
as longs; timestamps of any unit are microseconds.
"""

from __future__ import annotations

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.definition import (
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    UnionOf,
    is_null,
)
from pulsar_spark.schema.table.names import VALUE

MAX_PRECISION = 38
"""The most digits that Spark's decimals have."""

UUID_TEXT = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"
"""What a UUID is as text, as a regular expression of Arrow's."""

UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
DURATION = pa.struct(
    [pa.field(name, pa.int64(), False) for name in ("months", "days", "milliseconds")]
)

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.int64(),
    "time-micros": pa.int64(),
    "timestamp-millis": UTC,
    "timestamp-micros": UTC,
    "timestamp-nanos": UTC,
    "local-timestamp-millis": LOCAL,
    "local-timestamp-micros": LOCAL,
    "local-timestamp-nanos": LOCAL,
    "uuid": pa.string(),
    "duration": DURATION,
}


def arrow_columns(node: Node, *, all_nullable: bool = False) -> pa.Schema:
    """Return the columns that values of a type become: a record's fields, else one, `value`.

    The columns themselves are nullable always, as a message can be null. What lies in them is
    so where the type says it, or everywhere with `all_nullable`. Raises SchemaMismatch that
    names what Spark has no type for.
    """
    if isinstance(node, Record):
        types = [
            (f.name, arrow_type(f.type, f.name, all_nullable=all_nullable)) for f in node.fields
        ]
    else:
        types = [(VALUE, arrow_type(node, VALUE, all_nullable=all_nullable))]
    return pa.schema([pa.field(name, kind) for name, kind in types])


def arrow_type(node: Node, path: str = "", *, all_nullable: bool = False) -> pa.DataType:
    """Return the Arrow type of a type's values, at `path` in the record; raises as above."""

    def child(name: str, inner: Node, at: str) -> pa.Field:
        kind = arrow_type(inner, at, all_nullable=all_nullable)
        return pa.field(name, kind, all_nullable or is_nullable(inner))

    kind: pa.DataType
    match node:
        case Record():
            kind = pa.struct([child(f.name, f.type, f"{path}.{f.name}") for f in node.fields])
        case Array():
            kind = pa.list_(child("element", node.items, f"{path}[]"))
        case Map():
            kind = pa.map_(pa.string(), child("value", node.values, f"{path}{{}}"))
        case Enum():
            kind = pa.string()
        case UnionOf():
            sole = sole_type(node)
            if sole is not None:
                return arrow_type(sole, path, all_nullable=all_nullable)
            members = [(f"member{i}", member) for i, member in enumerate(node.present)]
            kind = pa.struct(
                [
                    child(name, member, f"{path}.{name}").with_nullable(True)
                    for name, member in members
                ]
            )
        case Primitive() | Fixed():
            kind = _leaf_type(node, path)
    return kind


def _leaf_type(node: Primitive | Fixed, path: str) -> pa.DataType:
    logical = node.logical
    if logical is None:
        return pa.binary() if isinstance(node, Fixed) else _PRIMITIVES[node.kind]
    if logical.name == "decimal":
        return _decimal_type(logical, path)
    return _LOGICAL[logical.name]


def _decimal_type(logical: Logical, path: str) -> pa.DataType:
    if logical.precision > MAX_PRECISION:
        raise SchemaMismatch(
            f"the field {path or VALUE} is a decimal of {logical.precision} digits, Spark's have "
            f"at most {MAX_PRECISION}",
            "Read the values with valueFormat=raw.",
        )
    return pa.decimal128(logical.precision, logical.scale)


def is_nullable(node: Node) -> bool:
    """Whether null is among a type's values."""
    return is_null(node) or (isinstance(node, UnionOf) and node.nullable)


def sole_type(union: UnionOf) -> Node | None:
    """Return the one type that a union's values have in Spark if not null, None for several."""
    present = union.present
    if not present:
        return Primitive("null")
    if len(present) == 1:
        return present[0]
    if len(present) == 2:
        for small, large in (("int", "long"), ("float", "double")):
            pair = Primitive(small), Primitive(large)
            if present in (pair, pair[::-1]):
                return pair[1]
    return None


def usual_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with 32-bit offsets for one with 64-bit ones, which Spark can be set to use."""
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
