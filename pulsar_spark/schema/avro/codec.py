"""The codec of AVRO topics: values ↔ columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.fitting import plan_for_columns
from pulsar_spark.schema.avro.reading import AvroPlan
from pulsar_spark.schema.avro.resolution import losses_of, resolve_columns
from pulsar_spark.schema.avro.types import arrow_columns, record_definition
from pulsar_spark.schema.avro.value_writing import value_writer
from pulsar_spark.schema.codec import Decoder, Encoder, Losses
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return a schema's columns: a record's fields, otherwise one, `value`.

    Raises SchemaMismatch that names the path of a type that Spark lacks.
    """
    return arrow_columns(parse_definition(info.schema_data))


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of values written with `writer` to the columns `fields` of `reader`.

    Raises SchemaMismatch if values of one cannot be read as the other.
    """
    written, wanted = parse_definition(writer.schema_data), parse_definition(reader.schema_data)
    columns = arrow_columns(wanted)
    chosen = pa.schema([columns.field(name) for name in fields])
    return ColumnDecoder(list(chosen), AvroPlan(resolve_columns(written, wanted, chosen)))


def losses(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Losses:
    """Return what is lost if values of `writer` are read into the columns `fields` of `reader`.

    Raises SchemaMismatch that lists the fields of which no value can be read.
    """
    written, wanted = parse_definition(writer.schema_data), parse_definition(reader.schema_data)
    columns = arrow_columns(wanted)
    chosen = pa.schema([columns.field(name) for name in fields])
    try:
        return losses_of(resolve_columns(written, wanted, chosen))
    except SchemaMismatch as error:
        problems: list[str] = []
        for column in chosen:
            try:
                losses_of(resolve_columns(written, wanted, pa.schema([column])))
            except SchemaMismatch as own:
                problems.append(own.what)
        raise SchemaMismatch("; ".join(problems) or error.what, error.remedy) from None


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of record batches with these columns, for a topic with this schema.

    Raises SchemaMismatch that lists all mismatches. Nullable columns match fields that are not
    nullable; `encode` raises Mismatch if it finds a null there.
    """
    plan = plan_for_columns(parse_definition(info.schema_data), columns)
    return ColumnEncoder(columns, WritingPlan("avro", plan, value_writer))


def definition(columns: pa.Schema, name: str, namespace: str = "") -> SchemaInfo:
    """Return the schema to register for such columns; raises SchemaMismatch."""
    return SchemaInfo(pb.Schema.Avro, name, record_definition(columns, name, namespace))
