"""The columns of a read: their names, Spark types and order, and projections onto them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.declared import declared_json
from pulsar_spark.schema.table import metadata_columns
from pulsar_spark.schema.table.metadata_columns import FIXED_NAMES, MetadataColumn
from pulsar_spark.schema.table.names import KEY, TOPIC, VALUE
from pulsar_spark.schema.table.record_batches import CORRUPT, PERMISSIVE
from pulsar_spark.spark.compat import arrow_schema, spark_type
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.value_types import ValueType, described, versions_of


@dataclass(frozen=True, slots=True)
class Column:
    """A column of message metadata; `optional` ones can be null.

    `help` is its text in docs/columns.md.
    """

    name: str
    data_type: DataType
    optional: bool
    help: str = ""


def _spark_columns(columns: Iterable[MetadataColumn]) -> tuple[Column, ...]:
    found = ((column, spark_type(column.type)) for column in columns)
    return tuple(Column(column.name, kind, column.optional, column.help) for column, kind in found)


METADATA_COLUMNS = _spark_columns(metadata_columns.METADATA_COLUMNS)
"""The columns that every read has after those of the value, in this order."""

POSITION_COLUMNS = _spark_columns(metadata_columns.POSITION_COLUMNS)
"""The columns that includeMetadata adds after them."""

_TIMESTAMP = re.compile(r"\btimestamp\b(?!:)")


def read_schema(
    kind: ValueType, *, include_metadata: bool, corrupt_column: str | None = None
) -> StructType:
    """Return a read's schema, with `corrupt_column` last if it is given.

    Raises OptionError if `corrupt_column` has the name of another column.
    """
    columns = METADATA_COLUMNS + (POSITION_COLUMNS if include_metadata else ())
    # All columns of a value are null in a tombstone.
    fields = [StructField(field.name, field.dataType) for field in kind.fields]
    for column in columns:
        key = kind.key_type if column.name == KEY else None
        fields.append(StructField(column.name, column.data_type if key is None else key))
    # Bytes are never corrupt, but a query's columns do not depend on whether topics have a schema.
    if corrupt_column is not None:
        fields.append(StructField(corrupt_column, BinaryType()))
        _check_corrupt_column(corrupt_column, {field.name.lower() for field in fields[:-1]})
    return StructType(fields)


def given_type(options: ReadOptions) -> ValueType | None:
    """Return the type of values whose format the options give, None if the topics' schemas decide.

    Raises OptionError for JSON without the query's columns, or with one that JSON cannot have.
    """
    if options.value_format == "json":
        if options.query is None:
            raise OptionError(
                "valueFormat=json needs the columns of the values",
                "Give them with .schema(…), such as .schema('id long, name string'). If the topic "
                "has a schema, valueFormat=auto reads by it.",
            )
        is_filled = options.mode == PERMISSIVE
        return _json_type(options.query, options.corrupt_column if is_filled else None)
    given = options.raw or options.value_schema is not None
    return ValueType(options.value_schema) if given else None


def _json_type(query: StructType, corrupt_column: str | None) -> ValueType:
    """Return the type of JSON objects whose fields are the value columns of a query."""
    _check_request(query)
    others = FIXED_NAMES | ({corrupt_column.lower()} if corrupt_column is not None else set())
    fields = [field for field in query if field.name.lower() not in others]
    return ValueType(declared_json(arrow_schema(_json_fields(fields, ""))))


_FLAT_IN_JSON = (
    *(BooleanType, NumericType, StringType, BinaryType),
    *(DateType, TimestampType, TimestampNTZType),
)


def _json_fields(fields: Iterable[StructField], path: str) -> StructType:
    """Return fields as they are read from JSON, which can leave out any part of a value."""
    found = []
    for each in fields:
        if not each.name:
            # In errors of values, a path without a name means the value itself.
            where = f"'s column {path[:-1]!r} has a field" if path else " has a column"
            raise OptionError(
                f"the schema{where} without a name, which is not read from JSON",
                "Leave it out, or read the values with valueFormat=string and use from_json.",
            )
        found.append(StructField(each.name, _read_from_json(each.dataType, path + each.name)))
    return StructType(found)


def _read_from_json(kind: DataType, path: str) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_read_from_json(kind.elementType, f"{path}[]"))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return MapType(kind.keyType, _read_from_json(kind.valueType, f"{path}{{}}"))
    if isinstance(kind, StructType):
        return _json_fields(kind, f"{path}.")
    if not isinstance(kind, _FLAT_IN_JSON):
        raise OptionError(
            f"the schema's column {path!r} is {kind.simpleString()}, which is not read from JSON",
            "Declare it string, and convert it in the query.",
        )
    return kind


def project(
    schema: StructType, kind: ValueType | None, corrupt_column: str, mode: str
) -> tuple[str, ...]:
    """Return the column names, as above, that the user's `schema` requests.

    Without `kind` the fields of values are only known with the topics, so a name that may be one is
    returned as it is. It may request the columns of includeMetadata whether that is set or not, and
    `corrupt_column` as string or binary; in a `mode` that never fills it, a field of the values
    with that name takes precedence. As in Spark, case does not matter, except between two fields.
    Raises OptionError that names the column if its name, type or nullability does not match.
    """
    values = () if kind is None else kind.all_fields
    # All columns of a value are null in a tombstone.
    fields = [Column(field.name, field.dataType, True) for field in values]
    known: dict[str, Column] = {}
    for column in (*fields, *METADATA_COLUMNS, *POSITION_COLUMNS):
        known.setdefault(column.name.lower(), column)
    known |= {column.name: column for column in fields}
    key = None if kind is None else kind.key_type
    if key is not None:
        known[KEY.lower()] = Column(KEY, key, True)
    corrupt = corrupt_column.lower()
    _check_corrupt_column(corrupt_column, known if mode == PERMISSIVE else FIXED_NAMES)
    takes_bytes = corrupt not in known and (kind is not None or mode == PERMISSIVE)
    _check_request(schema)
    names: list[str] = []
    for field in schema.fields:
        lower = field.name.lower()
        if lower == corrupt and takes_bytes:
            if not isinstance(field.dataType, StringType | BinaryType):
                raise _unfit(field, "string or binary")
            names.append(CORRUPT)
        elif kind is None and (lower not in known or lower == KEY.lower()):
            names.append(KEY if lower in known else field.name)
        else:
            names.append(_known_column(field, known).name)
    return tuple(names)


def check_columns(
    schema: StructType,
    kind: ValueType,
    options: ReadOptions,
    topics: Mapping[str, SchemaInfo | None],
) -> None:
    """Raise OptionError if a query's `schema` does not match the values of its topics.

    As `project`; where it was inferred, the error names the schemas of `topics`.
    """
    try:
        project(schema, kind, options.corrupt_column, options.mode)
    except OptionError as error:
        if not options.inferred or not topics:
            raise
        raise OptionError(
            "the query's columns were inferred before its topics had the schemas of now "
            f"({described(versions_of(topics))}), and do not fit them",
            "Start the query again: its columns are inferred anew. Or choose columns with "
            ".schema(…), or read bytes with valueFormat=raw.",
        ) from error


def names_alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that are one where case does not matter, as in Spark by default."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            return other, name
        seen[name.lower()] = name
    return None


def _check_request(schema: StructType) -> None:
    """Raise OptionError for a schema without columns, or with one of them twice."""
    if not schema.fields:
        # Spark could not even count the rows of such batches.
        raise OptionError("the schema has no columns", f"Name at least one, such as {TOPIC}.")
    if alike := names_alike(schema.names):
        raise OptionError(
            f"the schema has the column {alike[1]!r} twice: case does not matter, whatever "
            "spark.sql.caseSensitive says",
            "Name each column once.",
        )


def _check_corrupt_column(name: str, taken: Container[str]) -> None:
    if name.lower() in taken:
        raise OptionError(
            f"columnNameOfCorruptRecord is {name!r}, but there is a column of that name already",
            "Choose another name.",
        )


def _known_column(field: StructField, known: Mapping[str, Column]) -> Column:
    column = known.get(field.name, known.get(field.name.lower()))
    if column is None:
        raise OptionError(
            f"the schema has a column {field.name!r}, but this read has no such column",
            _offer(field.name, list(dict.fromkeys(found.name for found in known.values()))),
        )
    metadata = column in METADATA_COLUMNS or column in POSITION_COLUMNS
    if not _fits(field.dataType, column.data_type, exactly=not metadata):
        raise _unfit(field, column.data_type.simpleString())
    if column.optional and not field.nullable:
        raise OptionError(
            f"the schema declares the column {field.name!r} as NOT NULL, but it can be null",
            "Declare it nullable.",
        )
    return column


def _fits(given: DataType, offered: DataType, *, exactly: bool) -> bool:
    """Whether a type is the offered one; with `exactly`, nullable parts must be nullable here."""
    if isinstance(given, ArrayType) and isinstance(offered, ArrayType):
        nullable = given.containsNull or not (exactly and offered.containsNull)
        return nullable and _fits(given.elementType, offered.elementType, exactly=exactly)
    if isinstance(given, MapType) and isinstance(offered, MapType):
        nullable = given.valueContainsNull or not (exactly and offered.valueContainsNull)
        return (
            nullable
            and _fits(given.keyType, offered.keyType, exactly=exactly)
            and _fits(given.valueType, offered.valueType, exactly=exactly)
        )
    if isinstance(given, StructType) and isinstance(offered, StructType):
        return len(given) == len(offered) and all(
            left.name.lower() == right.name.lower()
            and (left.nullable or not right.nullable)
            and _fits(left.dataType, right.dataType, exactly=exactly)
            for left, right in zip(given, offered, strict=True)
        )
    return given == offered


def _offer(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"It offers: {', '.join(known)}."


def _unfit(field: StructField, expected: str) -> OptionError:
    given = field.dataType.simpleString()
    if given == expected:
        return OptionError(
            f"the schema's column {field.name!r} is {given} with parts that are NOT NULL, but they "
            "can be null",
            "Declare them nullable, and arrays and maps with containsNull.",
        )
    # With spark.sql.timestampType=TIMESTAMP_NTZ the word timestamp is timestamp_ntz.
    remedy = f"Declare it {_TIMESTAMP.sub('timestamp_ltz', expected)}"
    if field.name.lower() == VALUE and isinstance(field.dataType, BinaryType):
        remedy += ", or set valueFormat=raw to get the bytes"
    elif field.name.lower() == VALUE and isinstance(field.dataType, StringType):
        remedy += ", or read text with valueFormat=string" if expected == "binary" else ""
    return OptionError(
        f"your schema (or CREATE TABLE) says that {field.name!r} is {given}, but this read "
        f"returns {expected}",
        f"{remedy}.",
    )
