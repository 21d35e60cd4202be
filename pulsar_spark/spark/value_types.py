"""The Spark type of a read's values, from the schemas of its topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, StructType

from pulsar_spark.errors import OptionError, SchemaMismatch, listed
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.schema.codec import (
    NO_SCHEMA,
    check_types,
    identity,
    is_decoded,
    is_record,
    key_value_parts,
    losses_of,
    record_name,
    typed_columns,
)
from pulsar_spark.schema.table.names import KEY, VALUE
from pulsar_spark.spark.compat import spark_schema, spark_type
from pulsar_spark.spark.lineage import (
    Columns,
    Older,
    Version,
    are_of_one_name,
    common_version,
    version_for,
    versions_of,
)

logger = get_logger(__name__)

_SHOWN = 3
_RAW = "valueFormat=raw reads the values as bytes."
_BINARY = StructType().add(VALUE, BinaryType())


@dataclass(frozen=True, slots=True)
class ValueType:
    """How values are decoded: with the `schema` of a topic, or as raw bytes. Plain data."""

    schema: SchemaInfo | None = None

    @property
    def fields(self) -> StructType:
        """The columns of the value."""
        if self.schema is None:
            return _BINARY
        left_out = typed_columns(self.schema).left_out
        return StructType([each for each in self.all_fields if each.name not in left_out])

    @property
    def all_fields(self) -> StructType:
        """The columns of the value, also those that differ from others only in case."""
        return _BINARY if self.schema is None else spark_schema(typed_columns(self.schema).fields)

    @property
    def key_type(self) -> DataType | None:
        """The type of the topic's keys, None if these are the message keys, in bytes."""
        key = None if self.schema is None else typed_columns(self.schema).key
        return None if key is None else spark_type(key)


def _no_older(topic: str) -> Iterable[SchemaInfo]:
    return ()


def value_type(
    schemas: Mapping[str, SchemaInfo | None],
    *,
    allow_different: bool,
    older: Older = _no_older,
    columns: Columns | None = None,
) -> ValueType:
    """Return the type of the values of topics with these schemas.

    Records that differ in name alone are one schema, and versions of one record are read as one of
    them: if `columns` are given, as one that has those of the query. Raises OptionError for topics
    with other schemas, unless they are allowed: then values are bytes. Raises SchemaMismatch for a
    schema that cannot be converted to columns, and as `older`. Logs a warning if values, or fields
    of them, are not decoded.
    """
    versions = versions_of(schemas)
    if not versions or (len(versions) > 1 and allow_different):
        return ValueType()
    common = _common(versions, older, columns) if len(versions) > 1 else None
    schema = common or versions[0].schema
    return ValueType() if schema.type == BYTES else _decoded(schema, list(schemas))


def _common(
    versions: Sequence[Version], older: Older, columns: Columns | None
) -> SchemaInfo | None:
    try:
        if columns is None:
            return common_version(versions, older)
        return version_for(versions, older, columns)
    except SchemaMismatch as error:
        described = "; ".join(
            f"{each.schema.type_name}: {listed(each.topics, _SHOWN)}" for each in versions
        )
        remedy = "Read them separately, or set allowDifferentTopicSchemas=true to read raw values."
        if are_of_one_name(versions):
            remedy = f".schema(…) with the columns that fit reads them together. {remedy}"
        raise OptionError(
            f"the topics have different schemas ({described}), which cannot be read as one: "
            f"{error.what}",
            remedy,
        ) from None


_ALSO: Mapping[int, frozenset[int]] = {
    pb.Schema.Json: frozenset((BYTES, pb.Schema.String)),
    pb.Schema.String: frozenset((BYTES, pb.Schema.Json)),
    pb.Schema.Avro: frozenset((BYTES,)),
    pb.Schema.ProtobufNative: frozenset((BYTES,)),
}
"""The types of schemas that say nothing against a type that the user gives."""


def written_with(found: SchemaInfo, given: SchemaInfo) -> SchemaInfo:
    """Return the schema of values on a topic with the schema `found`, where the user gives one."""
    return given if found.type in _ALSO[given.type] else found


def check_given(schemas: Mapping[str, SchemaInfo | None], given: SchemaInfo) -> None:
    """Raise OptionError for a topic whose values are of another type than the user gives.

    Logs a warning if fields of the given schema are no columns.
    """
    for topic, found in schemas.items():
        try:
            check_types(written_with(found or NO_SCHEMA, given), given)
        except SchemaMismatch as error:
            raise OptionError(
                f"valueFormat does not fit the topic's schema: {error.what}",
                "valueFormat=auto reads by the topic's schema, raw reads bytes.",
                topic=topic,
            ) from None
    _tell_left_out(given, schemas)


def check_alike(
    schemas: Mapping[str, SchemaInfo | None], wanted: SchemaInfo, names: Collection[str]
) -> None:
    """Raise SchemaMismatch for a topic whose schema does not match the query's columns `names`.

    Values of another record would be read as rows of nulls, because missing fields are null.
    Versions of one record have the same name and fields in common; others the same fields.
    """
    for topic, schema in schemas.items():
        if schema is None or schema == wanted:
            continue
        if wanted.type != pb.Schema.KeyValue or schema.type != wanted.type:
            _check_record(topic, "values", schema, wanted)
            continue
        found, parts = key_value_parts(schema), key_value_parts(wanted)
        _check_record(topic, "values", found.value, parts.value)
        if KEY in names:
            _check_record(topic, "keys", found.key, parts.key)


def _check_record(topic: str, part: str, found: SchemaInfo, wanted: SchemaInfo) -> None:
    if not is_record(found) or not is_record(wanted) or identity(found) == identity(wanted):
        return
    name, wanted_name = record_name(found), record_name(wanted)
    what = f"the topic's {part} are records {name!r}, those of the query {wanted_name!r}"
    if name == wanted_name:
        try:
            fields = set(typed_columns(found).fields.names)
            wanted_fields = set(typed_columns(wanted).fields.names)
        except SchemaMismatch:
            # It cannot be columns, but the query's version can, and its messages may have that
            # version.
            return
        try:
            left_out = losses_of(found, wanted, list(wanted_fields)).left_out
        except SchemaMismatch:
            left_out = tuple(fields - wanted_fields)
        if not fields or not wanted_fields or not fields.issubset(left_out):
            return
        what = f"the topic's {part} are records {name!r} that have no field of those of the query"
    raise SchemaMismatch(
        what,
        "Read the topics separately, or set allowDifferentTopicSchemas=true: then fields that "
        "records do not have are null.",
        topic=topic,
    )


def _tell_left_out(schema: SchemaInfo, topics: Collection[str]) -> None:
    left_out = typed_columns(schema).left_out
    if left_out:
        logger.warning(
            "Fields of the schema of %s are no columns: %s.",
            listed(topics, _SHOWN),
            "; ".join(f"{name!r}, because {why}" for name, why in left_out.items()),
        )


def _decoded(schema: SchemaInfo, topics: list[str]) -> ValueType:
    try:
        if is_decoded(schema):
            _tell_left_out(schema, topics)
            return ValueType(schema)
    except SchemaMismatch as error:
        named = listed(topics, _SHOWN)
        raise SchemaMismatch(error.what, error.remedy or _RAW, topic=named) from None
    logger.warning(
        "The schema of %s is %s, which this version cannot decode: the column value has the "
        "bytes. Set valueFormat=raw to confirm that.",
        listed(topics, _SHOWN),
        schema.type_name,
    )
    return ValueType()
