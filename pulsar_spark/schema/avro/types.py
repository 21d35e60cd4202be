"""Avro types ↔ Spark's Arrow types.

Names are those of Spark's own Avro source: a union's members become `member0`, `member1`, …; a
union of int and long is a long, one of float and double a double. Times of day are nanoseconds, as
longs; all timestamps are microseconds.

In the other direction, columns become a record's definition, for topics without a schema. A
nullable column is a union of null and its type, with default null, so that later versions may
remove the field or add others: by default brokers require that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arrays import usual_type
from pulsar_spark.schema.avro.definition import (
    LONGEST_NAME,
    MAX_PRECISION,
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    Reference,
    UnionOf,
    is_null,
)
from pulsar_spark.schema.table.names import VALUE

UUID_TEXT = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"
"""A UUID's text, as a regular expression for Arrow."""

NANOS_PER_DAY = 86_400 * 10**9
"""The first number that is no time of day."""

# What is wrong with values that cannot be written.
NOT_A_UUID = "it is not a UUID"
TOO_LATE = "the time is beyond what 64 bits hold in the schema's unit"
WRONG_SIZE = "it does not have the {} bytes that the topic's schema asks for"
WRONG_DURATION = "a part of the duration is not between 0 and 4294967295"
NOT_NULL = "it is null, and the topic's schema does not allow null there"
ONLY_NULL = "it is not null, and the topic's schema allows only null there"
NOT_A_TIME = "it is not a time of day in nanoseconds"
SEVERAL_MEMBERS = "more than one member of the union is not null"
WITHOUT_MEMBER = "no member of the union is set, and it does not allow null"
_EPOCH = date(1970, 1, 1).toordinal()

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


DAYS_OF_400_YEARS = 146_097
"""Always as many, so a date that Python does not have is one of another year, shifted."""


def day_of(value: date | int) -> int:
    """Return a date as days since 1970; a number is that already."""
    return value if isinstance(value, int) else value.toordinal() - _EPOCH


def unknown_symbol(symbols: Sequence[str]) -> str:
    """Return what is wrong with a text that is none of an enum's symbols."""
    return f"it is not one of the enum's symbols: {', '.join(symbols[:20])}"


def unfit_decimal(precision: int, scale: int) -> str:
    """Return what is wrong with a decimal of more digits."""
    return f"it does not fit decimal({precision},{scale})"


def arrow_columns(node: Node, *, all_nullable: bool = False) -> pa.Schema:
    """Return the columns for values of a type: a record's fields, otherwise one, `value`.

    The columns themselves are always nullable, because a message can be null. Their parts are
    nullable if the type says so, or always with `all_nullable`. Raises SchemaMismatch that names
    the types that Spark lacks.
    """
    if isinstance(node, Record):
        types = [
            (f.name, arrow_type(f.type, f.name, all_nullable=all_nullable)) for f in node.fields
        ]
    else:
        types = [(VALUE, arrow_type(node, VALUE, all_nullable=all_nullable))]
    return pa.schema([pa.field(name, kind) for name, kind in types])


def arrow_type(node: Node, path: str = "", *, all_nullable: bool = False) -> pa.DataType:
    """Return the Arrow type of a type, at `path` in the record; raises as above."""

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
            if all_nullable and kind == DURATION:
                kind = pa.struct([field.with_nullable(True) for field in DURATION])
        case Opaque():
            kind = pa.string() if node.is_text else pa.binary()
        case Reference():
            raise AssertionError(node)
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
    """Return the only Spark type of a union's non-null values, None if there are several."""
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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PLAIN: dict[pa.DataType, Any] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("ns"): {"type": "long", "logicalType": "time-micros"},
    pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def record_definition(columns: pa.Schema, name: str, namespace: str = "") -> bytes:
    """Return the JSON definition of a record `name` with the fields `columns`.

    Raises SchemaMismatch that lists the columns whose type or name Avro does not allow.
    """
    maker = _Maker()
    if not _NAME.fullmatch(name):
        maker.mismatches.append(f"{name!r} is not a valid name of a record")
    if namespace and not all(_NAME.fullmatch(part) for part in namespace.split(".")):
        maker.mismatches.append(f"{namespace!r} is not a valid namespace")
    advice = ["set schema.name and schema.namespace"] if maker.mismatches else []
    record = maker.record(list(columns), name, "")
    if maker.mismatches:
        remedy = "Cast columns, or write them as text with to_json(…) or string(…)."
        if maker.bad_names:
            advice.append("rename columns with withColumnRenamed, fields of structs with a cast")
        if advice:
            remedy = f"Names have letters, digits and underscores: {', and '.join(advice)}."
        raise SchemaMismatch(
            f"the DataFrame cannot be written as records: {'; '.join(maker.mismatches[:50])}",
            remedy,
        )
    if namespace:
        record = {"type": "record", "name": name, "namespace": namespace} | record
    return json.dumps(record, separators=(",", ":")).encode()


