"""Plans for JSON values: how the kernel and the reference write them from columns.

Columns match fields as on an AVRO topic with the same definition; fields without a column are left
out, if the schema allows it. A plan is a tuple of its name and its parts, as the kernel takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quoted

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.definition import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    RecordField,
    UnionOf,
    is_null,
)
from pulsar_spark.schema.avro.fitting import by_likeness, plan_for_columns
from pulsar_spark.schema.avro.types import is_nullable, sole_type
from pulsar_spark.schema.json.types import Dialect, JsonRule, Shape, is_java_map, shape_of
from pulsar_spark.schema.json.value_writing import Plan


def text_plan(node: Node, columns: pa.Schema, dialect: Dialect, *, of_python: bool = False) -> Plan:
    """Return how to write rows of columns as values of a type.

    Doubles `of_python` have a point, as those that its own module writes. Raises SchemaMismatch
    that lists all mismatches.
    """
    plan_for_columns(node, columns)
    plans = _Plans(dialect, of_python=of_python)
    if isinstance(node, Record):
        return plans.record({field.name: field.type for field in node.fields}, columns, "")
    (column,) = columns
    return "alone", plans.of(node, column.type, column.name), column.name


class _Plans:
    """Makes plans for columns, which match."""

    def __init__(self, dialect: Dialect, *, of_python: bool) -> None:
        self._dialect = dialect
        self._has_points = of_python and not dialect.is_python

    def of(self, node: Node, kind: pa.DataType, path: str) -> Plan:
        """Return how to write a column as a type."""
        if is_null(node) or pa.types.is_null(kind):
            found: Plan = ("null",)
        else:
            sole = sole_type(node) if isinstance(node, UnionOf) else None
            found = self._present(node if sole is None else sole, kind, path)
        return ("nullable", found) if is_nullable(node) else found

    def record(self, types: Mapping[str, Node], columns: Sequence[pa.Field], path: str) -> Plan:
        """Return how to write structs of columns as objects."""
        prefix = f"{path}." if path else ""
        fields = [
            (
                column.name,
                f"{quoted(column.name)}:".encode(),
                self.of(types[column.name], column.type, prefix + column.name),
            )
            for column in columns
        ]
        return "record", fields, self._dialect.leaves_out_nulls

    def _present(self, node: Node, kind: pa.DataType, path: str) -> Plan:
        match node:
            case Record():
                types = {field.name: field.type for field in node.fields}
                return self.record(types, list(kind), path)
            case UnionOf():
                return self._union(node, kind, path)
            case Array(Record() as pair) if is_java_map(node):
                columns = [kind.value_type.field(field.name) for field in pair.fields]
                places = [kind.value_type.get_field_index(field.name) for field in pair.fields]
                sides = [
                    self.of(field.type, column.type, f"{path}[].{field.name}")
                    for field, column in zip(pair.fields, columns, strict=True)
                ]
                return "pairs", *zip(places, sides, strict=True)
            case Array():
                return "array", self.of(node.items, kind.value_type, f"{path}[]")
            case Map():
                return "map", self.of(node.values, kind.item_type, f"{path}{{}}")
        assert isinstance(node, Primitive | Fixed | Enum | Opaque)
        return self._leaf(node, kind, path)

    def _union(self, node: UnionOf, kind: pa.DataType, path: str) -> Plan:
        names = [f"member{i}" for i in range(len(node.present))]
        if not pa.types.is_struct(kind) or [field.name for field in kind] != names:
            # The column has a single member's type.
            return self._present(_fitting(node, kind), kind, path)
        members = [
            self._present(member, field.type, f"{path}.{field.name}")
            for member, field in zip(node.present, kind, strict=True)
        ]
        return "union", members, node.nullable

    def _leaf(self, node: Primitive | Fixed | Enum | Opaque, kind: pa.DataType, path: str) -> Plan:
        shape = shape_of(node, node, self._dialect)
        if isinstance(node, Enum):
            # Python's client writes the values of an enum, of which the definition has only the
            # names.
            names = None if self._dialect.is_python else sorted(map(str.encode, node.symbols))
            return "enum", names
        if shape.rule is JsonRule.RECORD:
            # Only a duration has no parts in a definition but several in a column.
            if not pa.types.is_struct(kind):
                raise SchemaMismatch(
                    f"{path} is {kind}, and a duration is an object in JSON",
                    "Give a struct of months, days and milliseconds.",
                )
            long = UnionOf((Primitive("null"), Primitive("long")))
            return self.record(dict.fromkeys(shape.names, long), list(kind), path)
        if shape.rule is JsonRule.TEXT:
            return _text(kind, is_uuid=getattr(node, "logical", None) is not None)
        return self._number(shape, kind, node.size if isinstance(node, Fixed) else None)

    def _number(self, shape: Shape, kind: pa.DataType, size: int | None) -> Plan:
        """Return how to write what is no text, or text that stands for something else."""
        found: Plan
        match shape.rule:
            case JsonRule.FLOAT if self._has_points and shape.kind == pa.float64():
                found = ("python float",)
            case JsonRule.FLOAT:
                source = kind.bit_width if pa.types.is_floating(kind) else 0
                found = "float", shape.kind.bit_width, source, not self._dialect.is_python
            case JsonRule.DECIMAL:
                finer = kind.scale - shape.kind.scale
                digits = shape.kind.precision, shape.kind.scale
                found = "decimal", max(-finer, 0), max(finer, 0), *digits
            case JsonRule.BASE64 | JsonRule.BYTES:
                found = "bytes", shape.rule is JsonRule.BASE64, size
            case JsonRule.DATE:
                found = ("iso date",) if shape.java else ("integer",)
            case JsonRule.TIME if shape.java:
                found = ("iso time",)
            case JsonRule.MOMENT if shape.java:
                found = "iso moment", b"" if shape.kind.tz is None else b"Z"
            case JsonRule.MOMENT | JsonRule.TIME:
                found = "time", shape.divided, shape.times, shape.rule is JsonRule.TIME
            case rule:
                found = (_PLAIN[rule],)
        return found


_PLAIN = {JsonRule.BOOLEAN: "boolean", JsonRule.INTEGER: "integer", JsonRule.ANY: "any"}


def _text(kind: pa.DataType, *, is_uuid: bool) -> Plan:
    if pa.types.is_binary(kind):
        return ("uuid bytes",)
    return ("uuid",) if is_uuid else ("text",)


def _fitting(union: UnionOf, kind: pa.DataType) -> Node:
    """Return the first member of a union that matches a column, as on AVRO topics."""
    *others, last = [union.members[place] for place in by_likeness(union, kind)]
    for member in others:
        record = Record("r", (RecordField("f", member),))
        try:
            plan_for_columns(record, pa.schema([("f", kind)]))
        except SchemaMismatch:
            continue
        return member
    return last
