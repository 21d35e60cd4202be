"""The codec of PROTOBUF_NATIVE and PROTOBUF schemas.

Presence: a field without presence (proto3's plain scalars, lists, maps) is never null; one with
presence (proto2's, proto3's `optional`, members of oneofs, messages) is null where it is absent,
also if proto2 gives it a default, and a `required` one likewise. Fields are known by their
numbers, so that a value of an older or newer schema is read with the query's. Extensions and
unknown fields are passed over.

PROTOBUF schemas say neither what is in messages within (binary: their bytes), nor what the numbers
of enums are called (int), nor whether a field has presence (never null: absent is the default; but
for messages).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Decoder, Encoder
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.reading import ProtobufDecoder
from pulsar_spark.schema.protobuf.resolution import resolved
from pulsar_spark.schema.protobuf.types import arrow_columns
from pulsar_spark.schema.protobuf.writing import ProtobufEncoder


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return the columns of a schema's values. Raises SchemaMismatch, as `parse` does."""
    return arrow_columns(parse(info))


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of values of `writer`, which builds these columns of `reader`.

    Raises SchemaMismatch for definitions that are none, for columns that are not there, and for
    numbers that are of another type in the two.
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
    return ProtobufDecoder(wanted, chosen)


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of record batches with these columns.

    A column for a field with presence, a list or a map can be left out; one for a required field
    or one without presence cannot. A null is written as absent where the schema has presence, and
    is refused (Misfit) elsewhere, as it would be read as a 0. Raises SchemaMismatch that names
    all that does not fit.
    """
    return ProtobufEncoder(parse(info), columns)
