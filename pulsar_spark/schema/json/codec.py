"""Values of JSON topics ↔ columns. Contract: `codec.py`.

A JSON topic's definition is an Avro record. The first versions of the Java client registered a JSON
Schema document instead, which does not say enough about numbers for columns.

- Fields are found by name, case-sensitively; if a name occurs twice, the last one counts. A missing
  field is null, as in Java and Python: JSON topics ignore defaults. Undefined fields are skipped.
  The value ``null`` is a null value.
- Nothing is rounded: integers may be written as ``1.0`` or ``1e3``, but must be whole and in range;
  decimals must not exceed their scale. Floats and doubles are the nearest ones.
- Values of another kind are taken where nothing is lost: ``"5"`` and ``"true"`` where the schema
  has a number or a boolean, ``5`` and ``true`` where it has text. There, ``""`` is null. But where
  a union has several types, the kind of a value says which it is.
- A map's entries are sorted by key, because an object's fields have no order.
- Where no column has a type, the column has the JSON itself; numbers and the order stay as written.
- Where Java's client says that its definition does not tell which fields can be null, all can, and
  those that are null are left out.
- What numbers and texts mean depends on the client that defined the schema: see `json/types.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro.definition import (
    MAX_DEFINITION,
    Array,
    Logical,
    Node,
    Opaque,
    Primitive,
    Record,
    UnionOf,
    parse_definition,
    with_parts,
)
from pulsar_spark.schema.avro.types import arrow_columns, is_nullable, record_definition
from pulsar_spark.schema.codec import Decoder, Encoder, Losses
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan
from pulsar_spark.schema.json.reading import JsonPlan
from pulsar_spark.schema.json.resolution import losses_of
from pulsar_spark.schema.json.types import Dialect, field_shapes, is_java_map, shape_of
from pulsar_spark.schema.json.value_writing import row_writer
from pulsar_spark.schema.json.writing import text_plan
from pulsar_spark.schema.table.names import VALUE

_REMEDY = "Read the topic with valueFormat=raw."


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return a schema's columns: the record's fields, or `value`."""
    return arrow_columns(parse_json_definition(info), all_nullable=True)


def decoder(
    writer: SchemaInfo,
    reader: SchemaInfo,
    fields: Sequence[str],
    *,
    as_java: bool = False,
    are_declared: bool = False,
) -> Decoder:
    """Return a decoder of `fields` for values written with `writer`.

    With `as_java`, values of another kind are coerced as Java's client does, even if that loses
    something: fractions of integers, and what follows the JSON. `are_declared` is as in a Dialect.
    """
    node = parse_json_definition(reader)
    source = _source(writer, reader, node)
    dialect = replace(Dialect.of(writer), coerces_as_java=as_java, are_declared=are_declared)
    is_whole = not isinstance(node, Record)
    if is_whole:
        shapes = {VALUE: shape_of(node, source, dialect)}
    else:
        shapes = field_shapes(node, source, dialect)
    unknown = [name for name in fields if name not in shapes]
    if unknown:
        raise SchemaMismatch(f"the topic's JSON schema has no field {unknown[0]!r}")
    wanted = {name: shapes[name] for name in fields}
    columns = [pa.field(name, shape.kind) for name, shape in wanted.items()]
    return ColumnDecoder(columns, JsonPlan(wanted, is_whole, ends=not as_java))


def losses(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Losses:
    """Return what is lost if values of `writer` are read into the columns `fields` of `reader`.

    Raises SchemaMismatch that lists the fields whose values do not fit. Those whose text happens to
    fit are read nevertheless.
    """
    node = parse_json_definition(reader)
    return losses_of(_source(writer, reader, node), node, fields)


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of record batches with these columns, for a topic with this schema.

    Raises SchemaMismatch that lists all mismatches. Nullable columns match fields that are not
    nullable; `encode` raises Mismatch if it finds a null there.
    """
    plan = text_plan(parse_json_definition(info), columns, Dialect.of(info))
    return ColumnEncoder(columns, WritingPlan("json", plan, row_writer))


def definition(columns: pa.Schema, name: str, namespace: str = "") -> SchemaInfo:
    """Return the schema to register for such columns; raises SchemaMismatch."""
    return SchemaInfo(pb.Schema.Json, name, record_definition(columns, name, namespace))


def parse_json_definition(info: SchemaInfo, *, opaque: bool = True) -> Node:
    """Parse a JSON topic's definition; raises as `parse_definition`."""
    if info.type != pb.Schema.Json:
        raise SchemaMismatch(
            f"the values were written with a schema of the type {info.type_name}, not JSON",
            _REMEDY,
        )
    if _is_json_schema(info.schema_data):
        raise SchemaMismatch(
            "the topic's schema is a JSON Schema document, as old clients of Pulsar registered "
            "them, not an Avro record",
            f"{_REMEDY} Newer clients register a version with a record.",
        )
    dialect = Dialect.of(info)
    node = parse_definition(info.schema_data, for_json=True, opaque=opaque)
    node = _with_java_classes(node, is_java=dialect.has_java_times)
    return _with_nulls(node) if dialect.leaves_out_nulls else node


def _with_nulls(node: Node) -> Node:
    """Allow null in all fields of records."""
    if isinstance(node, Opaque) or (isinstance(node, Array) and is_java_map(node)):
        return node
    return with_parts(node, _or_null if isinstance(node, Record) else _with_nulls)


def _or_null(node: Node) -> Node:
    if is_nullable(node):
        return _with_nulls(node)
    members = node.members if isinstance(node, UnionOf) else (node,)
    return UnionOf((Primitive("null"), *map(_with_nulls, members)))


_MILLIS = Primitive("long", Logical("timestamp-millis"))
_MICROS = Primitive("long", Logical("timestamp-micros"))
_JAVA_DATES = frozenset(("java.util.Date", "java.sql.Timestamp"))
_JAVA_TIMES = {
    "java.sql.Date": _MILLIS,
    "java.time.OffsetDateTime": _MICROS,
    "java.time.ZonedDateTime": _MICROS,
}


def _with_java_classes(node: Node, *, is_java: bool) -> Node:
    """Replace Java's own classes in a definition by what Jackson writes for them.

    Avro's reflection makes them records without fields, whatever they hold.
    """
    if isinstance(node, Record) and not node.fields:
        if node.name in _JAVA_DATES:
            return _MILLIS
        if is_java and node.name.startswith("java."):
            return _JAVA_TIMES.get(node.name) or Opaque(node, is_text=True)
    if isinstance(node, Opaque):
        return node
    return with_parts(node, lambda part: _with_java_classes(part, is_java=is_java))


def _is_json_schema(definition: bytes) -> bool:
    if len(definition) > MAX_DEFINITION:
        return False
    try:
        tree = json.loads(definition)
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and (
        tree.get("type") == "object" or "$schema" in tree or "properties" in tree
    )


def _source(writer: SchemaInfo, reader: SchemaInfo, node: Node) -> Node:
    """Return the type that values were written with; for a JSON Schema, the reader's type."""
    if writer == reader or (writer.type == pb.Schema.Json and _is_json_schema(writer.schema_data)):
        return node
    return parse_json_definition(writer)