def json_definition(columns: pa.Schema) -> bytes:
    """Return the definition of JSON objects with the fields `columns`, of any names.

    Raises SchemaMismatch that lists the columns whose type JSON lacks.
    """
    maker = _Maker(for_json=True)
    record = maker.record(list(columns), "Value", "")
    if maker.mismatches:
        raise SchemaMismatch(
            f"the columns cannot be read from JSON: {'; '.join(maker.mismatches[:50])}"
        )
    return json.dumps(record, separators=(",", ":")).encode()


class _Maker:
    """Makes definitions of types; collects errors in `mismatches`.

    Objects that are read `for_json` may have fields of any name.
    """

    def __init__(self, *, for_json: bool = False) -> None:
        self.mismatches: list[str] = []
        self.bad_names = False
        """Whether some of them are about names of columns."""
        self._for_json = for_json
        self._names: set[str] = set()

    def _refuse_name(self, what: str) -> None:
        self.mismatches.append(what)
        self.bad_names = True

    def record(self, fields: Sequence[pa.Field], name: str, path: str) -> dict[str, Any]:
        """Return the definition of a record."""
        self._names.add(name)
        made = []
        seen = set()
        for field in fields:
            at = f"{path}.{field.name}" if path else field.name
            if len(field.name) > LONGEST_NAME:
                what = f"whose name has more than {LONGEST_NAME} characters"
                self._refuse_name(f"there is a column {what}, {at[:80]}…")
            elif not self._for_json and not _NAME.fullmatch(field.name):
                self._refuse_name(f"the column {at!r} has a name that Avro does not allow")
            if field.name in seen:
                self._refuse_name(f"there are two columns {at!r}")
            seen.add(field.name)
            item = {"name": field.name, "type": self._field_type(field, f"{name}_{field.name}", at)}
            if field.nullable:
                item["default"] = None
            made.append(item)
        return {"type": "record", "name": name, "fields": made}

    def _field_type(self, field: pa.Field, name: str, path: str) -> Any:
        kind = self._type(field.type, name, path)
        return ["null", kind] if field.nullable and kind != "null" else kind

    def _type(self, kind: pa.DataType, name: str, path: str) -> Any:
        kind = usual_type(kind)
        if pa.types.is_struct(kind):
            return self.record(list(kind), self._unique(name), path)
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._field_type(kind.value_field, name, f"{path}[]")}
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            values = self._field_type(kind.item_field, name, f"{path}{{}}")
            return {"type": "map", "values": values}
        if pa.types.is_decimal128(kind) and kind.scale >= 0:
            size = {"precision": kind.precision, "scale": kind.scale}
            return {"type": "bytes", "logicalType": "decimal", **size}
        if kind in _PLAIN:
            return _PLAIN[kind]
        lacking = "JSON" if self._for_json else "Avro"
        self.mismatches.append(f"the column {path!r} is {kind}, which {lacking} has no type for")
        return "null"

    def _unique(self, name: str) -> str:
        # It repeats the names of all that it is in, and a namespace comes before it.
        name = re.sub(r"[^A-Za-z0-9_]", "_", name)[: LONGEST_NAME // 2]
        number = 2
        found = name
        while found in self._names:
            found = f"{name}_{number}"
            number += 1
        return found
