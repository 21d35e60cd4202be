"""The columns of a read: their names, Spark types and order, and projections onto them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import OptionError
from pulsar_spark.schema.column_names import (
    BATCH_INDEX,
    ENTRY_ID,
    EVENT_TIME,
    INDEX,
    KEY,
    LEDGER_ID,
    MESSAGE_ID,
    ORDERING_KEY,
    PARTITION,
    PRODUCER_NAME,
    PROPERTIES,
    PUBLISH_TIME,
    REDELIVERY_COUNT,
    REPLICATED_FROM,
    SCHEMA_VERSION,
    SEQUENCE_ID,
    SIZE,
    TOPIC,
    VALUE,
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that does not hold the value; `optional` ones can be null."""

    name: str
    data_type: DataType
    optional: bool


METADATA_COLUMNS: tuple[Column, ...] = (
    Column(KEY, BinaryType(), True),
    Column(TOPIC, StringType(), False),
    Column(MESSAGE_ID, BinaryType(), False),
    Column(PUBLISH_TIME, TimestampType(), False),
    Column(EVENT_TIME, TimestampType(), True),
    Column(PROPERTIES, MapType(StringType(), StringType()), False),
)
"""The columns that every read has behind those of the value, in this order."""

POSITION_COLUMNS: tuple[Column, ...] = (
    Column(PARTITION, IntegerType(), False),
    Column(LEDGER_ID, LongType(), False),
    Column(ENTRY_ID, LongType(), False),
    Column(BATCH_INDEX, IntegerType(), False),
    Column(PRODUCER_NAME, StringType(), False),
    Column(SEQUENCE_ID, LongType(), False),
    Column(ORDERING_KEY, BinaryType(), True),
    Column(SCHEMA_VERSION, BinaryType(), True),
    Column(REDELIVERY_COUNT, IntegerType(), False),
    Column(SIZE, IntegerType(), False),
    Column(INDEX, LongType(), True),
    Column(REPLICATED_FROM, StringType(), True),
)
"""The columns that includeMetadata adds behind them."""


def read_schema(value_type: DataType, *, include_metadata: bool) -> StructType:
    """Return the schema of a read whose values are one column of `value_type`."""
    columns = METADATA_COLUMNS + (POSITION_COLUMNS if include_metadata else ())
    fields = [StructField(VALUE, value_type)]
    fields += [StructField(column.name, column.data_type) for column in columns]
    return StructType(fields)


def project(schema: StructType, value_type: DataType, corrupt_column: str) -> tuple[str, ...]:
    """Return the names, as above, of the columns that the user's `schema` asks for.

    The columns of includeMetadata can be asked for whether it is set or not, and
    `corrupt_column` as string or binary. Spark's own rule holds: case does not matter. Raises
    OptionError that names the column where its name, type or nullability does not fit.
    """
    known = {
        column.name.lower(): column
        for column in (Column(VALUE, value_type, True), *METADATA_COLUMNS, *POSITION_COLUMNS)
    }
    if corrupt_column.lower() in known:
        raise OptionError(f"columnNameOfCorruptRecord names the column {corrupt_column!r}")
    names: list[str] = []
    for field in schema.fields:
        if field.name.lower() == corrupt_column.lower():
            if not isinstance(field.dataType, StringType | BinaryType):
                raise _unfit(field, "string or binary")
            names.append(corrupt_column)
            continue
        column = known.get(field.name.lower())
        if column is None:
            raise OptionError(
                f"the schema has a column {field.name!r}, which this read does not offer",
                _offer(field.name, [found.name for found in known.values()]),
            )
        if not _same_type(field.dataType, column.data_type):
            raise _unfit(field, column.data_type.simpleString())
        if column.optional and not field.nullable:
            raise OptionError(
                f"the schema says that the column {field.name!r} is never null, but it can be",
                "Declare it nullable.",
            )
        names.append(column.name)
    return tuple(names)


def _same_type(given: DataType, expected: DataType) -> bool:
    # Whether the values of a map may be null makes no difference to what is read.
    if isinstance(given, MapType) and isinstance(expected, MapType):
        return given.keyType == expected.keyType and given.valueType == expected.valueType
    return given == expected


def _offer(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"It offers: {', '.join(known)}."


def _unfit(field: StructField, expected: str) -> OptionError:
    remedy = f"Declare it {expected}."
    if field.name.lower() == VALUE:
        remedy += " The topic's schema decides on it, or valueFormat=raw."
    return OptionError(
        f"the schema's column {field.name!r} is {field.dataType.simpleString()}, not {expected}",
        remedy,
    )
