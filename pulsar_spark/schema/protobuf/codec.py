"""The codec of PROTOBUF_NATIVE and PROTOBUF schemas.

Presence: a field without presence (proto3's plain scalars, lists, maps) is never null. A field with
presence (proto2's, proto3's `optional`, members of oneofs, messages) is null if it is absent, even
if it has a proto2 default or is `required`. Fields are identified by number, so values of older and
newer schemas are read with the query's. Extensions and unknown fields are ignored.

PROTOBUF schemas do not tell the numbers of nested fields (binary: the message's bytes) and of enum
names (int). They tell presence of messages, and of scalars that have a default of their own; other
scalars are 0 or empty if absent.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Decoder, Encoder, Losses
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.fitting import plan_for_columns
from pulsar_spark.schema.protobuf.reading import ProtobufPlan
from pulsar_spark.schema.protobuf.resolution import losses_of, resolved
from pulsar_spark.schema.protobuf.types import arrow_columns, column_type
from pulsar_spark.schema.protobuf.value_writing import message_writer


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return a schema's columns. Raises SchemaMismatch as `parse`."""
    return arrow_columns(parse(info))


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of values of `writer` that builds these columns of `reader`.

    Raises SchemaMismatch for invalid definitions, unknown columns, and field numbers with different
    types in the two.
    """
    wanted = parse(reader)
    by_name = {each.name: each for each in wanted.fields}
    unknown = [name for name in fields if name not in by_name]
    if unknown:
        raise SchemaMismatch(
            f"the protobuf message {wanted.name} has no field {', '.join(unknown)}",
            f"It has {', '.join(by_name)}.",
        )
    chosen = [by_name[name] for name in fields]
    if writer != reader:
        chosen = resolved(parse(writer), chosen)
    columns = [pa.field(each.name, column_type(each)) for each in chosen]
    return ColumnDecoder(columns, ProtobufPlan(wanted, chosen))


def losses(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Losses:
    """Return what is lost if values of `writer` are read into the columns `fields` of `reader`.

    Raises SchemaMismatch that lists the fields whose number has another type in the two.
    """
    chosen = [each for each in parse(reader).fields if each.name in set(fields)]
    return losses_of(parse(writer), chosen)


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of record batches with these columns.

    Columns for fields with presence, lists and maps may be left out; those for required fields and
    for fields without presence may not. A null is written as absent if the field has presence;
    otherwise it is refused (Mismatch), because it would be read as 0. Raises SchemaMismatch that
    lists all mismatches.
    """
    plan = plan_for_columns(parse(info), columns)
    return ColumnEncoder(columns, WritingPlan("protobuf", plan, message_writer))
