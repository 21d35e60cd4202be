"""The schema of a write: the topic's, or a new one made from the columns.

The driver decides before anything is sent; if rows name their topics, the first task that meets a
topic decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.codec import (
    is_decoded,
    is_record,
    key_value_parts,
    primitive_for,
    record_definition,
    typed_columns,
    value_schema,
)
from pulsar_spark.schema.table.names import KEY
from pulsar_spark.spark.compat import arrow_schema
from pulsar_spark.spark.writing.columns import (
    WriteColumns,
    check_type,
    leaves,
    reserved_name_near,
)
from pulsar_spark.spark.writing.row_encoder import RowEncoder

logger = get_logger(__name__)

_RAW = "Write bytes as they are with valueFormat=raw."
_FORMATS = {"avro": pb.Schema.Avro, "json": pb.Schema.Json, "string": pb.Schema.String}
_EVOLVING = {pb.Schema.Avro: "avro", pb.Schema.Json: "json"}
# As Spark's to_avro calls it. Topics that one query writes have one schema, name and all.
_RECORD_NAME = "topLevelRecord"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Target:
    """How rows for one topic are written; plain data.

    Producers register `schema`, None for raw bytes. `unwraps`: the value's only column is a struct
    with the record's fields. `current` is the version of the topic's schema that this was decided
    by, None without one.
    """

    schema: SchemaInfo | None = None
    unwraps: bool = False
    current: bytes | None = field(default=None, compare=False)

    def encoder(self, columns: WriteColumns) -> RowEncoder:
        """Return an encoder; raises SchemaMismatch that lists every mismatched column.

        It can be one that was returned before.
        """
        key = self.schema, self.unwraps, columns.digest
        found = _encoders.get(key)
        if found is None:
            found = RowEncoder(columns, self.schema, unwraps=self.unwraps)
            _encoders.put(key, found, 0 if self.schema is None else self.schema.size)
        return found


# What a process makes of a schema serves the next topics that have it, and its next tasks.
_MOST = 1024
_MOST_BYTES = 4 * 1024 * 1024
_encoders = BoundedCache[tuple[SchemaInfo | None, bool, bytes], RowEncoder](_MOST, _MOST_BYTES)


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    """The schema options; names are None if not set."""

    value_format: str = "auto"
    name: str | None = None
    namespace: str | None = None


_targets = BoundedCache[tuple[SchemaInfo | None, bytes, SchemaChoice], Target](_MOST, _MOST_BYTES)


def target_for(
    topic: str, current: SchemaInfo | None, columns: WriteColumns, choice: SchemaChoice
) -> Target:
    """Return how rows with these columns are written; `current` is the topic's schema.

    Raises SchemaMismatch, and InvalidRow for an invalid key type.
    """
    key = current, columns.digest, choice
    target = _targets.get(key)
    if target is None:
        try:
            target = _target(current, columns, choice)
        except PulsarError as error:
            raise error.with_context(topic=topic) from None
        _targets.put(key, target, 0 if target.schema is None else target.schema.size)
    if current is not None and target.schema == current:
        # It was another topic's.
        target = replace(target, schema=current)
    found_as = None if current is None else current.found_as
    return target if found_as is None else replace(target, current=found_as[1])


def _target(current: SchemaInfo | None, columns: WriteColumns, choice: SchemaChoice) -> Target:
    if current is not None and current.type == BYTES:
        current = None
    if choice.value_format == "raw":
        target = Target()
    elif current is None:
        target = _made(columns, choice)
    else:
        target = _adopted(current, columns, choice)
    if not (target.schema and target.schema.type == pb.Schema.KeyValue) and columns.key:
        check_type(KEY, columns.key)
    try:
        # Creating the encoder finds all mismatches.
        target.encoder(columns)
    except SchemaMismatch as error:
        format_name = None if current is None else _EVOLVING.get(value_schema(current).type)
        if choice.value_format == "auto" and format_name and _brings_new(columns, target):
            remedy = f"{error.remedy} valueFormat={format_name} adds columns that it does not have."
            raise SchemaMismatch(error.what, remedy) from None
        raise
    return target


def _brings_new(columns: WriteColumns, target: Target) -> bool:
    """Whether a column is none of the fields of a topic's record."""
    schema = None if target.schema is None else value_schema(target.schema)
    if schema is None or not is_record(schema):
        return False
    known = {name.lower() for name in typed_columns(schema).fields.names}
    given = _record(columns, unwraps=target.unwraps).names
    return not known.issuperset(name.lower() for name in given)


# --- a topic without a schema -------------------------------------------------------------


def _made(columns: WriteColumns, choice: SchemaChoice) -> Target:
    fields = columns.fields
    _check_typed(fields)
    if choice.value_format in ("auto", "string") and len(fields) == 1:
        primitive = primitive_for(arrow_schema(fields).field(0).type)
        if primitive is not None:
            return Target(None if primitive.type == BYTES else primitive)
    if {"key", "value"} <= set(fields.names) and columns.key is None:
        _warn_of_field("key", KEY)
    for name in fields.names:
        if (meant := reserved_name_near(name)) is not None:
            _warn_of_field(name, meant)
    unwraps = _is_one_struct(fields)
    made = record_definition(
        _FORMATS.get(choice.value_format, pb.Schema.Avro),
        arrow_schema(_nullable(_record(columns, unwraps=unwraps))),
        choice.name or _RECORD_NAME,
        choice.namespace,
    )
    return Target(made, unwraps)


@lru_cache
def _warn_of_field(name: str, meant: str) -> None:
    """Warn once in a process of a column that was probably meant for another part of messages."""
    logger.warning(
        "The column %s becomes a field of the topic's new schema: what a message has besides its "
        "value comes from columns such as %s.",
        name,
        meant,
    )


def _record(columns: WriteColumns, *, unwraps: bool) -> StructType:
    fields = columns.fields
    kind = fields.fields[0].dataType
    return kind if unwraps and isinstance(kind, StructType) else fields


def _plain_name(text: str) -> str:
    name = _NOT_IN_NAMES.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name


# --- a topic with a schema ----------------------------------------------------------------


def _adopted(current: SchemaInfo, columns: WriteColumns, choice: SchemaChoice) -> Target:
    if not is_decoded(current):
        raise SchemaMismatch(
            f"the topic's schema is {current.type_name}, which this version cannot encode", _RAW
        )
    if current.type == pb.Schema.KeyValue:
        parts = key_value_parts(current)
        target = _adopted(parts.value, columns, choice)
        if target.schema is None or target.schema == parts.value:
            return replace(target, schema=current)
        return replace(
            target, schema=join_key_value(parts.key, target.schema, separated=parts.separated)
        )
    wanted = _FORMATS.get(choice.value_format, current.type)
    if wanted != current.type:
        raise SchemaMismatch(
            f"the topic's schema is {current.type_name}, but valueFormat={choice.value_format} "
            "was asked for",
            f"Remove valueFormat to write with the topic's schema. {_RAW}",
        )
    unwraps = (
        is_record(current)
        and _is_one_struct(columns.fields)
        and columns.fields.names[0].lower()
        not in [name.lower() for name in typed_columns(current).fields.names]
    )
    if choice.value_format in ("avro", "json"):
        current = _evolved(current, _record(columns, unwraps=unwraps))
    return Target(current, unwraps)


def _evolved(current: SchemaInfo, fields: StructType) -> SchemaInfo:
    """Return a topic's schema, with its missing columns appended to its fields.

    Existing fields stay unchanged: only then is the new version compatible with the old one.
    """
    columns = typed_columns(current)
    known = {name.lower() for name in (*columns.fields.names, *columns.left_out)}
    added = [field for field in fields if field.name.lower() not in known]
    if not added or not is_record(current):
        return current
    _check_typed(added)
    definition: dict[str, Any] = json.loads(current.schema_data)
    record = definition
    # A type may stand in another one's place: {"type": {"type": "record", …}}.
    while not isinstance(record["type"], str):
        record = record["type"]
    record["fields"] += _made_fields(current.type, added, record)
    # The layout shows which client's JSON it is: the Python client indents it.
    indented = current.schema_data.startswith(b"{\n ")
    text = json.dumps(definition, **({"indent": 1} if indented else {"separators": (",", ":")}))
    return replace(current, schema_data=text.encode())


def _made_fields(
    kind: int, added: Sequence[StructField], definition: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Define fields, with type names that `definition` does not use yet."""
    # A topic's record may have a name that is invalid for the names made here.
    name = _plain_name(definition["name"].rpartition(".")[2])
    taken, nullable = _type_names(definition["fields"]), _nullable(added)
    while True:
        made = record_definition(kind, arrow_schema(nullable), name, None)
        fields: list[dict[str, Any]] = json.loads(made.schema_data)["fields"]
        if taken.isdisjoint(_type_names(fields)):
            return fields
        name += "_"


def _type_names(tree: Any) -> set[str]:
    """Return the names, without namespaces, of the types that a definition defines."""
    if isinstance(tree, list):
        return set().union(*map(_type_names, tree))
    if not isinstance(tree, dict):
        return set()
    is_named = tree.get("type") in ("record", "error", "enum", "fixed")
    own = {tree["name"].rpartition(".")[2]} if is_named else set()
    return own.union(*(_type_names(tree.get(key)) for key in ("type", "fields", "items", "values")))


def _check_typed(fields: Iterable[StructField]) -> None:
    """Raise SchemaMismatch if a new schema would have a field that takes nothing but null."""
    parts = (part for field in fields for part in leaves(field.name, field.dataType))
    found = [place for place, kind in parts if isinstance(kind, NullType)]
    if found:
        raise SchemaMismatch(
            "void is no type for a new schema, where it would only ever take nulls: "
            f"{', '.join(found)}",
            "Give each a type: CAST(NULL AS STRING), CAST(array() AS ARRAY<STRING>).",
        )


def _nullable(fields: Iterable[StructField]) -> StructType:
    """Return the columns as nullable fields, so that later versions can add and remove them.

    Fields of structs too: that Spark sees no nulls there today is chance.
    """
    return StructType(
        [StructField(field.name, _nullable_parts(field.dataType)) for field in fields]
    )


def _nullable_parts(kind: DataType) -> DataType:
    """Return a type in which all fields of structs are nullable."""
    if isinstance(kind, StructType):
        return _nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable_parts(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable_parts(kind.valueType), kind.valueContainsNull)
    return kind


def _is_one_struct(fields: StructType) -> bool:
    return len(fields) == 1 and isinstance(fields.fields[0].dataType, StructType)
